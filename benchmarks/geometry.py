"""How close the geometry branch is to the machine's limit: prints the tables of docs/benchmarks.md.

Three contestants, interleaved in one process on one matrix of 50304 rows, best of three:

* the workflow: decompose and transform, as the rules run them, reading and writing files;
* the floor: its three BLAS/LAPACK calls alone (syrk, eigh, gemm) in the same precision;
* the straightforward version: center in memory, full gemm covariance, numpy.linalg.eigh in
  float32, Q · diag · Qᵀ, one gemm.

Peak memory is measured in processes of their own. Usage: python benchmarks/geometry.py [--widths
2048 4096] [--repeats 3] [--rows 50304].
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]
CORES = len(os.sched_getaffinity(0))
os.environ.setdefault("OMP_NUM_THREADS", str(CORES))
os.environ.setdefault("OPENBLAS_NUM_THREADS", str(CORES))

import numpy as np  # noqa: E402
from scipy.linalg import blas, eigh  # noqa: E402

from unembedding.backend_comparison.matrices import write_unembedding  # noqa: E402
from unembedding.backends.numpy_backend import NumpyBackend  # noqa: E402
from unembedding.blas import lesser_kernels  # noqa: E402
from unembedding.blas import loaded as blas_loaded  # noqa: E402
from unembedding.covariance import decompose  # noqa: E402
from unembedding.errors import GeometryError  # noqa: E402
from unembedding.extraction import UNEMBEDDING  # noqa: E402
from unembedding.files import replacing  # noqa: E402
from unembedding.machine import cpu_model  # noqa: E402
from unembedding.stopwatch import Stopwatch  # noqa: E402
from unembedding.tensors.files import TensorFile  # noqa: E402
from unembedding.transform import transform  # noqa: E402
from unembedding.whitening import G  # noqa: E402

CONDITION = 1e5  # as large as trained models have; float32 still tells it from a singular matrix


def straightforward(gamma_file: Path, folder: Path) -> dict[str, float]:
    """What one would write first; returns the seconds of its steps."""
    clock = Stopwatch()
    with clock("read"):
        gamma = TensorFile(gamma_file).read(UNEMBEDDING, 2)
    with clock("center"):
        gamma -= gamma.mean(0)
    with clock("covariance"):
        covariance = blas.sgemm(1 / len(gamma), gamma.T, gamma.T, trans_b=True)
    with clock("eigh"):
        values, vectors = np.linalg.eigh(covariance)
    with clock("inverse square root"):
        inverse_sqrt = vectors @ np.diag(1 / np.sqrt(np.abs(values))) @ vectors.T
    with clock("transform"):
        g = gamma @ inverse_sqrt
    with clock("write"):
        g.tofile(folder / "straightforward.bin")
    return clock.steps


def floor(gamma_file: Path, precision: str) -> dict[str, float]:
    """syrk, eigh and gemm alone, in memory, blocks as large as the workflow's."""
    dtype = np.dtype(precision)
    file = TensorFile(gamma_file)
    rows, width = file.tensor(UNEMBEDDING, 2).shape
    clock = Stopwatch()
    syrk = blas.dsyrk if dtype == np.float64 else blas.ssyrk
    total = np.zeros((width, width), dtype, order="F")
    for block in file.blocks(UNEMBEDDING):
        converted = block.astype(dtype)
        with clock("syrk"):
            total = syrk(1.0, converted.T, beta=1.0, c=total, overwrite_c=True)
    total /= rows
    with clock("eigh"):
        eigh(total, lower=False, driver="evd", overwrite_a=True, check_finite=False)
    matrix = np.eye(width, dtype=np.float32)
    for block in file.blocks(UNEMBEDDING):
        with clock("gemm"):
            block @ matrix
    return clock.steps


def workflow(gamma_file: Path, folder: Path, precision: str) -> tuple[dict[str, float], float]:
    """decompose and transform; returns the seconds of their steps and the whitening residual."""
    clock = Stopwatch()
    decomposition, causal = folder / "decomposition.safetensors", folder / "causal.safetensors"
    decompose(gamma_file, decomposition, NumpyBackend(), precision, clock=clock)
    facts = transform(gamma_file, decomposition, causal, NumpyBackend(), clock=clock)
    return clock.steps, facts.whitening_residual


def exact_residual(causal: Path) -> float:
    """max |gᵀg / V − I|, in float64 throughout."""
    file = TensorFile(causal)
    rows, width = file.tensor(G, 2).shape
    total = np.zeros((width, width))
    for block in file.blocks(G):
        wide = block.astype(np.float64)
        total += wide.T @ wide
    return float(np.abs(total / rows - np.eye(width)).max())


def best(runs: list[dict[str, float]]) -> float:
    return min(sum(run.values()) for run in runs)


