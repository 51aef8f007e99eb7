"""Which eigensolver is fastest, for real sizes: prints the tables of docs/benchmarks.md.

The comparison of `snakemake backends`, with the matrices of trained models: a table for every
size and load, the parts of a whole job, and the bars. On two cores the default takes about 20
minutes. Usage: python benchmarks/backends.py [--sizes 2048 4096] [--loads idle busy] [--repeats 3]
[--rows 50304].
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))
CORES = len(os.sched_getaffinity(0))
os.environ.setdefault("OMP_NUM_THREADS", str(CORES))
os.environ.setdefault("OPENBLAS_NUM_THREADS", str(CORES))

from unembedding.backend_comparison.comparing import compare  # noqa: E402
from unembedding.backend_comparison.measuring import LOADS, Eigh  # noqa: E402
from unembedding.backend_comparison.solvers import SOLVERS  # noqa: E402
from unembedding.backend_comparison.stages import PARTS, Stages  # noqa: E402
from unembedding.machine import cpu_model, gpu_models  # noqa: E402
from unembedding.records.serialization import read_table  # noqa: E402

PRECISIONS = ("float64", "float32")
ON_THE_CPU = [name for name in SOLVERS if name not in ("torch cuda", "cupy")]
RULE = "scipy evd"  # what `auto` takes on the CPU where nothing was measured


def seconds(rows: list[Eigh], **place: object) -> list[float]:
    """Return the repeats of one call."""
    return [
        row.seconds
        for row in rows
        if row.seconds is not None and all(getattr(row, k) == v for k, v in place.items())
    ]


def print_eigh(rows: list[Eigh], size: int, load: str) -> None:
    """Print seconds and accuracy of every solver at one size under one load."""
    print(f"\n### eigh, n = {size}, {load}\n")
    print("| backend | precision | median, s | spread | residual | orthogonality | whitening |")
    print("|---|---|---|---|---|---|---|")
    for name in SOLVERS:
        for precision in PRECISIONS:
            place = {"backend": name, "size": size, "precision": precision, "load": load}
            if found := seconds(rows, **place):
                row = next(r for r in rows if all(getattr(r, k) == v for k, v in place.items()))
                spread = (max(found) - min(found)) / median(found)
                whitening = "—" if row.whitening_residual is None else row.whitening_residual
                print(
                    f"| {name} | {precision} | {median(found):.2f} | {spread:.0%} | "
                    f"{row.residual} | {row.orthogonality} | {whitening} |"
                )


def print_stages(rows: list[Stages], size: int) -> None:
    """Print the parts of a whole job of one width, medians over repeats."""
    rows = [row for row in rows if row.size == size]
    parts = ["start", *PARTS, "total", "without_eigh"]
    print(f"\n### A whole job, V = {rows[0].rows}, d = {size}, seconds\n")
    print(f"| backend | precision | {' | '.join(parts).replace('_', ' ')} | eigh's share |")
    print("|---" * (len(parts) + 3) + "|")
    for backend, precision in dict.fromkeys((row.backend, row.precision) for row in rows):
        jobs = [row for row in rows if (row.backend, row.precision) == (backend, precision)]
        cells = [f"{median(getattr(row, part) for row in jobs):.2f}" for part in parts]
        share = median(row.eigh_share for row in jobs)
        print(f"| {backend} | {precision} | {' | '.join(cells)} | {share:.0%} |")


def print_bars(rows: list[Eigh], choices: list[dict], size: int, load: str) -> None:
    """Print how the chosen driver stands to the fastest on the CPU, and to NumPy's own eigh."""
    print(f"\n### Bars, n = {size}, {load}\n")
    print("| precision | chosen | ÷ fastest CPU (≤ 1.05) | numpy ÷ chosen | evd ÷ fastest CPU |")
    print("|---|---|---|---|---|")
    for precision in PRECISIONS:
        place = {"size": size, "precision": precision, "load": load}
        taken = {n: median(s) for n in SOLVERS if (s := seconds(rows, backend=n, **place))}
        fastest = min(taken[name] for name in ON_THE_CPU if name in taken)
        (chosen,) = [
            c["solver"] for c in choices if (c["size"], c["precision"]) == (size, precision)
        ]
        bar = " (≥ 1.3)" if precision == "float32" else ""
        print(
            f"| {precision} | {chosen} | {taken[chosen] / fastest:.2f} | "
            f"{taken['numpy'] / taken[chosen]:.2f}{bar} | {taken[RULE] / fastest:.2f} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[2048, 4096])
    parser.add_argument("--loads", nargs="+", choices=LOADS, default=["idle", "busy"])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rows", type=int, default=50304)
    options = parser.parse_args()
    device = ", ".join([f"{cpu_model()}, {CORES} cores", *(gpu_models() or ["no GPU"])])
    print(f"{device}; load {os.getloadavg()[0]:.1f} at the start")
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        targets = {
            "eigh": folder / "eigh.csv",
            "stages": folder / "stages.csv",
            "choice": folder / "choice.json",
        }
        compare(
            targets=targets,
            scratch=folder / "scratch",
            sizes=options.sizes,
            precisions=PRECISIONS,
            loads=options.loads,
            repeats=options.repeats,
            seconds=float("inf"),
            threads=CORES,
            rows=options.rows,
        )
        eigh = read_table(targets["eigh"], Eigh)
        stages = read_table(targets["stages"], Stages)
        choices = json.loads(targets["choice"].read_text())["choices"]
    for size in options.sizes:
        for load in options.loads:
            print_eigh(eigh, size, load)
        print_stages(stages, size)
        print_bars(eigh, choices, size, options.loads[0])
    for row in eigh:
        if row.note:
            print(f"\nNot measured: {row.backend} at {row.size or 'any size'}: {row.note}")


if __name__ == "__main__":
    main()
