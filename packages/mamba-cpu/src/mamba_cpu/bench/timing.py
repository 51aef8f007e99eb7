"""Time the variants against each other, in one process, interleaved, each checked before.

On a shared machine the minutes differ more than the variants do: the rounds go through all
variants in turn, so that a slow minute falls on all of them, and ratios of medians survive.
"""

from __future__ import annotations

import csv
import io
import math
import os
import statistics
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from mamba_cpu.bench.variants import Inputs, Variant, make_inputs
from mamba_cpu.errors import MambaCpuError
from mamba_cpu.reference import selective_scan_reference

TOLERANCE = 1e-5  # of the largest value, against float64
FIT_FROM = 8192  # lengths below are ruled by what a call costs at all
BYTES_AROUND = 64  # each number's own: inputs, outputs in both layouts, three copies in float64
BRIEF = 0.05  # seconds; before a call of less, threads may have to be woken up first

Row = dict[str, Any]


class Disagreement(AssertionError):
    """A variant whose result is not the recurrence's."""


class TooFewCores(MambaCpuError):
    """A machine on which the benchmark would not measure what it says."""


def available_memory() -> int:
    """Bytes that can be allocated without swapping; all, where the system does not tell them."""
    with suppress(OSError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable"):
                return int(line.split()[1]) * 1024
    free = "SC_AVPHYS_PAGES" if "SC_AVPHYS_PAGES" in os.sysconf_names else "SC_PHYS_PAGES"
    return os.sysconf(free) * os.sysconf("SC_PAGE_SIZE")


def require_cores(threads: int, granted: int | None = None) -> None:
    """Raise TooFewCores unless this process may run on that many cores, and was granted them."""
    affinity = getattr(os, "sched_getaffinity", None)  # absent on macOS
    cores = min(len(affinity(0)) if affinity else os.cpu_count() or 1, granted or threads)
    if cores < threads:
        raise TooFewCores(
            f"`mamba.threads: {threads}` asks for more cores than the {cores} that there are here "
            "for this job. Lower it, or give Snakemake more `--cores`."
        )


def benchmark(
    variants: list[Variant],
    lengths: list[int],
    batch: int = 1,
    dim: int = 64,
    state: int = 16,
    repeats: int = 7,
    seconds_per_call: float = 0.5,
    threads: int = 1,
) -> list[Row]:
    """One row for each variant and length; what was left out has its reason under `skipped`.

    The lengths beyond which a variant is not run are measured too, of all variants.

    Raises Disagreement if a variant's output is further than TOLERANCE from the float64 recurrence.
    """
    torch.set_num_threads(threads)
    rows: list[Row] = []
    known: dict[str, tuple[int, float]] = {}  # length and seconds, by which the next is judged
    tiny = {v.longest[0] for v in variants if v.longest}
    for length in sorted({*lengths, *tiny}):
        elements = batch * dim * length
        reasons = {
            v.name: reason_to_skip(
                v, length, elements, state, expected_seconds(v, length, known), seconds_per_call
            )
            for v in variants
        }
        chosen = [v for v in variants if not reasons[v.name]]
        errors: dict[str, float] = {}
        times: dict[str, list[float]] = {}
        if chosen:
            inputs = make_inputs(batch, dim, length, state)
            seconds: dict[str, float] = {}
            errors = check(chosen, inputs, seconds)
            times = rounds(chosen, inputs, repeats, seconds, seconds_per_call)
        if length in lengths:  # a tiny one says what a call costs at all, and no more
            known |= {name: (length, min(own)) for name, own in times.items()}
        base = {"length": length, "batch": batch, "dim": dim, "state": state, "dtype": "float32"}
        for v in variants:
            row = {"variant": v.name, **base, "threads": 1 if v.one_thread else threads}
            measured = times.get(v.name)
            row |= {"skipped": reasons[v.name], "error": errors.get(v.name)}
            rows.append(row | (spread(measured) if measured else {}))
    add_exponents(rows)
    return rows


def expected_seconds(variant: Variant, length: int, known: dict[str, tuple[int, float]]) -> float:
    """What a call at this length would take, by the longest one that was measured; else 0."""
    measured, seconds = known.get(variant.name, (length, 0.0))
    return seconds * (length / measured) ** variant.order


def reason_to_skip(
    variant: Variant, length: int, elements: int, state: int, expected: float, allowed: float
) -> str:
    """Why a variant cannot be run on `elements` (batch * dim * length) numbers; else empty."""
    if variant.longest and length > variant.longest[0]:
        return f"only to length {variant.longest[0]}: {variant.longest[1]}"
    needs = {
        "inputs, output and what they are checked against": BYTES_AROUND * elements,
        "(batch, length, dim, state) intermediates": variant.floats * elements * state * 4,
    }
    for what, size in needs.items():
        if size > 0.7 * available_memory():
            return f"needs {size / 1e9:.1f} GB for {what}"
    if expected > allowed:
        return f"a call would take about {expected:.1f} s"
    return ""


@torch.inference_mode()
def check(variants: list[Variant], inputs: Inputs, seconds: dict[str, float]) -> dict[str, float]:
    """Run each once, which also warms it up; the largest error relative to the largest value."""
    expected, _ = selective_scan_reference(inputs.u, inputs.delta, inputs.A, inputs.B, inputs.C)
    errors = {}
    for variant in variants:
        y = variant.run(inputs)
        seconds[variant.name] = timed(variant.run, inputs)
        if variant.exact:
            error = ((y - expected).abs().max() / expected.abs().max()).item()
            if not error <= TOLERANCE:
                raise Disagreement(
                    f"{variant.name} is {error:.1e} off the recurrence at length "
                    f"{inputs.u.shape[2]} (allowed: {TOLERANCE:.0e})"
                )
            errors[variant.name] = error
    return errors


@torch.inference_mode()
def rounds(
    variants: list[Variant],
    inputs: Inputs,
    repeats: int,
    seconds: dict[str, float],
    allowed: float,
) -> dict[str, list[float]]:
    """Seconds of every repeat; a slow variant sits out the later rounds, never the first two."""
    times: dict[str, list[float]] = {variant.name: [] for variant in variants}
    for turn in range(repeats):
        for variant in variants:
            if turn < 2 or seconds[variant.name] * turn < allowed:
                if seconds[variant.name] < BRIEF:
                    variant.run(inputs)
                times[variant.name].append(timed(variant.run, inputs))
    return times


def timed(run: Callable[[Inputs], Any], inputs: Inputs) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    run(inputs)
    return time.perf_counter() - start


def spread(seconds: list[float]) -> Row:
    """Median, fastest and slowest in milliseconds."""
    return {
        "median_ms": 1e3 * statistics.median(seconds),
        "fastest_ms": 1e3 * min(seconds),
        "slowest_ms": 1e3 * max(seconds),
        "repeats": len(seconds),
    }


def table(rows: list[Row]) -> str:
    """The rows as CSV, with every column that any of them has."""
    text = io.StringIO()
    columns = list(dict.fromkeys(key for row in rows for key in row))
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def conclusions(rows: list[Row]) -> list[str]:
    """What the rows say in a sentence: parallel against what else scans at the same length."""
    times: dict[int, dict[str, float]] = {}
    for row in rows:
        if row.get("median_ms"):
            times.setdefault(row["length"], {})[row["variant"]] = row["median_ms"]
    rivals = {"einsum", "loops", "torch.compile", "associative_scan", "transformers", "mambapy"}
    shared = [n for n, at in times.items() if "parallel" in at and rivals & at.keys()]
    if not shared:
        return []
    at = times[max(shared)]
    ours = at["parallel"]
    behind = sorted((at[name] / ours, name) for name in rivals & at.keys())
    listed = ", ".join(f"{name} {ratio:.{0 if ratio >= 10 else 1}f}" for ratio, name in behind)
    return [
        f"At length {max(shared)} a call of parallel takes {ours:.2g} ms. How many times as long "
        f"others take: {listed}."
    ]


def add_exponents(rows: list[Row]) -> None:
    """The slope of log time against log length, from FIT_FROM up, into each variant's rows."""
    for name in {row["variant"] for row in rows}:
        own = [row for row in rows if row["variant"] == name]
        points = [
            (math.log(row["length"]), math.log(row["median_ms"]))
            for row in own
            if row.get("median_ms") and row["length"] >= FIT_FROM
        ]
        slope = None
        if len(points) > 1:
            xs, ys = zip(*points, strict=True)
            slope = statistics.linear_regression(xs, ys).slope
        for row in own:
            row["exponent"] = slope
