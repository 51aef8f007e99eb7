"""The whole job, backend by backend: from reading γ to writing g, and what share of it is eigh."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from comparison.solvers import Solver
from profiling import Stopwatch
from unembedding.backends import Backend
from unembedding.decomposition import decompose
from unembedding.transform import transform

SCRIPTS = Path(__file__).parents[1]
# Parts of the job, and the steps that decompose and transform name.
PARTS = {
    "read": ("read and verify", "mean"),
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
backend = BACKENDS[sys.argv[1]](sys.argv[2] or None)
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


def measure_stages(
    gammas: Mapping[int, Path],
    contestants: Callable[[int, str], Iterable[Solver]],
    precisions: Sequence[str],
    repeats: int,
    threads: int,
    rows: int | None,
    scratch: Path,
) -> list[Stages]:
    """Time the job on each γ (a file, by its width) with the contestants of its width."""
    started: dict[tuple[str, str], float] = {}
    measured = []
    for size, gamma in gammas.items():
        for precision in precisions:
            turns = list(contestants(size, precision))
            for solver in turns:
                if solver.family not in started:
                    started[solver.family] = seconds_to_start(solver)
            for repeat in range(1, repeats + 1):
                for solver in turns:
                    used, parts = run_job(gamma, solver.backend, precision, rows, scratch)
                    parts = {"start": started[solver.family], **parts}
                    total = sum(parts.values())
                    measured.append(
                        Stages(
                            solver.name,
                            solver.backend.device,
                            used,
                            size,
                            precision,
                            repeat,
                            threads,
                            **parts,
                            total=total,
                            without_eigh=total - parts["eigh"],
                            eigh_share=parts["eigh"] / total,
                        )
                    )
    return measured


def run_job(
    gamma: Path, backend: Backend, precision: str, rows: int | None, scratch: Path
) -> tuple[int, dict[str, float]]:
    """Decompose and transform γ in files; return how many rows were used, and seconds by part."""
    clock = Stopwatch()
    decomposition, causal = scratch / "decomposition.safetensors", scratch / "causal.safetensors"
    facts = decompose(gamma, decomposition, backend, precision, rows, clock)
    transform(gamma, decomposition, causal, backend, "pseudo_inverse", clock)
    return facts["rows"], {
        part: sum(clock.steps.get(step, 0.0) for step in steps) for part, steps in PARTS.items()
    }


def seconds_to_start(solver: Solver) -> float:
    """Return how long a process of its own takes until the backend has decomposed something."""
    line = [sys.executable, "-c", START, solver.family[0], solver.driver or ""]
    start = time.perf_counter()
    subprocess.run(line, env={**os.environ, "PYTHONPATH": str(SCRIPTS)}, check=True)
    return time.perf_counter() - start
