"""The fused scan against the float64 recurrence, and the promises its docstring makes."""

from dataclasses import dataclass

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mamba_cpu import selective_scan_fn
from mamba_cpu.ops import kernel
from mamba_cpu.reference import selective_scan_reference

pytestmark = pytest.mark.usefixtures("kernel")

# The output is rounded to its dtype once; everything before that is float32.
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 5e-3, torch.float16: 6e-4}

property_based = settings(
    max_examples=80,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def relative_error(actual, expected):
    return ((actual.double() - expected).abs().max() / expected.abs().max().clamp_min(1e-30)).item()


@dataclass
class Case:
    """Operands of one call, and what they were drawn from (for a readable failure)."""

    operands: dict
    drawn: dict


@st.composite
def cases(draw):
    size = {
        "batch": draw(st.integers(1, 2)),
        "groups": draw(st.integers(1, 3)),
        "per_group": draw(st.sampled_from([1, 3, 15, 16, 17, 40])),
        "length": draw(st.sampled_from([1, 2, 63, 64, 65, 130])),
        "state": draw(st.sampled_from([1, 3, 4, 16, 21])),
        "dtype": draw(st.sampled_from(list(TOLERANCE))),
        "channels_contiguous": draw(st.booleans()),
        "softplus": draw(st.booleans()),
        "B": draw(st.sampled_from(["constant", "grouped", "shared"])),
        "C": draw(st.sampled_from(["constant", "grouped", "shared"])),
        **{name: draw(st.booleans()) for name in ("D", "z", "bias", "initial_state")},
    }
    return Case(operands_of(size, draw(st.integers(0, 2**31))), size)


def operands_of(size, seed):
    random = torch.Generator().manual_seed(seed)
    groups = 1 if "shared" in (size["B"], size["C"]) else size["groups"]
    batch, dim, length, state = (
        size["batch"],
        groups * size["per_group"],
        size["length"],
        size["state"],
    )

    def draw(*shape):
        x = torch.randn(*shape, generator=random).to(size["dtype"])
        return x.mT.contiguous().mT if size["channels_contiguous"] and x.dim() > 2 else x

    def projection(kind):
        shapes = {"constant": (dim, state), "grouped": (batch, groups, state, length)}
        return draw(*shapes.get(kind, (batch, state, length)))

    delta = draw(batch, dim, length) * 0.3
    return {
        "u": draw(batch, dim, length),
        "delta": delta if size["softplus"] else delta.abs(),
        "A": -4 * torch.rand(dim, state, generator=random),
        "B": projection(size["B"]),
        "C": projection(size["C"]),
        "D": draw(dim) if size["D"] else None,
        "z": draw(batch, dim, length) if size["z"] else None,
        "delta_bias": torch.rand(dim, generator=random) if size["bias"] else None,
        "delta_softplus": size["softplus"],
        "initial_state": draw(batch, dim, state).float() if size["initial_state"] else None,
    }


@property_based
@given(cases())
def test_agrees_with_the_recurrence(case):
    y, state = selective_scan_fn(**case.operands, return_last_state=True)
    expected, expected_state = selective_scan_reference(**case.operands)
    assert y.dtype == case.drawn["dtype"] and state.dtype == torch.float32
    assert relative_error(y, expected) < TOLERANCE[case.drawn["dtype"]]
    assert relative_error(state, expected_state) < 1e-5


def plain_case(batch=1, dim=40, length=200, state=16, seed=0, **changes):
    size = {"batch": batch, "groups": 1, "per_group": dim, "length": length, "state": state}
    size |= {"dtype": torch.float32, "channels_contiguous": True, "softplus": True}
    size |= {"B": "shared", "C": "shared", "D": True, "z": True, "bias": True}
    return operands_of(size | {"initial_state": False} | changes, seed)


def halves(operands, cut):
    """The same call on times before and after `cut`."""
    along_time = ("u", "delta", "B", "C", "z")
    return [
        {k: v[..., part] if k in along_time else v for k, v in operands.items()}
        for part in (slice(None, cut), slice(cut, None))
    ]


@pytest.mark.parametrize("cut", [1, 63, 64, 100])
def test_two_halves_joined_by_the_state_are_one_run_bit_for_bit(cut):
    whole = plain_case()
    y, state = selective_scan_fn(**whole, return_last_state=True)
    first, second = halves(whole, cut)
    y1, middle = selective_scan_fn(**first, return_last_state=True)
    second["initial_state"] = middle
    y2, last = selective_scan_fn(**second, return_last_state=True)
    assert torch.equal(torch.cat([y1, y2], dim=2), y)
    assert torch.equal(last, state)


def with_threads(count, call):
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        return call()
    finally:
        torch.set_num_threads(before)


def test_threads_over_channels_change_no_bit():
    operands = plain_case(batch=2, dim=100)
    one = with_threads(1, lambda: selective_scan_fn(**operands))
    two = with_threads(2, lambda: selective_scan_fn(**operands))
    assert torch.equal(one, two)


@pytest.mark.parametrize("threads", [2, 3])
def test_threads_over_time_agree_where_channels_are_few(threads):
    operands = plain_case(dim=5, length=4000, initial_state=True)
    call = lambda: selective_scan_fn(**operands, return_last_state=True)  # noqa: E731
    for actual, expected in zip(
        with_threads(threads, call), selective_scan_reference(**operands), strict=True
    ):
        assert relative_error(actual, expected) < 1e-5


def test_a_decay_that_underflows_stays_finite():
    ones = torch.ones(1, 16, 2048)
    A = torch.full((16, 16), -16.0)
    y = selective_scan_fn(ones, ones, A, ones, ones)
    expected, _ = selective_scan_reference(ones, ones, A, ones, ones)
    assert y.isfinite().all() and relative_error(y, expected) < 1e-5


def growth_after_silence():
    ones = torch.ones(1, 4, 2048)
    u = torch.zeros_like(ones)
    u[..., 2040:] = 1
    return {"u": u, "delta": ones, "A": torch.full((4, 4), 0.5), "B": ones, "C": ones}


def infinity_in_a_state_that_decays():
    u, ones = torch.ones(1, 4, 2048), torch.ones(1, 4, 2048)
    u[0, 0, 10] = float("inf")
    return {"u": u, "delta": ones, "A": torch.full((4, 4), -16.0), "B": ones, "C": ones}


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("operands", [growth_after_silence, infinity_in_a_state_that_decays])
def test_threads_over_time_are_finite_where_the_recurrence_is(operands, threads):
    run = lambda: selective_scan_fn(**operands(), return_last_state=True)  # noqa: E731
    expected = selective_scan_reference(**operands())
    for actual, exact in zip(with_threads(threads, run), expected, strict=True):
        assert torch.equal(actual.isnan(), exact.isnan())
        assert torch.equal(actual.isinf(), exact.isinf())
        finite = exact.isfinite()
        assert torch.allclose(actual.double()[finite], exact[finite], rtol=1e-5)


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize("name", ["u", "delta", "A", "B", "C", "D", "z"])
def test_nan_and_infinity_propagate_as_in_the_reference(name, value):
    operands = plain_case(dim=20, length=70, softplus=False)
    operands[name] = operands[name].clone()
    operands[name][(0,) * operands[name].dim()] = value
    y = selective_scan_fn(**operands).double()
    expected, _ = selective_scan_reference(**operands)
    assert torch.equal(y.isnan(), expected.isnan())
    assert torch.equal(y.isinf(), expected.isinf())
    finite = expected.isfinite()
    assert torch.allclose(y[finite], expected[finite], rtol=1e-4, atol=1e-4)


def test_exponents_of_any_size_agree():
    # Growth to infinity, decay to zero and everything between, in one tile.
    A = torch.linspace(-300, 60, 64).reshape(4, 16)
    operands = plain_case(dim=4, length=8, softplus=False, z=False) | {"A": A, "delta_bias": None}
    operands["delta"] = torch.ones_like(operands["delta"])
    y = selective_scan_fn(**operands).double()
    expected, _ = selective_scan_reference(**operands)
    overflow = expected.abs() > torch.finfo(torch.float32).max
    assert overflow.any() and not y[overflow].isfinite().any()
    assert torch.allclose(y[~overflow], expected[~overflow], rtol=1e-4)


def test_out_is_written_and_returned():
    operands = plain_case()
    out = torch.empty_like(operands["u"])
    assert selective_scan_fn(**operands, out=out) is not None
    assert torch.equal(out, selective_scan_fn(**operands))


def test_a_transposed_input_gives_a_transposed_output():
    operands = plain_case()
    assert operands["u"].stride(1) == 1
    assert selective_scan_fn(**operands).stride() == operands["u"].stride()


def test_nothing_to_do_is_no_error():
    for batch, length in ((0, 5), (1, 0)):
        operands = plain_case(batch=batch, length=length)
        assert selective_scan_fn(**operands).shape == operands["u"].shape


@pytest.mark.parametrize("form", ["default", "out"])
def test_the_operator_is_what_torch_asks_of_one(form):
    size = {"batch": 1, "groups": 1, "per_group": 17, "length": 40, "state": 5}
    size |= dict.fromkeys(["D", "z", "bias", "initial_state"], True)
    size |= {"dtype": torch.float32, "channels_contiguous": True, "softplus": True}
    x = operands_of(size | {"B": "shared", "C": "constant"}, seed=0)
    positional = [x[name] for name in ("u", "delta", "A", "B", "C", "D", "z", "delta_bias")]
    state = x["initial_state"].float().contiguous()
    given = {"out": torch.empty_like(x["u"]), "state": state} if form == "out" else {}
    positional += [True] if form == "out" else [True, state]
    found = torch.library.opcheck(getattr(kernel().scan, form), tuple(positional), given)
    assert set(found.values()) == {"SUCCESS"}


def test_meta_tensors_have_the_shapes_of_the_results():
    operands = plain_case()
    y, state = selective_scan_fn(**operands, return_last_state=True)
    meta = {k: v.to("meta") if isinstance(v, torch.Tensor) else v for k, v in operands.items()}
    y_meta, state_meta = selective_scan_fn(**meta, return_last_state=True)
    assert (y_meta.shape, y_meta.stride(), y_meta.dtype) == (y.shape, y.stride(), y.dtype)
    assert (state_meta.shape, state_meta.dtype) == (state.shape, state.dtype)


def test_a_tangent_is_refused_and_not_dropped():
    x = {k: v for k, v in plain_case().items() if v is not None}
    u = x.pop("u")
    with pytest.raises(RuntimeError):
        torch.func.jvp(lambda u: selective_scan_fn(u, **x), (u,), (u,))


def gradients(scan, operands, dtype=None):
    """Of a weighted sum of y and the last state, by each operand that has one."""
    leaves = {
        name: x.detach().to(dtype or x.dtype).requires_grad_()
        for name, x in operands.items()
        if isinstance(x, torch.Tensor)
    }
    y, state = scan(**operands | leaves)
    weights = [torch.linspace(-1, 2, x.numel()).view(x.shape) for x in (y, state)]
    loss = sum((x * w.to(x.dtype)).sum() for x, w in zip((y, state), weights, strict=True))
    return dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))


