"""The eigendecomposition alone: seconds and accuracy of each solver, size, precision and load."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from comparison.load import competing
from comparison.solvers import Solver
from machine import cpus_allowed
from unembedding.errors import GeometryError

LOADS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "idle": nullcontext,
    "busy": lambda: competing(cpus_allowed()),
}


@dataclass(frozen=True)
class Accuracy:
    """How well C = Q Λ Qᵀ holds; norms are Frobenius norms, computed in float64."""

    residual: float
    """‖C Q − Q Λ‖ / ‖C‖"""
    orthogonality: float
    """‖Qᵀ Q − I‖"""
    whitening_residual: float | None
    """max |W C W − I| of W = Q Λ^(−1/2) Qᵀ; None where an eigenvalue is not positive."""


@dataclass(frozen=True)
class Eigh:
    """A row of eigh.csv: one timed call, or the reason why there is none."""

    backend: str
    device: str
    size: int | None = None
    precision: str = ""
    load: str = ""
    repeat: int | None = None
    threads: int | None = None
    seconds: float | None = None
    residual: float | None = None
    orthogonality: float | None = None
    whitening_residual: float | None = None
    note: str = ""


def measure_eigh(
    solvers: Sequence[Solver],
    covariances: Mapping[int, np.ndarray],
    precisions: Sequence[str],
    loads: Iterable[str],
    repeats: int,
    threads: int,
) -> list[Eigh]:
    """Time every solver on every covariance (n × n, by n) in every precision, under every load.

    A first call of each, which is not timed, warms up and is checked for accuracy. Within a
    repeat the solvers take turns, so that none has the quiet minute for itself; a load begins
    with its first call and ends with its last.
    """
    rows: list[Eigh] = []
    calls: list[tuple[Solver, int, np.dtype, Accuracy]] = []
    for size, matrix in covariances.items():
        for dtype in map(np.dtype, precisions):
            for solver in solvers:
                try:
                    values, vectors = solver.backend.eigh(solver.backend.on_device(matrix), dtype)
                except GeometryError as error:
                    rows.append(_absent(solver, size, dtype.name, str(error)))
                else:
                    calls.append((solver, size, dtype, accuracy(matrix, values, vectors)))
    for load in loads:
        with LOADS[load]():
            for size in covariances:
                turns = [call for call in calls if call[1] == size]
                for repeat in range(1, repeats + 1):
                    for solver, _, dtype, found in turns:
                        seconds = seconds_of_eigh(solver, covariances[size], dtype)
                        place = (size, dtype.name, load, repeat, threads, seconds)
                        rows.append(
                            Eigh(solver.name, solver.backend.device, *place, **vars(found))
                        )
                print(f"eigh of {size}, {load}: done", file=sys.stderr, flush=True)
    return rows


def seconds_of_eigh(solver: Solver, matrix: np.ndarray, precision: np.dtype) -> float:
    """Return the seconds from a covariance on the device to a decomposition in NumPy's arrays."""
    on_device = solver.backend.on_device(matrix)  # a copy, since eigh overwrites it
    solver.backend.synchronize()
    start = time.perf_counter()
    solver.backend.eigh(on_device, precision)
    return time.perf_counter() - start


def accuracy(matrix: np.ndarray, values: np.ndarray, vectors: np.ndarray) -> Accuracy:
    """Return how well eigenvalues (n) and eigenvectors (n × n, columns) decompose a matrix."""
    values, vectors = values.astype(np.float64), vectors.astype(np.float64)
    identity = np.eye(len(values))
    residual = np.linalg.norm(matrix @ vectors - vectors * values) / np.linalg.norm(matrix)
    orthogonality = np.linalg.norm(vectors.T @ vectors - identity)
    whitening = None
    if values[0] > 0:
        inverse_sqrt = (vectors * values**-0.5) @ vectors.T
        whitening = float(np.abs(inverse_sqrt @ matrix @ inverse_sqrt - identity).max())
    return Accuracy(float(residual), float(orthogonality), whitening)


def _absent(solver: Solver, size: int, precision: str, why: str) -> Eigh:
    return Eigh(solver.name, solver.backend.device, size, precision, note=why)
