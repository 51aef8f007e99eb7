"""The eigendecomposition alone: seconds and accuracy of each solver, size, precision and load."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from unembedding.backend_comparison.cpu_load import competing
from unembedding.backend_comparison.solvers import Solver
from unembedding.errors import GeometryError
from unembedding.machine import cpus_allowed

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


@dataclass(frozen=True)
class Call:
    """What is timed: a solver that was found to work on a covariance of this size."""

    solver: Solver
    matrix: np.ndarray
    precision: np.dtype
    accuracy: Accuracy


def measure_eigh(
    solvers: Sequence[Solver],
    covariances: Iterable[np.ndarray],
    precisions: Sequence[str],
    loads: Iterable[str],
    repeats: int,
    seconds: float,
    threads: int,
) -> list[Eigh]:
    """Time every solver on every covariance (n × n) in every precision, under every load.

    Under each load the calls are repeated ``repeats`` times, or until ``seconds`` are over.
    """
    rows, calls = _warm_up(solvers, covariances, precisions)
    for load in loads:
        with LOADS[load]():
            rows += _take_turns(calls, load, repeats, seconds, threads)
    return rows


def _warm_up(
    solvers: Sequence[Solver], covariances: Iterable[np.ndarray], precisions: Sequence[str]
) -> tuple[list[Eigh], list[Call]]:
    """Make each call once, which is not timed but checked; those that fail become rows at once."""
    rows, calls = [], []
    for matrix, precision, solver in product(covariances, map(np.dtype, precisions), solvers):
        backend = solver.backend
        try:
            found = accuracy(matrix, *backend.eigh(backend.on_device(matrix), precision))
        except GeometryError as error:
            place = (solver.name, backend.device, len(matrix), precision.name)
            rows.append(Eigh(*place, note=str(error)))
        else:
            calls.append(Call(solver, matrix, precision, found))
    return rows, calls


def _take_turns(
    calls: Sequence[Call], load: str, repeats: int, seconds: float, threads: int
) -> list[Eigh]:
    """Time all calls, then all of them again, so that none has the quiet minute for itself."""
    rows = []
    for repeat in rounds(repeats, seconds):
        for call in calls:
            rows.append(
                Eigh(
                    call.solver.name,
                    call.solver.backend.device,
                    len(call.matrix),
                    call.precision.name,
                    load,
                    repeat,
                    threads,
                    seconds_of_eigh(call.solver, call.matrix, call.precision),
                    **vars(call.accuracy),
                )
            )
        print(f"eigh, {load}, repeat {repeat}: done", file=sys.stderr, flush=True)
    return rows


def rounds(repeats: int, seconds: float) -> Iterator[int]:
    """Count from 1 to ``repeats``, but begin none after the first once ``seconds`` are over."""
    started = time.perf_counter()
    for repeat in range(1, repeats + 1):
        if repeat > 1 and time.perf_counter() - started > seconds:
            return
        yield repeat


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
