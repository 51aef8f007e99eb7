"""What follows from the measurements: a choice for each width and precision, and sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from comparison.measuring import Eigh
from comparison.solvers import SOLVERS, Solver
from comparison.stages import Stages

Key = tuple[str, int, str, str]  # solver, size, precision, load


def median_seconds(rows: Sequence[Eigh]) -> dict[Key, float]:
    """Return the median over repeats of the seconds of eigh."""
    seconds: dict[Key, list[float]] = {}
    for row in rows:
        if row.seconds is not None and row.size is not None:
            key = (row.backend, row.size, row.precision, row.load)
            seconds.setdefault(key, []).append(row.seconds)
    return {key: median(values) for key, values in seconds.items()}


def fastest_of_families(
    rows: Sequence[Eigh], solvers: Sequence[Solver], size: int, precision: str, load: str
) -> list[Solver]:
    """Return the fastest solver of each backend and device."""
    seconds = median_seconds(rows)
    best: dict[tuple[str, str], tuple[float, Solver]] = {}
    for solver in solvers:
        taken = seconds.get((solver.name, size, precision, load))
        if taken is not None and taken < best.get(solver.family, (float("inf"),))[0]:
            best[solver.family] = (taken, solver)
    return [solver for _, solver in best.values()]


def choose(eigh: Sequence[Eigh], stages: Sequence[Stages], load: str) -> list[dict[str, Any]]:
    """Return the entries of choice.json: for each size and precision the fastest whole job.

    A job costs what its backend takes beside eigh, from a process's start to the last byte
    written, and the eigh of its solver, as measured alone: far more calls stand behind that.
    """
    alone = median_seconds(eigh)
    beside: dict[tuple[int, str, str], list[float]] = {}
    for row in stages:
        beside.setdefault((row.size, row.precision, row.backend), []).append(row.without_eigh)
    choices = []
    for size, precision in dict.fromkeys((s, p) for s, p, _ in beside):
        jobs = {
            solver: median(seconds) + alone[solver, size, precision, load]
            for (s, p, solver), seconds in beside.items()
            if (s, p) == (size, precision)
        }
        best = min(jobs, key=jobs.__getitem__)
        backend, driver = SOLVERS[best]
        choices.append(
            {
                "size": size,
                "precision": precision,
                "solver": best,
                "backend": backend,
                "driver": driver,
                "reason": f"{best} was fastest at width {size} in {precision}: "
                + ", ".join(f"{name} {seconds:.2f} s" for name, seconds in ranked(jobs))
                + " for a whole job",
            }
        )
    return choices


def ranked(seconds: Mapping[str, float]) -> list[tuple[str, float]]:
    """Return names and seconds, fastest first."""
    return sorted(seconds.items(), key=lambda item: item[1])


def conclusions(
    eigh: Sequence[Eigh], stages: Sequence[Stages], choices: Sequence[Mapping[str, Any]]
) -> dict[str, str]:
    """Return what each plot says of this machine, in a sentence or two."""
    return {
        "eigh": " ".join([_fastest(eigh), _absent(eigh)]).strip(),
        "load": _under_load(eigh),
        "stages": _share(stages, choices),
    }


def _fastest(rows: Sequence[Eigh]) -> str:
    seconds = median_seconds(rows)
    largest = max(size for _, size, _, _ in seconds)
    first = next(load for _, _, _, load in seconds)
    parts = []
    for precision in dict.fromkeys(p for _, _, p, _ in seconds):
        times = {s: t for (s, n, p, x), t in seconds.items() if (n, p, x) == (largest, precision, first)}
        order = ranked(times)
        others = ", ".join(f"{name} {taken:.2g} s" for name, taken in order[1:])
        beside = f" (others: {others})" if others else ""
        parts.append(f"in {precision} {order[0][0]} with {order[0][1]:.2g} s{beside}")
    return f"The fastest at n = {largest}, {first}: {'; '.join(parts)}."


def _absent(rows: Sequence[Eigh]) -> str:
    notes = {row.backend: row.note for row in rows if row.note}
    listed = "; ".join(f"{name} ({why.rstrip('.')})" for name, why in notes.items())
    return f"Not measured: {listed}." if listed else ""


def _under_load(rows: Sequence[Eigh]) -> str:
    seconds = median_seconds(rows)
    slower: dict[str, float] = {}
    first, *others = dict.fromkeys(load for _, _, _, load in seconds)
    if not others:
        return f"Only {first} was measured."
    largest = max(size for _, size, _, _ in seconds)
    parts = []
    for precision in dict.fromkeys(p for _, _, p, _ in seconds):
        before, under = (
            {s: t for (s, n, p, x), t in seconds.items() if (n, p, x) == (largest, precision, load)}
            for load in (first, others[0])
        )
        slower = {name: under[name] / before[name] for name in before}
        (least, by), (most, at_most) = ranked(slower)[0], ranked(slower)[-1]
        winner, still = ranked(before)[0][0], ranked(under)[0][0]
        kept = f"{winner} stays the fastest" if winner == still else f"{still} is then the fastest"
        parts.append(
            f"in {precision} eigh takes {by:.1f} ({least}) to {at_most:.1f} ({most}) times as "
            f"long, and {kept}"
        )
    return f"With every core taken by another job, at n = {largest}: {'; '.join(parts)}."


def _share(rows: Sequence[Stages], choices: Sequence[Mapping[str, Any]]) -> str:
    largest = max(row.size for row in rows)
    parts = []
    for choice in choices:
        chosen = [
            row
            for row in rows
            if (row.size, row.precision, row.backend)
            == (largest, choice["precision"], choice["solver"])
        ]
        if choice["size"] == largest and chosen:
            total = median(row.total for row in chosen)
            left = median(row.without_eigh for row in chosen)
            parts.append(
                f"in {choice['precision']} the fastest is {choice['solver']}, and eigh is "
                f"{1 - left / total:.0%} of its {total:.2f} s: were it free, {left:.2f} s would "
                "remain"
            )
    return f"For {rows[0].rows} rows of width {largest}: {'; '.join(parts)}."
