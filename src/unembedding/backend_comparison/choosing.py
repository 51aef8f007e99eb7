"""What follows from the measurements: a choice for each width and precision, and sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from unembedding.backend_comparison.measuring import Eigh
from unembedding.backend_comparison.solvers import SOLVERS, Solver
from unembedding.backend_comparison.stages import Stages, median_parts

NOISE = 1.1  # a smaller ratio of times says nothing
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
    """Return what each plot says of this machine, in sentences."""
    return {
        "eigh": _text(_fastest(eigh), _once(eigh), _unquiet(eigh), _absent(eigh)),
        "load": _text(_under_load(eigh), _once(eigh)),
        "stages": _text(_share(stages, choices), _once(stages)),
    }


def _text(*sentences: str) -> str:
    return " ".join(filter(None, sentences))


def _at_largest(rows: Sequence[Eigh]) -> tuple[int, dict[str, dict[str, dict[str, float]]]]:
    """Return the largest size, and its seconds by load, precision and solver."""
    seconds = median_seconds(rows)
    largest = max(size for _, size, _, _ in seconds)
    table: dict[str, dict[str, dict[str, float]]] = {}
    for (solver, size, precision, load), taken in seconds.items():
        if size == largest:
            table.setdefault(load, {}).setdefault(precision, {})[solver] = taken
    return largest, table


def _fastest(rows: Sequence[Eigh]) -> str:
    size, table = _at_largest(rows)
    load, by_precision = next(iter(table.items()))
    parts = []
    for precision, seconds in by_precision.items():
        (best, least), *others = ranked(seconds)
        behind = ", ".join(f"{name} {taken / least:.2f} ×" for name, taken in others)
        parts.append(f"in {precision} {best} with {least:.2g} s" + (f" ({behind})" * bool(behind)))
    return f"The fastest eigh at n = {size}, {load}: {'; '.join(parts)}."


def _once(rows: Sequence[Eigh] | Sequence[Stages]) -> str:
    """Say so where the largest size, of which the sentences are, was measured once."""
    largest = max(row.size or 0 for row in rows)
    repeats = Counter(
        (row.backend, row.precision, getattr(row, "load", ""))
        for row in rows
        if row.size == largest and getattr(row, "seconds", 0) is not None
    )
    if min(repeats.values()) > 1:
        return ""
    return (
        f"At n = {largest} some or all were measured once, which tells no spread: raise `seconds` "
        "and `repeats` before you rely on it."
    )


def _unquiet(rows: Sequence[Eigh]) -> str:
    """Say so where repeats of one call on the idle machine differ by more than half."""
    repeats: dict[tuple[Any, ...], list[float]] = {}
    for row in rows:
        if row.load == "idle" and row.seconds is not None:
            key = (row.backend, row.size, row.precision)
            repeats.setdefault(key, []).append(row.seconds)
    spreads = [max(seconds) / min(seconds) for seconds in repeats.values()]
    if not spreads or median(spreads) < 1.5:
        return ""
    return (
        "The machine was not idle: repeats of one call differ by a factor of "
        f"{median(spreads):.1f} in the median. Compare again when it is quiet."
    )


def _absent(rows: Sequence[Eigh]) -> str:
    notes = {row.backend: row.note for row in rows if row.note}
    listed = "; ".join(f"{name} ({why.rstrip('.')})" for name, why in notes.items())
    return f"Not measured: {listed}." if listed else ""


def _under_load(rows: Sequence[Eigh]) -> str:
    size, table = _at_largest(rows)
    if not {"idle", "busy"} <= set(table):
        return f"Only {', '.join(table)} was measured."
    parts, disturbed = [], ""
    for precision, idle in table["idle"].items():
        busy = table["busy"][precision]
        (least, low), *_, (most, high) = ranked({s: busy[s] / idle[s] for s in idle}) * 2
        before, under = ranked(idle)[0][0], ranked(busy)[0][0]
        kept = f"{before} stays the fastest" if before == under else f"{under} is then the fastest"
        parts.append(
            f"in {precision} eigh takes {low:.1f} ({least}) to {high:.1f} ({most}) times as long, "
            f"and {kept}"
        )
        if low < 1 / NOISE:
            disturbed = (
                "What is faster on a busy machine was disturbed on the idle one. Compare again "
                "when it is quiet."
            )
    said = f"With every core taken by another process, at n = {size}: {'; '.join(parts)}."
    return _text(said, disturbed)


def _share(rows: Sequence[Stages], choices: Sequence[Mapping[str, Any]]) -> str:
    bars = median_parts(rows)
    size = max(row.size for row in rows)
    chosen = {c["precision"]: c["solver"] for c in choices if c["size"] == size}
    sentences = []
    for precision, jobs in bars.items():
        totals = {solver: sum(parts.values()) for solver, parts in jobs.items()}
        best, total = ranked(totals)[0]
        eigh = jobs[best]["eigh"]
        said = (
            f"in {precision} the fastest is {best}, and eigh is {eigh / total:.0%} of its "
            f"{total:.2g} s: were eigh free, {total - eigh:.2g} s would remain"
        )
        if chosen.get(precision, best) != best:
            said += (
                f" (`backend: auto` takes {chosen[precision]}, which needs less with eigh as "
                "measured alone, and more often)"
            )
        sentences.append(said)
    return f"A job of {rows[-1].rows} rows of width {size}: {'; '.join(sentences)}."