def with_state(**operands):
    return selective_scan_fn(**operands, return_last_state=True)


@property_based
@given(cases())
def test_gradients_agree_with_those_of_the_recurrence(case):
    actual = gradients(with_state, case.operands)
    expected = gradients(selective_scan_reference, case.operands, torch.float64)
    assert actual.keys() == expected.keys()
    for name, gradient in actual.items():
        assert gradient.dtype == case.operands[name].dtype
        tolerance = 3 * TOLERANCE[case.drawn["dtype"]]
        assert relative_error(gradient, expected[name]) < tolerance, name


@pytest.mark.parametrize("used", [0, 1], ids=["y", "state"])
def test_one_result_alone_can_be_differentiated(used):
    operands = plain_case(dim=20)
    u = operands["u"]

    def gradient(scan, dtype):
        leaf = u.to(dtype).requires_grad_()
        return torch.autograd.grad(scan(**operands | {"u": leaf})[used].sum(), leaf)[0]

    expected = gradient(selective_scan_reference, torch.float64)
    assert relative_error(gradient(with_state, torch.float32), expected) < 1e-5


def test_gradients_with_threads_that_share_a_group_are_the_same():
    operands = plain_case(dim=100)
    one = with_threads(1, lambda: gradients(with_state, operands))
    two = with_threads(2, lambda: gradients(with_state, operands))
    for name, gradient in one.items():
        torch.testing.assert_close(two[name], gradient, rtol=1e-5, atol=1e-4)