def compare(rows: int, width: int, repeats: int, folder: Path) -> None:
    """Print the table of one width."""
    gamma_file = folder / "unembedding.safetensors"
    write_unembedding(gamma_file, rows, width, CONDITION)
    contestants: dict[str, Callable[[], dict[str, float]]] = {
        "straightforward (float32)": lambda: straightforward(gamma_file, folder)
    }
    residuals: dict[str, float] = {}

    def run(precision: str) -> dict[str, float]:
        steps, residuals[precision] = workflow(gamma_file, folder, precision)
        if f"{precision} exact" not in residuals:  # the same in every repeat
            residuals[f"{precision} exact"] = exact_residual(folder / "causal.safetensors")
        return steps

    for precision in ("float64", "float32"):
        contestants[f"floor, {precision}"] = lambda p=precision: floor(gamma_file, p)
        contestants[f"workflow, {precision}"] = lambda p=precision: run(p)
    results: dict[str, list[dict[str, float]]] = {name: [] for name in contestants}
    for _ in range(repeats):
        for name, contestant in contestants.items():
            results[name].append(contestant())
    print(f"\n### V = {rows}, d = {width}, condition number {CONDITION:.0e}, best of {repeats}\n")
    print("| | seconds | spread | ÷ floor | straightforward ÷ | residual | steps of the best run |")
    print("|---|---|---|---|---|---|---|")
    plain = best(results["straightforward (float32)"])
    for name, runs in results.items():
        precision = name.rpartition(" ")[2]
        seconds = best(runs)
        totals = [best([r]) for r in runs]
        spread = (max(totals) - min(totals)) / statistics.median(totals)
        limit = best(results[f"floor, {precision}"]) if precision in residuals else None
        ratio = f"{seconds / limit:.2f}" if limit and "workflow" in name else ""
        residual = f"{residuals[precision + ' exact']:.1e}" if "workflow" in name else ""
        steps = ", ".join(f"{k} {v:.2f}" for k, v in min(runs, key=lambda r: best([r])).items())
        print(
            f"| {name} | {seconds:.2f} | {spread:.0%} | {ratio} | {plain / seconds:.2f} | "
            f"{residual} | {steps} |"
        )


def residuals(folder: Path) -> None:
    """Print how well each precision whitens, by condition number."""
    print("\n### Whitening residual, V = 20000, d = 1024, measured in float64\n")
    print("| condition number | float64 | float32 |")
    print("|---|---|---|")
    for condition in (1e2, 1e4, 1e6):
        write_unembedding(folder / "unembedding.safetensors", 20000, 1024, condition)
        cells = []
        for precision in ("float64", "float32"):
            try:
                workflow(folder / "unembedding.safetensors", folder, precision)
                cells.append(f"{exact_residual(folder / 'causal.safetensors'):.1e}")
            except GeometryError:
                cells.append("refused: rank")
        print(f"| {condition:.0e} | {cells[0]} | {cells[1]} |")


