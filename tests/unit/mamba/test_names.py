"""The names of mamba_ssm and causal_conv1d: found by other people's code, and right."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from families import FAMILIES
from torch.nn import functional as F

import mamba_cpu
from mamba_cpu import build
from mamba_cpu.provide import NAMES

PACKAGE = build.SOURCES.parents[1]


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """One folder of compiled kernels for the processes of these tests."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def provided(kernel, monkeypatch):
    """The names, for one test: other tests look at transformers without them."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert mamba_cpu.provide() == ["mamba_ssm", "causal_conv1d"]
    yield
    for name in [n for n in sys.modules if n.partition(".")[0] in ("mamba_ssm", "causal_conv1d")]:
        del sys.modules[name]


def python(cache, *arguments, **more):
    variables = {"PYTHONPATH": str(PACKAGE), "MAMBA_CPU_CACHE": str(cache)}
    return subprocess.run(
        [sys.executable, "-W", "ignore", *map(str, arguments)],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        **more,
    )


@pytest.fixture(scope="module")
def families(cache, tmp_path_factory):
    """What the ten families give by themselves, and with the names provided."""
    folder = tmp_path_factory.mktemp("families")
    found = {}
    for name, arguments in (("plain", []), ("provided", ["provide"])):
        done = python(cache, Path(__file__).with_name("families.py"), folder / name, *arguments)
        assert done.returncode == 0, done.stderr
        assert ("is falling back to its reference" in done.stderr) == (name == "plain")
        found[name] = torch.load(folder / name)
    return found


@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_gives_the_logits_and_tokens_that_transformers_gives(families, family):
    plain, ours = (families[name][family] for name in ("plain", "provided"))
    torch.testing.assert_close(ours["logits"], plain["logits"], atol=2e-5, rtol=1e-4)
    torch.testing.assert_close(ours["padded"], plain["padded"], atol=2e-5, rtol=1e-4)
    assert torch.equal(ours["tokens"], plain["tokens"])


@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_gives_the_gradients_that_transformers_gives(families, family):
    plain, ours = (families[name][family]["gradients"] for name in ("plain", "provided"))
    assert ours.keys() == plain.keys()
    for name, expected in plain.items():
        atol = 2e-5 * expected.abs().max().item() + 1e-9  # some are rounding alone
        torch.testing.assert_close(ours[name], expected, atol=atol, rtol=1e-3)


def test_a_script_or_a_module_runs_with_the_names_by_one_command(cache, tmp_path):
    script = tmp_path / "model.py"
    script.write_text(
        "import sys, torch, importlib.metadata\n"
        "from mamba_ssm import Mamba\n"
        "from causal_conv1d import causal_conv1d_fn\n"
        "print(Mamba(d_model=32)(torch.zeros(1, 5, 32)).shape, sys.argv[1:], __name__)\n"
        "print(importlib.metadata.version('mamba_ssm'))\n"
    )
    right = ["torch.Size([1, 5, 32]) ['--option'] __main__", "2.2.6"]
    for command in ([script, "--option"], ["-m", "model", "--option"]):
        assert python(cache, "-m", "mamba_cpu", *command, cwd=tmp_path).stdout.splitlines() == right


def test_an_installed_package_comes_before_ours(cache, tmp_path):
    (tmp_path / "mamba_ssm").mkdir()
    (tmp_path / "mamba_ssm/__init__.py").write_text("theirs = True\n")
    code = "import mamba_cpu; print(mamba_cpu.provide()); import mamba_ssm; print(mamba_ssm.theirs)"
    done = python(cache, "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {code}")
    assert done.stdout.split("\n")[:2] == ["['causal_conv1d']", "True"]


def model_of(layer):
    from mamba_ssm.models.config_mamba import MambaConfig
    from mamba_ssm.models.mixer_seq_simple import MambaLMHeadModel

    torch.manual_seed(0)
    ssm = {"layer": layer}
    if layer == "Mamba2":
        ssm |= {"headdim": 16, "d_state": 16, "ngroups": 2}
    return MambaLMHeadModel(MambaConfig(64, 96, 3, 100, ssm))


@pytest.mark.parametrize("layer", ["Mamba1", "Mamba2"])
def test_pieces_behind_a_cache_are_one_run_whatever_their_length(layer):
    from mamba_ssm.utils.generation import InferenceParams

    model, ids = model_of(layer), torch.randint(0, 100, (2, 40))
    cache, pieces = InferenceParams(max_seqlen=40, max_batch_size=2), []
    with torch.inference_mode():
        whole = model(ids).logits
        for first, last in ((0, 10), (10, 11), (11, 13), (13, 40)):
            pieces.append(model(ids[:, first:last], inference_params=cache).logits)
            cache.seqlen_offset += last - first
    torch.testing.assert_close(torch.cat(pieces, dim=1), whole, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("layer", ["Mamba1", "Mamba2"])
def test_steps_of_a_mixer_are_its_whole_run(layer):
    mixer = model_of(layer).backbone.layers[0].mixer
    x = torch.randn(2, 12, 64)
    states = mixer.allocate_inference_cache(2, 12)
    with torch.inference_mode():
        steps = [mixer.step(x[:, t : t + 1], *states)[0] for t in range(12)]
        torch.testing.assert_close(torch.cat(steps, dim=1), mixer(x), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("layer", ["Mamba1", "Mamba2"])
def test_greedy_tokens_are_the_likeliest_of_the_whole_run(layer):
    model, ids = model_of(layer), torch.randint(0, 100, (2, 5))
    tokens = model.generate(ids, max_length=12)
    with torch.inference_mode():
        expected = model(tokens).logits.argmax(dim=-1)
    assert torch.equal(tokens[:, 5:], expected[:, 4:-1])


def test_a_folder_is_saved_and_loaded(tmp_path):
    from mamba_ssm import MambaLMHeadModel

    model, ids = model_of("Mamba1"), torch.randint(0, 100, (1, 9))
    model.save_pretrained(tmp_path)
    loaded = MambaLMHeadModel.from_pretrained(str(tmp_path))
    assert loaded.lm_head.weight is loaded.backbone.embedding.weight
    torch.testing.assert_close(loaded(ids).logits, model(ids).logits)


def test_names_of_weights_are_those_of_published_checkpoints():
    names = set(model_of("Mamba1").state_dict())
    layer = "backbone.layers.2."
    mixer = {"in_proj.weight", "conv1d.weight", "conv1d.bias", "x_proj.weight", "dt_proj.weight"}
    mixer |= {"dt_proj.bias", "A_log", "D", "out_proj.weight"}
    assert {layer + "mixer." + name for name in mixer} | {layer + "norm.weight"} <= names
    assert {"backbone.embedding.weight", "backbone.norm_f.weight", "lm_head.weight"} <= names


def test_the_convolution_keeps_sequences_apart():
    from causal_conv1d import causal_conv1d_fn

    x, weight, bias = torch.randn(2, 6, 20), torch.randn(6, 4), torch.randn(6)
    index = torch.tensor([[0] * 7 + [1] * 13, [0] * 20])
    y = causal_conv1d_fn(x, weight, bias, seq_idx=index, activation="silu")
    apart = [causal_conv1d_fn(x[:1, :, p], weight, bias) for p in (slice(0, 7), slice(7, 20))]
    torch.testing.assert_close(y[:1], F.silu(torch.cat(apart, dim=2)))
    torch.testing.assert_close(y[1:], F.silu(causal_conv1d_fn(x[1:], weight, bias)))


@pytest.mark.parametrize("ring", [False, True])
def test_the_convolution_goes_on_behind_its_state(ring):
    from causal_conv1d import causal_conv1d_fn, causal_conv1d_update

    x, weight = torch.randn(2, 6, 20), torch.randn(6, 4)
    state, pieces = torch.zeros(2, 6, 5), []
    for first, last in ((0, 1), (1, 4), (4, 5), (5, 10), (10, 15), (15, 20)):
        seen = torch.full((2,), first) if ring else None
        pieces.append(causal_conv1d_update(x[:, :, first:last], state, weight, None, None, seen))
    torch.testing.assert_close(torch.cat(pieces, dim=2), causal_conv1d_fn(x, weight))


def test_initial_and_final_states_join_two_halves():
    from causal_conv1d import causal_conv1d_fn

    x, weight = torch.randn(2, 6, 20), torch.randn(6, 4)
    first, states = causal_conv1d_fn(x[:, :, :9], weight, return_final_states=True)
    second = causal_conv1d_fn(x[:, :, 9:], weight, initial_states=states)
    torch.testing.assert_close(torch.cat([first, second], dim=2), causal_conv1d_fn(x, weight))


def test_packed_sequences_of_mamba_2_are_scanned_each_from_zero():
    from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined

    def run(part, **more):
        x, dt, B, C = (t[:, part] for t in operands)
        return mamba_chunk_scan_combined(x, dt, A, B, C, 64, dt_softplus=True, **more)

    operands = torch.randn(1, 30, 4, 8), torch.randn(1, 30, 4), *torch.randn(2, 1, 30, 2, 5)
    A = -torch.rand(4)
    index = torch.tensor([[0] * 11 + [3] * 19])
    y, final = run(slice(0, 30), seq_idx=index, return_final_states=True)
    first, (second, last) = run(slice(0, 11)), run(slice(11, 30), return_final_states=True)
    torch.testing.assert_close(y, torch.cat([first, second], dim=1))
    torch.testing.assert_close(final, last)


def test_a_bidirectional_scan_is_the_sum_of_both_ways():
    from causal_conv1d import causal_conv1d_fn
    from mamba_ssm.ops.selective_scan_interface import bimamba_inner_fn, selective_scan_ref

    torch.manual_seed(0)
    xz, convolution, x_proj = torch.randn(2, 16, 9), torch.randn(8, 1, 4), torch.randn(3 + 8, 8)
    dt_proj, out_proj, D = torch.randn(8, 3), torch.randn(5, 8), torch.randn(8)
    A, A_back = -torch.rand(8, 4), -torch.rand(8, 4)
    found = bimamba_inner_fn(xz, convolution, None, x_proj, dt_proj, out_proj, None, A, A_back, D=D)
    x, z = xz.chunk(2, dim=1)
    x = causal_conv1d_fn(x, convolution.flatten(1), activation="silu")
    dt, B, C = (x.mT @ x_proj.T).split([3, 4, 4], dim=-1)
    operands = [x, (dt @ dt_proj.T).mT, B.mT, C.mT, z]
    ways = []
    for matrix, of in ((A, operands), (A_back, [t.flip(-1) for t in operands])):
        u, delta, B, C, gate = of
        ways.append(selective_scan_ref(u, delta, matrix, B, C, D, gate, delta_softplus=True))
    expected = (ways[0] + ways[1].flip(-1)).mT @ out_proj.T
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("groups", [1, 2])
def test_a_gated_norm_is_that_of_each_group(groups):
    from mamba_ssm.ops.triton.layernorm_gated import RMSNorm, rmsnorm_fn

    x, z = torch.randn(3, 8), torch.randn(3, 8)
    norm = RMSNorm(8, group_size=8 // groups, norm_before_gate=False)
    gated = (x * F.silu(z)).unflatten(-1, (groups, -1))
    expected = gated / (gated.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    torch.testing.assert_close(norm(x, z), expected.flatten(-2))
    before = rmsnorm_fn(x, norm.weight, None, z, 1e-5, 8 // groups, True)
    torch.testing.assert_close(before, norm(x) * F.silu(z))


@pytest.mark.parametrize("older", [False, True])
def test_the_residual_is_added_before_the_norm_and_kept_in_float32(older):
    if older:
        from mamba_ssm.ops.triton.layernorm import rms_norm_fn
    else:
        from mamba_ssm.ops.triton.layer_norm import rms_norm_fn
    x, residual = torch.randn(2, 6).bfloat16(), torch.randn(2, 6).bfloat16()
    weight = torch.randn(6)
    y, total = rms_norm_fn(
        x, weight, None, residual=residual, eps=1e-5, prenorm=True, residual_in_fp32=True
    )
    expected = x.float() + residual.float()
    assert total.dtype == torch.float32 and y.dtype == torch.bfloat16
    torch.testing.assert_close(total, expected)
    rms = (expected.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    torch.testing.assert_close(y, (expected / rms * weight).bfloat16())


def test_states_are_updated_in_their_slots_and_no_others():
    from mamba_ssm.ops.triton.selective_state_update import selective_state_update

    torch.manual_seed(0)
    state, x, dt = torch.randn(5, 4, 8, 6), torch.randn(2, 4, 8), torch.rand(2, 4, 8)
    A, B, C = -torch.rand(4, 8, 6), torch.randn(2, 2, 6), torch.randn(2, 2, 6)
    before = state.clone()
    y = selective_state_update(state, x, dt, A, B, C, state_batch_indices=torch.tensor([3, 1]))
    wide_B, wide_C = (t.repeat_interleave(2, dim=1)[:, :, None] for t in (B, C))
    expected = before[[3, 1]] * torch.exp(dt[..., None] * A) + (dt * x)[..., None] * wide_B
    torch.testing.assert_close(state[[3, 1]], expected)
    torch.testing.assert_close(y, (expected * wide_C).sum(-1))
    assert torch.equal(state[[0, 2, 4]], before[[0, 2, 4]])


def test_mistakes_are_told_before_anything_is_written():
    from causal_conv1d import causal_conv1d_update
    from mamba_ssm.ops.triton.selective_state_update import selective_state_update

    state, x = torch.zeros(2, 8, 6), torch.randn(2, 8)
    A, B = -torch.rand(8, 6), torch.randn(2, 6)
    with pytest.raises(IndexError, match="state_batch_indices must be from 0 to 1"):
        selective_state_update(state, x, x, A, B, B, state_batch_indices=torch.tensor([0, 7]))
    with pytest.raises(ValueError, match="dt is"):
        selective_state_update(state, x, x[:, :4], A, B, B)
    with pytest.raises(ValueError, match=r"conv_state is .* 3 or more"):
        causal_conv1d_update(x, torch.zeros(2, 8, 2), torch.randn(8, 4))
    assert not state.any()


def test_what_is_not_implemented_says_so():
    from mamba_ssm.models.mixer_seq_simple import create_block
    from mamba_ssm.ops.selective_scan_interface import selective_scan_fn
    from mamba_ssm.ops.triton.layer_norm import layer_norm_fn

    u = torch.randn(1, 4, 6)
    with pytest.raises(TypeError, match="complex"):
        selective_scan_fn(u, u, torch.randn(4, 2, dtype=torch.complex64), u[:, :2], u[:, :2])
    with pytest.raises(NotImplementedError, match="dropout_p is not implemented"):
        layer_norm_fn(u, torch.ones(6), None, dropout_p=0.1)
    with pytest.raises(NotImplementedError, match="layer 1 is attention"):
        create_block(32, 0, attn_layer_idx=[1], layer_idx=1)


def test_the_names_are_in_the_wheel_s_package():
    assert (NAMES / "mamba_ssm/__init__.py").is_file() and (NAMES / "mamba_ssm").parent == NAMES
