"""The scan's benchmark: what fails it, what its table holds, and the picture drawn from it."""

import csv
import io
import os
import resource
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
import torch
from matplotlib import rc_context
from matplotlib.collections import LineCollection

from mamba_cpu.bench.plot import PANELS, plot_scaling
from mamba_cpu.bench.timing import (
    Disagreement,
    TooFewCores,
    add_exponents,
    available_memory,
    benchmark,
    conclusions,
    expected_seconds,
    require_cores,
    rounds,
    spread,
    table,
)
from mamba_cpu.bench.variants import Variant, make_inputs, scan_einsum, scan_loops
from mamba_cpu.bench.whole_model import peak_memory

EINSUM = Variant("einsum", scan_einsum, floats=2)


@pytest.fixture(autouse=True)
def threads_as_before():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def run(*variants, lengths=(4, 8), **keywords):
    return benchmark([*variants], [*lengths], dim=3, state=2, repeats=3, **keywords)


def read(text):
    return list(csv.DictReader(io.StringIO(text)))


def test_a_variant_that_is_off_the_recurrence_fails_the_benchmark():
    off = Variant("off", lambda x: scan_einsum(x) * (1 + 2e-5))
    with pytest.raises(Disagreement, match=r"off is 2\.\de-05 off the recurrence at length 4"):
        run(EINSUM, off)


def test_a_variant_that_gives_nan_fails_the_benchmark():
    with pytest.raises(Disagreement, match="broken is nan off"):
        run(Variant("broken", lambda x: scan_einsum(x) * float("nan")))


def test_what_is_no_scan_is_timed_and_not_checked():
    rows = run(Variant("attention", lambda x: x.u, exact=False), lengths=[4])
    assert rows[0]["error"] is None and rows[0]["repeats"] == 3


def test_the_table_has_a_row_for_every_variant_and_length():
    rows = read(table(run(EINSUM, Variant("loops", scan_loops))))
    assert [(row["variant"], row["length"]) for row in rows] == [
        ("einsum", "4"),
        ("loops", "4"),
        ("einsum", "8"),
        ("loops", "8"),
    ]


def test_the_table_tells_size_threads_error_times_and_exponent():
    row = read(table(run(EINSUM, lengths=[4])))[0]
    assert set(row) == {
        *("variant", "length", "batch", "dim", "state", "dtype", "threads", "skipped", "error"),
        *("median_ms", "fastest_ms", "slowest_ms", "repeats", "exponent"),
    }
    assert (row["batch"], row["dim"], row["state"], row["dtype"]) == ("1", "3", "2", "float32")
    assert 0 <= float(row["error"]) <= 1e-5 and row["skipped"] == ""
    assert 0 < float(row["fastest_ms"]) <= float(row["median_ms"]) <= float(row["slowest_ms"])


def test_a_step_that_knows_one_thread_only_is_recorded_with_one():
    cores = Variant("parallel", scan_einsum)
    core = Variant("vectorized", scan_einsum, one_thread=True)
    assert [row["threads"] for row in run(cores, core, lengths=[4], threads=2)] == [2, 1]


def test_more_threads_than_cores_are_refused():
    with pytest.raises(TooFewCores, match=r"`mamba\.threads: 100000` asks for more cores than the"):
        require_cores(100_000)
    with pytest.raises(TooFewCores, match="more cores than the 1 that there are"):
        require_cores(2, granted=1)


@pytest.mark.parametrize(
    ("variant", "reason"),
    [
        (Variant("loops", scan_loops, longest=(5, "Python")), "only to length 5: Python"),
        (Variant("huge", scan_loops, floats=10**12), "needs 192000.0 GB for (batch, length"),
    ],
)
def test_what_cannot_run_at_a_length_is_left_out_with_the_reason(variant, reason):
    row = run(EINSUM, variant, lengths=[8])[-1]
    assert row["skipped"].startswith(reason)
    assert "median_ms" not in row and row["error"] is None


