"""Every backend gives the same geometry, and says plainly where it cannot work."""

import json
import sys
import types

import numpy as np
import pytest
from matrices import load_file, straightforward, with_spectrum, write_gamma

from unembedding.backend_comparison.solvers import SOLVERS
from unembedding.backends import select_backend
from unembedding.backends.choice import measured_choice
from unembedding.backends.cupy_backend import CupyBackend
from unembedding.backends.numpy_backend import NumpyBackend
from unembedding.backends.torch_backend import TorchBackend
from unembedding.covariance import decompose
from unembedding.errors import GeometryError
from unembedding.machine import fingerprint, using_threads
from unembedding.tensors import files as tensor_file
from unembedding.transform import transform


def array_module(devices: int = 1, memory: int = 2**34) -> types.ModuleType:
    """A module with CuPy's interface, as far as it is used, that computes with NumPy.

    Like CuPy it refuses to mix its arrays with NumPy's without being asked. It notes the shapes
    that it is sent, in ``sent``.
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
        getDeviceCount=lambda: devices,
        getDeviceProperties=lambda _: {"name": b"Pretend GPU"},
        driverGetVersion=lambda: 13010,
        memGetInfo=lambda: (memory, 2**34),
        deviceSynchronize=lambda: None,
    )
    cupy.cuda = types.SimpleNamespace(runtime=runtime)
    cupy.get_default_memory_pool = lambda: types.SimpleNamespace(free_bytes=lambda: 0)
    cupy.sent = []
    cupy.ndarray = DeviceArray
    cupy.zeros = lambda shape: np.zeros(shape).view(DeviceArray)

    def asarray(a, dtype=None):
        cupy.sent.append(np.shape(a))
        return np.array(a, dtype).view(DeviceArray)

    cupy.asarray = asarray
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
    assert facts.spectrum.rank == 8
    assert facts.whitening_residual <= 1e-5


@pytest.mark.parametrize("backend", [CupyBackend], indirect=True)
def test_the_device_is_named_with_its_driver(backend):
    assert backend.device == "Pretend GPU (CUDA driver 13.1)"


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


def test_torch_on_cuda_asked_for_without_a_device_says_so():
    with pytest.raises(GeometryError, match="finds no CUDA device"):
        TorchBackend("cuda")


@pytest.mark.parametrize("driver", ["numpy", "evd", "evr", "evx"])
def test_every_driver_reads_the_upper_triangle_alone(driver):
    matrix = np.array([[2.0, 1.0], [np.nan, 2.0]], order="F")
    values, vectors = NumpyBackend(driver).eigh(matrix, np.dtype(np.float64))
    np.testing.assert_allclose(values, [1, 3])
    np.testing.assert_allclose(np.abs(vectors), np.sqrt(0.5))


@pytest.mark.parametrize(
    "backend", [NumpyBackend("evd"), TorchBackend("cpu")], ids=["evd", "torch"]
)
def test_the_workspace_is_exact_where_float32_cannot_count_it(backend):
    # 1 + 6n + 2n² is above 2^24 from n = 2895 on. Without off-diagonals the work itself is little.
    n, backend = 2900, NumpyBackend("evd")
    matrix = backend.on_device(np.diag(np.arange(1.0, n + 1)))
    with using_threads(1):  # two that wait for each other on a busy machine take far longer
        values, _ = backend.eigh(matrix, np.dtype(np.float32))
    np.testing.assert_allclose(values, np.arange(1, n + 1))


def test_torch_on_the_cpu_refuses_what_its_lapack_cannot_address():
    import torch

    with pytest.raises(GeometryError, match=r"32767.*at most 28000"):
        TorchBackend("cpu").eigh(torch.zeros(1).expand(32767, 32767), np.dtype(np.float64))


def test_torch_computes_with_the_threads_that_the_job_was_given():
    import torch

    before = torch.get_num_threads()
    with using_threads(1) as allotment:
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before
    assert {library["threads"] for library in allotment["blas"]} == {1}
    assert "torch" in {library["library"] for library in allotment["blas"]}


def test_a_gpu_is_sent_no_more_than_a_block_at_once(monkeypatch, tmp_path):
    cupy = array_module()
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr(tensor_file, "BLOCK_BYTES", 50 * 8 * 12)  # 50 rows
    source = write_gamma(tmp_path / "gamma", with_spectrum(330, np.ones(12)).astype(np.float32))
    decompose(source, tmp_path / "decomposition", CupyBackend(), "float64")
    transform(source, tmp_path / "decomposition", tmp_path / "causal", CupyBackend())
    blocks = [shape for shape in cupy.sent if len(shape) == 2 and shape != (12, 12)]
    assert set(blocks) == {(50, 12), (30, 12)}
    assert len(blocks) == 2 * 7  # the covariance, and g


@pytest.mark.parametrize(
    ("memory", "step"), [(100 * 2**20, "gram"), (200 * 2**20, "eigh"), (0, "products")]
)
def test_what_does_not_fit_a_gpu_is_refused_with_both_sizes(monkeypatch, memory, step):
    cupy = array_module(memory=memory)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    backend, n = CupyBackend(), 4096
    row, square = np.zeros(n), np.broadcast_to(np.float32(0), (n, n))
    calls = {
        "gram": lambda: backend.gram([], row, np.dtype(np.float64)),
        "eigh": lambda: backend.eigh(square, np.dtype(np.float64)),
        "products": lambda: list(backend.products([], row, square)),
    }
    message = rf"`{step}` of width 4096 needs about .* GiB on Pretend GPU.*{memory / 2**30:.2f} GiB"
    with pytest.raises(GeometryError, match=message):
        calls[step]()
    assert cupy.sent == []


def test_torch_counts_the_memory_that_it_keeps_as_free(monkeypatch):
    import torch

    backend = TorchBackend("cpu")
    backend.on_gpu = True
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (2**20, 2**30))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: 2**20)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 4 * 2**20)
    values, _ = backend.eigh(torch.eye(350, dtype=torch.float64), np.dtype(np.float64))  # 3.7 MiB
    assert len(values) == 350
    with pytest.raises(GeometryError, match="`eigh` of width 370"):
        backend.eigh(torch.eye(370, dtype=torch.float64), np.dtype(np.float64))  # 4.2 MiB


@pytest.fixture
def choice(tmp_path):
    """Writes a choice.json that took a solver at width 512, and returns its path."""

    def write(backend="numpy", driver="evr", machine=None):
        entry = {"size": 512, "precision": "float64", "backend": backend, "driver": driver}
        content = {
            "machine": machine or fingerprint(),
            "choices": [{**entry, "reason": "it was the fastest"}],
        }
        path = tmp_path / "choice.json"
        path.write_text(json.dumps(content))
        return path

    return write


@pytest.mark.parametrize("width", [256, 600, 1024])
def test_auto_takes_what_was_measured_near_the_width(choice, width):
    backend, reason = select_backend("auto", choice(), width)
    assert (backend.name, backend.driver) == ("numpy", "evr")
    assert "it was the fastest" in reason
    assert "choice.json" in reason


@pytest.mark.parametrize(
    ("change", "width", "precision", "why"),
    [
        ({}, 1025, "float64", "measured nothing near a width of 1025 in float64"),
        ({}, 255, "float64", "measured nothing near a width of 255 in float64"),
        ({}, 512, "float32", "measured nothing near a width of 512 in float32"),
        ({"machine": {"cpu": "abacus"}}, 512, "float64", "on another machine"),
        ({"backend": "cupy", "driver": None}, 512, "float64", "but CuPy is not installed"),
        ({"backend": "jax"}, 512, "float64", "chose 'jax' with 'evr', which is unknown here"),
        ({"backend": ["numpy"]}, 512, "float64", "cannot be used"),
        ({"backend": "torch", "driver": "tpu"}, 512, "float64", "'torch' with 'tpu', which"),
        ({"driver": "evz"}, 512, "float64", "chose 'numpy' with 'evz', which is unknown here"),
    ],
)
def test_a_choice_that_does_not_hold_is_left_with_a_reason(
    monkeypatch, choice, change, width, precision, why
):
    monkeypatch.setitem(sys.modules, "cupy", None)
    backend, reason = select_backend("auto", choice(**change), width, precision)
    assert (backend.name, backend.driver) == ("numpy", "evd")
    assert why in reason
    assert "NumPy on the CPU, because CuPy is not installed" in reason


@pytest.mark.parametrize("content", ["", "{}", '{"machine": {}}', "[1]"])
def test_a_damaged_choice_stops_nothing(tmp_path, content):
    path = tmp_path / "choice.json"
    path.write_text(content)
    backend, reason = select_backend("auto", path, 512)
    assert backend.name == "numpy"
    assert "choice.json" in reason


@pytest.mark.parametrize("solver", SOLVERS.values())
def test_whatever_competes_can_be_chosen(choice, solver):
    entry, reason = measured_choice(choice(*solver), 512, "float64")
    assert entry is not None, reason


def test_without_a_comparison_the_rule_decides(tmp_path):
    backend, reason = select_backend("auto", tmp_path / "choice.json", 512)
    assert backend.name == "numpy"
    assert "there is no comparison" in reason


def test_a_backend_asked_for_by_name_is_not_measured(choice):
    backend, reason = select_backend("numpy", choice(), 512)
    assert (backend.driver, reason) == ("evd", "numpy was asked for")
