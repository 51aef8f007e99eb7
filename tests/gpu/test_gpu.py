"""What can be seen on a real graphics card only: `make test-gpu`, which says how many ran."""

import numpy as np
import pytest
import torch
from checkpoints import matrix, random_matrix
from independent import causal
from matrices import with_spectrum, write_gamma
from running import succeed
from safetensors.numpy import load_file

from mamba_cpu import load_kernel, selective_scan_fn
from unembedding.backends import BACKENDS
from unembedding.covariance import decompose
from unembedding.errors import GeometryError
from unembedding.transform import transform

if not torch.cuda.is_available():
    pytest.skip("PyTorch finds no CUDA device here", allow_module_level=True)


@pytest.fixture(params=[("torch", "cuda"), ("cupy", None)], ids=["torch", "cupy"])
def backend(request):
    name, driver = request.param
    try:
        return BACKENDS[name].make(driver)
    except GeometryError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize(("precision", "tolerance"), [("float64", 1e-5), ("float32", 1e-3)])
def test_a_card_gives_the_straightforward_g(backend, precision, tolerance, tmp_path):
    gamma = with_spectrum(20_000, np.geomspace(1e-2, 1, 512)).astype(np.float32)
    source = write_gamma(tmp_path / "gamma", gamma)
    decompose(source, tmp_path / "decomposition", backend, precision)
    facts = transform(source, tmp_path / "decomposition", tmp_path / "causal", backend)
    written = load_file(tmp_path / "causal")["g"]
    np.testing.assert_allclose(written, causal(gamma), atol=10 * tolerance)
    assert facts.whitening_residual <= tolerance


def test_the_workflow_runs_on_the_card(backend, tmp_path):
    matrix(tmp_path / "models/m", random_matrix(1))
    run = succeed(tmp_path, {"models": {"m": {"path": "models/m"}}, "backend": backend.name})
    assert (
        f"Backend {backend.name} on"
        in (tmp_path / "logs/geometry/m/local/decompose.log").read_text()
    )
    assert run.code == 0


def test_the_scan_refuses_what_lies_on_a_card(tmp_path):
    load_kernel(tmp_path)
    on_card = torch.zeros(1, 16, 4, device="cuda")
    with pytest.raises(TypeError, match="CPU only"):
        selective_scan_fn(on_card, on_card, torch.zeros(16, 16), on_card, on_card)
