"""Every backend gives the same geometry, and says plainly where it cannot work."""

import sys
import types

import numpy as np
import pytest
from matrices import load_file, straightforward, with_spectrum, write_gamma

from unembedding.backends import select_backend
from unembedding.backends.cupy_backend import CupyBackend
from unembedding.backends.numpy_backend import NumpyBackend
from unembedding.backends.torch_backend import TorchBackend
from unembedding.decomposition import decompose
from unembedding.errors import GeometryError
from unembedding.transform import transform


def array_module(devices: int = 1) -> types.ModuleType:
    """A module with CuPy's interface, as far as it is used, that computes with NumPy.

    Like CuPy it refuses to mix its arrays with NumPy's without being asked.
    """

    class DeviceArray(np.ndarray):
        def __array_ufunc__(self, ufunc, method, *inputs, **kwargs):
            for value in inputs:
                if isinstance(value, np.ndarray) and not isinstance(value, DeviceArray):
                    raise TypeError(f"Unsupported type {type(value)}")
            out = kwargs.get("out")
            plain = [np.asarray(value) for value in inputs]
            if out:
                kwargs["out"] = tuple(np.asarray(o) for o in out)
            result = getattr(ufunc, method)(*plain, **kwargs)
            return out[0] if out else np.asarray(result).view(DeviceArray)

    cupy = types.ModuleType("cupy")
    runtime = types.SimpleNamespace(
        getDeviceCount=lambda: devices, getDeviceProperties=lambda _: {"name": b"Pretend GPU"}
    )
    cupy.cuda = types.SimpleNamespace(runtime=runtime)
    cupy.ndarray = DeviceArray
    cupy.zeros = lambda shape: np.zeros(shape).view(DeviceArray)
    cupy.asarray = lambda a, dtype=None: np.array(a, dtype).view(DeviceArray)
    cupy.asnumpy = lambda a: np.array(a)
    cupy.linalg = types.SimpleNamespace(
        eigh=lambda a: tuple(x.view(DeviceArray) for x in np.linalg.eigh(np.asarray(a)))
    )
    return cupy


@pytest.fixture
def backend(request, monkeypatch):
    if request.param is CupyBackend:
        monkeypatch.setitem(sys.modules, "cupy", array_module())
    return request.param()


EVERY = pytest.mark.parametrize("backend", [NumpyBackend, TorchBackend, CupyBackend], indirect=True)


@EVERY
@pytest.mark.parametrize(("precision", "tolerance"), [("float64", 1e-5), ("float32", 1e-3)])
def test_every_backend_gives_the_straightforward_g(backend, precision, tolerance, tmp_path):
    gamma = with_spectrum(700, np.geomspace(1e-2, 1, 33)).astype(np.float32)
    source = write_gamma(tmp_path / "gamma", gamma)
    decompose(source, tmp_path / "decomposition", backend, precision)
    transform(source, tmp_path / "decomposition", tmp_path / "causal", backend)
    eigenvalues, inverse_sqrt, g = straightforward(gamma)
    found = load_file(tmp_path / "decomposition")
    np.testing.assert_allclose(found["eigenvalues"], eigenvalues, rtol=tolerance)
    assert found["eigenvectors"].dtype == precision
    causal = load_file(tmp_path / "causal")
    np.testing.assert_allclose(causal["g"], g, atol=10 * tolerance)
    np.testing.assert_allclose(causal["inverse_sqrt_covariance"], inverse_sqrt, atol=10 * tolerance)


@EVERY
def test_every_backend_gives_the_projector_of_a_deficient_matrix(backend, tmp_path):
    gamma = np.random.default_rng(0).standard_normal((90, 9)).astype(np.float32)
    gamma[:, 4] = 1
    source = write_gamma(tmp_path / "gamma", gamma)
    decompose(source, tmp_path / "decomposition", backend, "float64")
    facts = transform(
        source, tmp_path / "decomposition", tmp_path / "causal", backend, "pseudo_inverse"
    )
    assert facts["rank"] == 8
    assert facts["whitening_residual"] <= 1e-5


@pytest.mark.parametrize("backend", [CupyBackend], indirect=True)
def test_the_device_is_named(backend):
    assert backend.device == "Pretend GPU"


def test_auto_takes_cupy_where_a_gpu_answers(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", array_module())
    backend, reason = select_backend("auto")
    assert backend.name == "cupy"
    assert "GPU answers" in reason


def test_auto_takes_numpy_where_cupy_finds_no_gpu_and_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", array_module(devices=0))
    backend, reason = select_backend("auto")
    assert backend.name == "numpy"
    assert "finds no GPU" in reason


def test_cupy_asked_for_without_a_gpu_is_an_error_in_plain_words(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", array_module(devices=0))
    with pytest.raises(GeometryError, match="CuPy finds no GPU here"):
        select_backend("cupy")


def test_cupy_asked_for_without_cupy_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(GeometryError, match="pip install cupy"):
        select_backend("cupy")


def test_torch_asked_for_without_torch_is_an_error_in_plain_words(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(GeometryError, match="needs PyTorch"):
        select_backend("torch")
