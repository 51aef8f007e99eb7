"""The comparison from its settings to its files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path

import numpy as np

from unembedding.backend_comparison.choosing import choose, conclusions, fastest_of_families
from unembedding.backend_comparison.matrices import covariance, covariance_of, write_unembedding
from unembedding.backend_comparison.measuring import Eigh, measure_eigh
from unembedding.backend_comparison.solvers import solvers_here
from unembedding.backend_comparison.stages import Job, Stages, measure_stages
from unembedding.files import write_json
from unembedding.machine import fingerprint, using_threads
from unembedding.records.serialization import write_table

DIGITS = 4  # of a measured number that mean something


def compare(
    targets: Mapping[str, Path],
    scratch: Path,
    sizes: Sequence[int],
    precisions: Sequence[str],
    loads: Sequence[str],
    repeats: int,
    seconds: float,
    threads: int,
    rows: int | None,
    checkpoint: Path | None = None,
) -> None:
    """Write the targets ``eigh``, ``stages`` (CSV) and ``choice`` (JSON).

    Decomposes random covariances of the sizes and does whole jobs on random γ of ``rows`` rows,
    or, with ``checkpoint``, the γ in that file and its leading columns. The first of ``loads`` is
    the one that the choice is made for. ``seconds`` bounds the repeats of each kind of measurement.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    solvers, absent = solvers_here()
    with using_threads(threads) as used:
        if checkpoint is None:
            covariances = {size: covariance(size) for size in sizes}
            gammas = {size: scratch / f"{size}.safetensors" for size in sizes}
            for size, path in gammas.items():
                write_unembedding(path, rows or size, size)
        else:
            covariances = leading(covariance_of(checkpoint, rows), sizes)
            gammas = {max(covariances): checkpoint}
        matrices = covariances.values()
        eigh = measure_eigh(solvers, matrices, precisions, loads, repeats, seconds, threads)
        jobs = [
            Job(solver, gamma, size, precision)
            for (size, gamma), precision in product(gammas.items(), precisions)
            for solver in fastest_of_families(eigh, solvers, size, precision, loads[0])
        ]
        stages = measure_stages(jobs, repeats, seconds, threads, rows, scratch)
    choices = choose(eigh, stages, loads[0])
    eigh += [Eigh(name, "", note=why) for name, why in absent.items()]
    write_table(targets["eigh"], Eigh, eigh, DIGITS)
    write_table(targets["stages"], Stages, stages, DIGITS)
    machine = fingerprint()
    content = {
        "machine": machine,
        "threads": threads,
        "blas": used["blas"],
        "warnings": used["warnings"],
        "choices": choices,
        "conclusions": {
            **conclusions(eigh, stages, choices),
            "machine": f"{threads} threads of {machine['cpu']} with {machine['cores']} cores",
        },
    }
    write_json(targets["choice"], content)


def leading(matrix: np.ndarray, sizes: Sequence[int]) -> dict[int, np.ndarray]:
    """Return a covariance (d × d) and those of its first columns, for each size below d."""
    width = len(matrix)
    return {n: matrix[:n, :n] for n in sorted({n for n in sizes if n < width} | {width})}