DEFICIENT: dict[str, Callable[[np.ndarray], tuple[np.ndarray, int]]] = {
    "fewer rows than columns": lambda x: (x[: x.shape[1] // 2], x.shape[1] // 2 - 1),
    "a product of rank d / 2": lambda x: (
        x[:, : x.shape[1] // 2] @ x[: x.shape[1] // 2],
        x.shape[1] // 2,
    ),
    "a constant column": lambda x: (np.c_[x[:, 1:], np.full(len(x), 3.0)], x.shape[1] - 1),
    "equal columns, far from zero": lambda x: (np.c_[x[:, 1:], x[:, 1]] + 50, x.shape[1] - 1),
}


def rank_noise() -> None:
    """Print how far rounding moves eigenvalues that should be zero, in units of ε λmax."""
    print("\n### Eigenvalues that should be zero, largest / (ε λmax), d = 8 to 1024\n")
    print("| | float64 | float32 |")
    print("|---|---|---|")
    backend, rng = NumpyBackend(), np.random.default_rng(1)
    for kind, spoil in DEFICIENT.items():
        worst = {"float64": 0.0, "float32": 0.0}
        for width in (8, 32, 128, 512, 1024):
            for _ in range(3 if width > 200 else 20):
                gamma, rank = spoil(rng.standard_normal((4 * width, width)))
                gamma = gamma.astype(np.float32)
                mean = gamma.mean(0, dtype=np.float64)
                for precision in worst:
                    dtype = np.dtype(precision)
                    values, _ = backend.eigh(backend.gram([gamma], mean, dtype), dtype)
                    noise = np.abs(values[: width - rank]).max() / values[-1]
                    worst[precision] = max(worst[precision], noise / np.finfo(dtype).eps)
        print(f"| {kind} | {worst['float64']:.1f} | {worst['float32']:.1f} |")


def files(widths: list[int], rows: int, folder: Path) -> None:
    """Print what reading γ and writing as much cost, as the workflow does both, four times."""
    print("\n### Reading γ and writing as much, nothing else\n")
    print("| d | MB | read, s | write, s |")
    print("|---|---|---|---|")
    for width in widths:
        write_unembedding(folder / "unembedding.safetensors", rows, width, CONDITION)
        clocks = [Stopwatch() for _ in range(4)]
        for clock in clocks:
            with clock("read"):
                gamma = TensorFile(folder / "unembedding.safetensors").read(UNEMBEDDING, 2)
            with clock("write"), replacing(folder / "copy.bin") as file:
                file.write(gamma)
        read, write = (
            ", ".join(f"{clock.steps[step]:.2f}" for clock in clocks) for step in ("read", "write")
        )
        print(f"| {width} | {gamma.nbytes / 1e6:.0f} | {read} | {write} |")


def peak_memory(rows: int, width: int, stage: str, folder: Path) -> float:
    """Return the peak resident memory of one stage in a process of its own, in MB."""
    code = f"""
import re, sys
from pathlib import Path
sys.path.insert(0, {str(ROOT / "src")!r})
from unembedding.backends.numpy_backend import NumpyBackend
from unembedding.covariance import decompose
from unembedding.transform import transform
folder = Path({str(folder)!r})
gamma, decomposition = folder / "unembedding.safetensors", folder / "decomposition.safetensors"
if {stage!r} == "decompose":
    decompose(gamma, decomposition, NumpyBackend(), "float64")
else:
    transform(gamma, decomposition, folder / "causal.safetensors", NumpyBackend())
# Not getrusage, in which a new process begins with what its parent has used.
print(int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) / 1024)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return float(done.stdout)


def memory(widths: list[int], rows: int, folder: Path) -> None:
    """Print peak memory against the bound of 4 d² float64 + 512 MB, for two heights."""
    print("\n### Peak memory, float64\n")
    print("| V | d | decompose, MB | transform, MB | 4 d² float64 + 512 MB |")
    print("|---|---|---|---|---|")
    for width in widths:
        for height in (rows // 4, rows):
            write_unembedding(folder / "unembedding.safetensors", height, width, CONDITION)
            used = [peak_memory(height, width, s, folder) for s in ("decompose", "transform")]
            bound = 4 * width**2 * 8 / 2**20 + 512
            print(f"| {height} | {width} | {used[0]:.0f} | {used[1]:.0f} | {bound:.0f} |")


def extraction(folder: Path) -> None:
    """Print the bytes that a 1 GB checkpoint costs, counted at a loopback server, and the time."""
    from hub import LoopbackHub
    from safetensors.numpy import save_file

    checkpoint = folder / "checkpoint"
    checkpoint.mkdir()
    head = np.ones((50304, 1024), np.float32)
    body = {f"model.layers.{i}.mlp.weight": np.zeros((20000, 1024), np.float32) for i in range(10)}
    save_file({"lm_head.weight": head, **body}, checkpoint / "model.safetensors")
    (checkpoint / "config.json").write_text('{"model_type": "olmo"}')
    size = (checkpoint / "model.safetensors").stat().st_size
    script = f"""
import sys, time
started = time.perf_counter()
sys.path.insert(0, {str(ROOT / "src")!r})
from pathlib import Path
from unembedding.extraction import extract_unembedding, open_source
imported = time.perf_counter()
if sys.argv[1] == "-":
    source = open_source(Path({str(checkpoint)!r}), None, "local", "local", "tensor")
else:
    source = open_source(None, "lab/model", "main", sys.argv[1], "tensor")
opened = time.perf_counter()
made_of = {{"repo": "lab/model", "revision": "main", "commit": sys.argv[1]}}
extract_unembedding(source, Path({str(folder / "gamma.safetensors")!r}), made_of)
print(opened - started, "torch" in sys.modules, "transformers" in sys.modules)
"""
    print("\n### Extraction from a checkpoint of one file\n")
    print("| | file, MB | tensor, MB | bytes beside the tensor | start, s | whole process, s |")
    print("|---|---|---|---|---|---|")
    with LoopbackHub() as hub:
        commit = hub.add("lab/model", "main", checkpoint)
        for name, argument in {"local": "-", "loopback Hub": commit}.items():
            before = hub.bytes_sent("model.safetensors")
            started = time.perf_counter()
            done = subprocess.run(
                [sys.executable, "-c", script, argument],
                env={**os.environ, "HF_ENDPOINT": hub.endpoint},
                capture_output=True,
                text=True,
                check=True,
            )
            seconds = time.perf_counter() - started
            start, *imported = done.stdout.split()
            assert imported == ["False", "False"]
            beside = hub.bytes_sent("model.safetensors") - before - head.nbytes
            shown = beside if argument != "-" else "—"
            print(
                f"| {name} | {size / 1e6:.0f} | {head.nbytes / 1e6:.0f} | {shown} | "
                f"{float(start):.2f} | {seconds:.2f} |"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--widths", type=int, nargs="+", default=[2048, 4096])
    parser.add_argument("--rows", type=int, default=50304)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    versions = f"NumPy {np.__version__}, Python {sys.version.split()[0]}"
    kernels = {f"{e['library']}: {e['kernel']}" for e in blas_loaded()}
    print("Kernels: " + ", ".join(sorted(kernels)))
    for warning in lesser_kernels(blas_loaded()):
        print(f"Warning: {warning}")
    print(f"{cpu_model()}, {CORES} cores; {versions}; load {os.getloadavg()[0]:.1f} at the start")
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        for width in options.widths:
            compare(options.rows, width, options.repeats, folder)
        residuals(folder)
        rank_noise()
        memory(options.widths, options.rows, folder)
        files(options.widths, options.rows, folder)
        extraction(folder)


if __name__ == "__main__":
    main()