def test_what_would_take_too_long_at_the_next_length_is_left_out():
    rows = run(EINSUM, lengths=[4, 8], seconds_per_call=0)
    assert rows[0]["skipped"] == "" and rows[1]["skipped"].startswith("a call would take about")


@pytest.mark.parametrize(("order", "expected"), [(1, 8.0), (2, 32.0)])
def test_how_long_a_call_takes_is_judged_by_the_length_it_was_measured_at(order, expected):
    variant = Variant("v", scan_einsum, order=order)
    assert expected_seconds(variant, 400, {"v": (100, 2.0)}) == expected
    assert expected_seconds(variant, 400, {}) == 0


def test_what_is_run_at_a_tiny_length_only_is_measured_there():
    rows = run(EINSUM, Variant("loops", scan_loops, longest=(2, "Python")), lengths=[8, 4])
    assert [(row["variant"], row["length"], row["skipped"]) for row in rows] == [
        ("einsum", 2, ""),
        ("loops", 2, ""),
        ("einsum", 4, ""),
        ("loops", 4, "only to length 2: Python"),
        ("einsum", 8, ""),
        ("loops", 8, "only to length 2: Python"),
    ]


def test_a_slow_variant_sits_out_all_rounds_but_two():
    variants = [Variant(name, lambda x: x.u) for name in ("fast", "slow")]
    times = rounds(variants, make_inputs(1, 3, 4, 2), 5, {"fast": 0.0, "slow": 0.4}, allowed=0.5)
    assert [len(own) for own in times.values()] == [5, 2]


def test_times_are_given_as_median_and_extremes_in_milliseconds():
    assert spread([0.25, 0.5, 4.0]) == {
        "median_ms": 500,
        "fastest_ms": 250,
        "slowest_ms": 4000,
        "repeats": 3,
    }


def timed_rows(name, times):
    measured = [
        {"length": n, "median_ms": ms, "fastest_ms": 0.5 * ms, "slowest_ms": 3 * ms}
        for n, ms in times.items()
    ]
    return [{"variant": name, **row} for row in measured]


def test_the_exponent_is_the_slope_from_8192_up():
    linear = timed_rows("linear", {512: 99.0, 8192: 3.0, 16384: 6.0, 32768: 12.0})
    square = timed_rows("square", {8192: 1.0, 16384: 4.0})
    short = timed_rows("short", {4096: 1.0, 8192: 2.0})
    add_exponents(linear + square + short)
    assert [row["exponent"] for row in linear] == [pytest.approx(1.0)] * 4
    assert square[0]["exponent"] == pytest.approx(2.0)
    assert short[0]["exponent"] is None


def test_the_conclusion_compares_parallel_with_others_at_the_longest_length_of_both():
    rows = timed_rows("parallel", {512: 1.0, 1024: 2.0, 2048: 4.0})
    rows += timed_rows("transformers", {512: 9.0, 1024: 50.0}) + timed_rows("einsum", {1024: 5.0})
    assert conclusions(rows) == [
        "At length 1024 a call of parallel takes 2 ms. How many times as long others take: "
        "einsum 2.5, transformers 25."
    ]
    assert conclusions(timed_rows("parallel", {512: 1.0})) == []


def texts(figure):
    with rc_context({"svg.fonttype": "none"}):
        figure.savefig(svg := io.StringIO(), format="svg")
    found = ElementTree.fromstring(svg.getvalue()).iter("{http://www.w3.org/2000/svg}text")
    return ["".join(text.itertext()).strip() for text in found]


def curves(figure):
    """The names in each panel's legend."""
    return [[text.get_text() for text in axes.get_legend().get_texts()] for axes in figure.axes]


EVERY = [variant for names in PANELS.values() for variant in names] + ["parallel, new output"]


