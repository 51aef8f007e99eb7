"""Mamba-2's scan and its gradients against the recurrence in float64."""

import math

import pytest
import torch
from torch.nn import functional as F

from mamba_cpu.ops import ssd_scan

pytestmark = pytest.mark.usefixtures("kernel")


def recurrence(operands):
    """ssd_scan one time after the other, in the dtype of its operands."""
    x, A = operands["x"], operands["A"]
    _, length, heads, _ = x.shape
    B, C = (operands[k].repeat_interleave(heads // operands[k].shape[2], 2) for k in "BC")
    dt = F.softplus(operands["dt"] + operands["dt_bias"]).clamp(*operands["dt_limit"])
    state, seq_idx, ys = operands["initial_states"], operands["seq_idx"], []
    for t in range(length):
        decay = torch.exp(dt[:, t] * A)[..., None, None]
        if seq_idx is not None and t:
            decay = decay * (seq_idx[:, t] == seq_idx[:, t - 1])[:, None, None, None]
        state = decay * state + (dt[:, t, :, None] * x[:, t])[..., None] * B[:, t, :, None]
        ys.append((state * C[:, t, :, None]).sum(-1))
    y = torch.stack(ys, 1) + operands["D"][:, None] * x
    return y * F.silu(operands["z"]), state


def case(batch=2, length=130, heads=4, headdim=16, state=16, groups=2, decay=1.0, **changes):
    torch.manual_seed(0)
    return {
        "x": torch.randn(batch, length, heads, headdim),
        "dt": torch.randn(batch, length, heads),
        "A": -decay * torch.rand(heads),
        "B": torch.randn(batch, length, groups, state),
        "C": torch.randn(batch, length, groups, state),
        "D": torch.randn(heads),
        "z": torch.randn(batch, length, heads, headdim),
        "dt_bias": torch.randn(heads),
        "dt_softplus": True,
        "initial_states": torch.randn(batch, heads, headdim, state),
        "seq_idx": None,
        "dt_limit": (0.0, math.inf),
    } | changes


CASES = {
    "groups": case(),
    "lanes that are not full, states that fill no block": case(1, 70, 2, 20, 5, 1),
    "a decay too strong to be divided out": case(decay=40.0),
    "sequences": case(1, seq_idx=torch.arange(130)[None] // 50),
    "a limited step": case(dt_limit=(0.1, 0.5)),
    "one time": case(length=1),
}


def error(actual, expected):
    return ((actual.double() - expected).abs().max() / expected.abs().max()).item()


def in_float64(operands):
    return {
        k: v.double() if torch.is_tensor(v) and v.is_floating_point() else v
        for k, v in operands.items()
    }


@pytest.mark.parametrize("operands", CASES.values(), ids=CASES)
def test_agrees_with_the_recurrence(operands):
    for actual, expected in zip(
        ssd_scan(**operands), recurrence(in_float64(operands)), strict=True
    ):
        assert error(actual, expected) < 1e-5


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 2e-2), (torch.float16, 2e-3)])
def test_half_precision_is_rounded_once(dtype, tolerance):
    operands = case()
    for name in "xBCz":
        operands[name] = operands[name].to(dtype)
    y, state = ssd_scan(**operands)
    expected, _ = recurrence(in_float64(operands))
    assert y.dtype == dtype and state.dtype == torch.float32
    assert error(y, expected) < tolerance


@pytest.mark.parametrize("operands", CASES.values(), ids=CASES)
def test_gradients_agree_with_those_of_the_recurrence(operands):
    def gradients(scan, operands):
        leaves = {
            k: v.clone().requires_grad_()
            for k, v in operands.items()
            if torch.is_tensor(v) and v.is_floating_point()
        }
        y, state = scan(operands | leaves)
        weights = [torch.linspace(-1, 2, t.numel()).view(t.shape) for t in (y, state)]
        loss = (y * weights[0]).sum() + (state * weights[1]).sum()
        return dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))

    actual = gradients(lambda operands: ssd_scan(**operands), operands)
    expected = gradients(recurrence, in_float64(operands))
    for name, gradient in actual.items():
        # What the decay weighs is a difference of sums; under a strong decay little is left.
        assert error(gradient, expected[name]) < (1e-2 if name in ("A", "dt_bias") else 1e-4), name


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x": torch.zeros(2, 130, 64)}, r"x must be \(batch, length, heads, headdim\)"),
        ({"B": torch.zeros(2, 130, 3, 16)}, "groups that divide the 4 heads"),
        ({"C": torch.zeros(2, 130, 2, 15)}, "C is"),
        ({"dt": torch.zeros(2, 130, 3)}, "dt is"),
        ({"seq_idx": torch.zeros(2, 3)}, "seq_idx is"),
    ],
)
def test_mistakes_are_told_in_words(changes, message):
    with pytest.raises(ValueError, match=message):
        ssd_scan(**case() | changes)