def test_a_compiled_function_has_the_same_gradients():
    operands = plain_case(dim=20)
    compiled = torch.compile(with_state, backend="aot_eager", fullgraph=True)
    actual = gradients(compiled, operands)
    for name, expected in gradients(with_state, operands).items():
        torch.testing.assert_close(actual[name], expected, msg=name)


def test_subnormals_are_alive_after_loading():
    assert 5e-324 != 0 and torch.tensor(1e-40).mul(0.5) != 0


def changed(name, change):
    operands = plain_case()
    return operands | {name: change(operands[name])}


@pytest.mark.parametrize(
    ("operands", "error", "message"),
    [
        (lambda: changed("A", lambda x: x.to(torch.complex64)), TypeError, "A is complex"),
        (lambda: changed("u", lambda x: x.double()), TypeError, "u is torch.float64"),
        (lambda: changed("u", lambda x: x.tolist()), TypeError, "u must be a tensor"),
        (lambda: changed("A", lambda x: None), TypeError, "A must be a tensor, not None"),
        (lambda: changed("A", lambda x: x.to("meta")), TypeError, "A is on meta, and u on cpu"),
        (lambda: changed("u", lambda x: x.to("meta")), TypeError, "is on cpu, and u on meta"),
        (lambda: changed("delta", lambda x: x.to_sparse()), TypeError, "delta is torch.sparse_coo"),
        (lambda: changed("u", lambda x: x[0]), ValueError, r"u must be \(batch, dim, length\)"),
        (lambda: changed("delta", lambda x: x[..., 1:]), ValueError, "delta is .* expected"),
        (lambda: changed("A", lambda x: x[1:]), ValueError, "with dim 40"),
        (lambda: changed("B", lambda x: x[..., 1:]), ValueError, r"B is .*expected \(dim, state\)"),
        (lambda: changed("C", lambda x: x[:, None].repeat(1, 3, 1, 1)), ValueError, "3 groups"),
        (lambda: changed("C", lambda x: x[:, None].repeat(1, 2, 1, 1)), ValueError, "same number"),
        (lambda: changed("D", lambda x: x[1:]), ValueError, "D is"),
        (
            lambda: changed("u", lambda x: x.requires_grad_()) | {"out": torch.empty(1, 40, 200)},
            RuntimeError,
            "u requires a gradient, which does not pass through out=",
        ),
        (lambda: plain_case() | {"out": torch.empty(1, 40, 9)}, ValueError, "out is"),
        (
            lambda: plain_case() | {"out": torch.empty(1, 40, 200, dtype=torch.half)},
            TypeError,
            "out is",
        ),
        (
            lambda: plain_case() | {"out": torch.empty(1, 1, 200).expand(1, 40, 200)},
            ValueError,
            "repeats memory",
        ),
        (
            lambda: plain_case() | {"out": torch.empty(440).as_strided((1, 40, 200), (1, 1, 2))},
            ValueError,
            "repeats memory",
        ),
    ],
)
def test_mistakes_are_told_in_words(operands, error, message):
    with pytest.raises(error, match=message):
        selective_scan_fn(**operands())