def test_the_picture_says_what_was_timed_and_names_its_axes():
    rows = timed_rows("parallel", {512: 1.0, 1024: 2.0}) + timed_rows("attention", {512: 3.0})
    sizes = {"batch": 1, "dim": 64, "state": 16, "dtype": "float32", "threads": 2}
    found = texts(plot_scaling([row | sizes for row in rows]))
    assert "A selective scan on the CPU: time of one call, median and extremes" in found
    assert "batch 1, dim 64, state 16, float32, at most 2 threads" in found
    assert {"length of the sequence", "milliseconds of one call"} <= set(found)
    assert {"parallel", "attention"} <= set(found)


def test_no_panel_of_the_picture_has_more_than_eight_curves():
    rows = [row for name in dict.fromkeys(EVERY) for row in timed_rows(name, {512: 1.0})]
    others, ladder = curves(plot_scaling(rows))
    assert len(others) == len(ladder) == 8
    assert {"transformers", "mambapy", "parallel"} <= set(others)
    assert {"einsum", "vectorized", "limit: memory"} <= set(ladder)


def test_bars_in_the_picture_reach_from_the_fastest_to_the_slowest_repeat():
    (axes,) = plot_scaling(timed_rows("attention", {512: 2.0})).axes
    (bars,) = (c for c in axes.collections if isinstance(c, LineCollection))
    assert [y for _, y in bars.get_segments()[0]] == [pytest.approx(1.0), pytest.approx(6.0)]


def test_the_picture_leaves_out_what_was_skipped():
    rows = timed_rows("parallel", {512: 1.0})
    rows += [{"variant": "loops", "length": 512, "skipped": "nested Python loops"}]
    assert "loops" not in texts(plot_scaling(rows))


def test_the_picture_tells_variants_apart_without_colour():
    rows = [row for name in dict.fromkeys(EVERY) for row in timed_rows(name, {512: 1.0})]
    for axes in plot_scaling(rows).axes:
        markers = [curve[0].get_marker() for curve in axes.containers]
        assert len(markers) == len(set(markers)) == 8


def test_a_picture_of_nothing_has_its_axes_still():
    assert "length of the sequence" in texts(plot_scaling([]))


@pytest.fixture
def not_linux(monkeypatch):
    """What macOS has of the system: no affinity, no /proc, and not every name of sysconf."""
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.delitem(os.sysconf_names, "SC_AVPHYS_PAGES")
    read = Path.read_text

    def without_proc(path, *arguments, **keywords):
        if str(path).startswith("/proc/"):
            raise FileNotFoundError(str(path))
        return read(path, *arguments, **keywords)

    monkeypatch.setattr(Path, "read_text", without_proc)


def test_a_system_without_affinity_has_all_its_cores(not_linux):
    require_cores(os.cpu_count())
    with pytest.raises(TooFewCores):
        require_cores(os.cpu_count() + 1)


def test_a_system_without_proc_has_all_its_memory(not_linux):
    assert available_memory() == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize(("system", "unit"), [("linux", 1024), ("darwin", 1)])
def test_the_peak_of_memory_is_in_bytes_whatever_the_system_counts_in(
    not_linux, monkeypatch, system, unit
):
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(resource, "getrusage", lambda _: SimpleNamespace(ru_maxrss=5_000_000))
    assert peak_memory() == 5_000_000 * unit


def test_inputs_that_do_not_fit_are_not_made():
    row = run(EINSUM, lengths=[10**12])[0]
    assert (
        row["skipped"] == "needs 192000.0 GB for inputs, output and what they are checked against"
    )


def test_a_tiny_length_does_not_judge_the_others():
    slow_once = [0.1, 0.1, 0.1]

    def run_it(x):
        time.sleep(slow_once.pop() if slow_once else 0)
        return scan_einsum(x)

    variants = [Variant("v", run_it, order=2), Variant("tiny", scan_einsum, longest=(2, "so"))]
    rows = benchmark(variants, [64], dim=3, state=2, repeats=3, seconds_per_call=0.5)
    assert rows[-2]["length"] == 64 and rows[-2]["skipped"] == ""
