"""The whole job, backend by backend: from reading γ to writing g, and what share of it is eigh."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from unembedding.backend_comparison.measuring import rounds
from unembedding.backend_comparison.solvers import Solver
from unembedding.covariance import decompose
from unembedding.stopwatch import Stopwatch
from unembedding.transform import transform

SOURCES = Path(__file__).parents[2]
# Parts of the job, and the steps that decompose and transform name.
PARTS = {
    "read": ("verify and mean", "verify and read"),
    "covariance": ("covariance",),
    "eigh": ("eigh",),
    "transform": ("inverse square root", "transform"),
    "write": ("write",),
    "check": ("whitening residual",),
}
START = """
import sys
import numpy as np
from unembedding.backends import BACKENDS
backend = BACKENDS[sys.argv[1]].make(sys.argv[2] or None)
backend.eigh(backend.on_device(np.eye(2)), np.dtype(np.float64))
"""


@dataclass(frozen=True)
class Stages:
    """A row of stages.csv: the seconds of one job, in its parts."""

    backend: str
    device: str
    rows: int
    size: int
    precision: str
    repeat: int
    threads: int
    start: float
    """Until a new process can compute: imports, and the device's own beginnings."""
    read: float
    covariance: float
    eigh: float
    transform: float
    write: float
    check: float
    total: float
    without_eigh: float
    """What would be left if eigh were free."""
    eigh_share: float


@dataclass(frozen=True)
class Job:
    """What is timed: the whole of a γ, in a file, with one solver."""

    solver: Solver
    gamma: Path
    size: int
    precision: str


def median_parts(rows: Sequence[Stages]) -> dict[str, dict[str, dict[str, float]]]:
    """Return the median seconds of each part, by precision and solver, of the largest size."""
    size = max(row.size for row in rows)
    jobs: dict[str, dict[str, list[Stages]]] = {}
    for row in rows:
        if row.size == size:
            jobs.setdefault(row.precision, {}).setdefault(row.backend, []).append(row)
    return {
        precision: {
            solver: {part: median(getattr(r, part) for r in own) for part in ("start", *PARTS)}
            for solver, own in solvers.items()
        }
        for precision, solvers in jobs.items()
    }


def measure_stages(
    jobs: Sequence[Job],
    repeats: int,
    seconds: float,
    threads: int,
    rows: int | None,
    scratch: Path,
) -> list[Stages]:
    """Time all jobs in turns, ``repeats`` times or until ``seconds`` are over."""
    started = {job.solver.family: job.solver for job in jobs}
    start = {family: seconds_to_start(solver) for family, solver in started.items()}
    measured = []
    for repeat in rounds(repeats, seconds):
        for job in jobs:
            used, parts = run_job(job, rows, scratch)
            parts = {"start": start[job.solver.family], **parts}
            total = sum(parts.values())
            measured.append(
                Stages(
                    job.solver.name,
                    job.solver.backend.device,
                    used,
                    job.size,
                    job.precision,
                    repeat,
                    threads,
                    **parts,
                    total=total,
                    without_eigh=total - parts["eigh"],
                    eigh_share=parts["eigh"] / total,
                )
            )
    return measured


def run_job(job: Job, rows: int | None, scratch: Path) -> tuple[int, dict[str, float]]:
    """Decompose and transform γ in files; return how many rows were used, and seconds by part."""
    backend = job.solver.backend
    clock = Stopwatch()
    decomposition, causal = scratch / "decomposition.safetensors", scratch / "causal.safetensors"
    facts = decompose(job.gamma, decomposition, backend, job.precision, rows, clock)
    transform(job.gamma, decomposition, causal, backend, "pseudo_inverse", clock)
    if clock.steps.keys() != {step for steps in PARTS.values() for step in steps}:
        raise RuntimeError(f"the stages are no longer made of the steps of PARTS: {clock.steps}")
    return facts.rows, {
        part: sum(clock.steps[step] for step in steps) for part, steps in PARTS.items()
    }


def seconds_to_start(solver: Solver) -> float:
    """Return how long a process of its own takes until the backend has decomposed something."""
    line = [sys.executable, "-c", START, solver.family[0], solver.driver or ""]
    start = time.perf_counter()
    subprocess.run(line, env={**os.environ, "PYTHONPATH": str(SOURCES)}, check=True)
    return time.perf_counter() - start