def test_an_output_over_an_input_is_refused():
    operands = plain_case()
    with pytest.raises(ValueError, match="shares memory with u"):
        selective_scan_fn(**operands, out=operands["u"])


def test_an_output_between_the_elements_of_an_input_is_refused():
    pairs = torch.zeros(1, 40, 200, 2)
    operands = plain_case() | {"delta": pairs[..., 0], "out": pairs[..., 1]}
    with pytest.raises(ValueError, match="between its elements"):
        selective_scan_fn(**operands)


def test_an_output_beside_an_input_in_one_buffer_is_written():
    operands = plain_case()
    buffer = torch.stack([operands["u"], operands["u"]])
    selective_scan_fn(**operands | {"u": buffer[0]}, out=buffer[1])
    assert torch.equal(buffer[0], operands["u"])
    assert torch.equal(buffer[1], selective_scan_fn(**operands))


@pytest.mark.parametrize(("batch", "length"), [(0, 5), (1, 0)])
def test_an_empty_output_is_no_error(batch, length):
    operands = plain_case(batch=batch, length=length)
    out = torch.empty_like(operands["u"])
    assert selective_scan_fn(**operands, out=out) is out


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("A", (39, 16)),
        ("B", (1, 16, 199)),
        ("B", (16,)),
        ("C", (1, 3, 16, 200)),
        ("D", (39,)),
        ("delta_bias", (40, 1)),
    ],
)
def test_the_operator_itself_refuses_what_it_would_read_beyond(name, shape):
    operands = plain_case() | {name: torch.zeros(shape)}
    with pytest.raises(RuntimeError, match="must be"):
        kernel().scan(*operands.values())
