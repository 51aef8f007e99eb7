"""The comparison of eigensolvers: what is measured, what disturbs it, and what follows from it."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.container import BarContainer
from matplotlib.figure import Figure

from unembedding.backend_comparison import plots
from unembedding.backend_comparison.choosing import choose, conclusions, fastest_of_families
from unembedding.backend_comparison.comparing import leading
from unembedding.backend_comparison.cpu_load import competing
from unembedding.backend_comparison.matrices import covariance, covariance_of, write_unembedding
from unembedding.backend_comparison.measuring import Eigh, accuracy, measure_eigh, rounds
from unembedding.backend_comparison.solvers import SOLVERS, Solver, solvers_here
from unembedding.backend_comparison.stages import Job, Stages, measure_stages
from unembedding.errors import GeometryError, UserError
from unembedding.records.serialization import read_table, write_table

SCRIPTS = Path(__file__).parents[2] / "src"


def alive(pid: int) -> bool:
    """Whether a process still runs; one that has ended and waits to be collected does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def until(condition, seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


def test_every_solver_is_there_or_says_why_not():
    present, absent = solvers_here()
    assert {solver.name for solver in present} | set(absent) == set(SOLVERS)
    assert {"numpy", "scipy evd", "scipy evr", "scipy evx", "torch cpu"} <= {
        s.name for s in present
    }
    assert all(absent.values())


@pytest.mark.parametrize("size", [1, 2, 50])
def test_the_covariance_has_a_spectrum_like_a_trained_models(size):
    values = np.linalg.eigvalsh(covariance(size, 1e4))[::-1]
    expected = np.arange(1, size + 1) ** (-np.log(1e4) / np.log(max(size, 2)))
    np.testing.assert_allclose(values, expected, rtol=1e-9)


def test_the_unembedding_has_that_spectrum_too(tmp_path):
    write_unembedding(tmp_path / "gamma", 40_000, 8, 1e4)
    values = np.linalg.eigvalsh(covariance_of(tmp_path / "gamma", None))
    np.testing.assert_allclose(values[-1] / values[0], 1e4, rtol=0.05)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(width=st.integers(1, 9), sizes=st.lists(st.integers(1, 12), max_size=4))
def test_a_real_covariance_is_compared_whole_and_by_its_first_columns(width, sizes):
    matrix = np.arange(width * width, dtype=float).reshape(width, width)
    found = leading(matrix, sizes)
    assert set(found) == {n for n in sizes if n < width} | {width}
    assert all((part == matrix[:n, :n]).all() for n, part in found.items())


def test_accuracy_is_zero_for_the_exact_and_grows_with_the_error():
    values, vectors = np.array([1.0, 4.0]), np.eye(2)
    exact = accuracy(np.diag(values), values, vectors)
    assert (exact.residual, exact.orthogonality, exact.whitening_residual) == (0, 0, 0)
    off = accuracy(np.diag(values), values * 1.1, vectors * 1.01)
    assert off.residual == pytest.approx(0.1 * 1.01)
    assert off.orthogonality == pytest.approx(np.sqrt(2) * (1.01**2 - 1))
    assert off.whitening_residual == pytest.approx(abs(1.01**4 / 1.1 - 1))


def test_a_matrix_that_cannot_be_whitened_has_no_whitening_residual():
    assert accuracy(np.diag([0.0, 1.0]), np.array([0.0, 1.0]), np.eye(2)).whitening_residual is None


@pytest.mark.parametrize(("repeats", "seconds", "made"), [(3, 60, 3), (3, 0, 1), (1, 60, 1)])
def test_repeats_end_with_the_time_but_one_is_always_made(repeats, seconds, made):
    assert list(rounds(repeats, seconds)) == list(range(1, made + 1))


def test_solvers_take_turns_and_each_call_is_a_row():
    solvers, _ = solvers_here(["numpy", "scipy evd"])
    rows = measure_eigh(
        solvers, [covariance(20), covariance(30)], ["float64", "float32"], ["idle"], 2, 60, 2
    )
    assert len(rows) == 2 * 2 * 2 * 2
    assert [row.backend for row in rows] == ["numpy", "scipy evd"] * 8
    assert [row.repeat for row in rows] == [1] * 8 + [2] * 8
    for row in rows:
        assert row.seconds > 0
        limit = 1e-12 if row.precision == "float64" else 1e-4
        assert max(row.residual, row.orthogonality) < limit
        assert row.whitening_residual < 1e4 * limit


def test_a_solver_that_fails_at_a_size_gets_a_row_with_the_reason():
    class Small:
        device = "a toy"

        def on_device(self, matrix):
            return matrix

        def synchronize(self):
            pass

        def eigh(self, matrix, precision):
            if len(matrix) > 3:
                raise GeometryError("too large")
            return np.linalg.eigh(matrix)

    solver = Solver("toy", ("toy", ""), None, Small())
    rows = measure_eigh([solver], [np.eye(3), np.eye(4)], ["float64"], ["idle"], 1, 60, 1)
    assert [(row.size, row.note, row.seconds is None) for row in rows] == [
        (4, "too large", True),
        (3, "", False),
    ]


def test_competitors_work_while_the_block_runs_and_are_gone_after_it():
    with competing(2) as processes:
        pids = [process.pid for process in processes]
        assert all(alive(pid) for pid in pids)
        assert until(lambda: all(cpu_seconds(pid) > 0.2 for pid in pids), 30)
    assert not any(alive(pid) for pid in pids)


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_an_exception_leaves_no_competitor():
    pids = []
    with pytest.raises(RuntimeError, match="no more"), competing(1) as processes:
        pids = [process.pid for process in processes]
        raise RuntimeError("no more")
    assert not alive(pids[0])


def test_competitors_end_with_their_parent_even_if_it_is_killed():
    code = (
        "import time\nfrom unembedding.backend_comparison.cpu_load import competing\n"
        "with competing(2) as processes:\n"
        "    print(*[p.pid for p in processes], flush=True)\n    time.sleep(60)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(SCRIPTS)},
        stdout=subprocess.PIPE,
        text=True,
    )
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(pids) == 2
    assert all(alive(pid) for pid in pids)
    parent.send_signal(signal.SIGKILL)
    parent.communicate()
    assert until(lambda: not any(alive(pid) for pid in pids))


def test_a_job_is_told_in_parts_that_add_up(tmp_path):
    write_unembedding(tmp_path / "gamma", 300, 16)
    solvers, _ = solvers_here(["scipy evr"])
    job = Job(solvers[0], tmp_path / "gamma", 16, "float64")
    rows = measure_stages([job], 2, 60, 1, 200, tmp_path)
    assert [(row.repeat, row.rows, row.size) for row in rows] == [(1, 200, 16), (2, 200, 16)]
    for row in rows:
        parts = [row.start, row.read, row.covariance, row.eigh]
        parts += [row.transform, row.write, row.check]
        assert min(parts) > 0
        assert row.total == pytest.approx(sum(parts))
        assert row.without_eigh == pytest.approx(row.total - row.eigh)
        assert row.eigh_share == pytest.approx(row.eigh / row.total)


def test_a_table_reads_back_as_it_was_written(tmp_path):
    rows = [
        Eigh("numpy", "a, b", 8, "float64", "idle", 1, 2, 0.5, 1e-16, 2e-15, None),
        Eigh("cupy", "", note="CuPy finds no GPU here."),
    ]
    write_table(tmp_path / "eigh.csv", Eigh, rows)
    assert read_table(tmp_path / "eigh.csv", Eigh) == rows


@pytest.mark.parametrize("content", ["backend\nnumpy\n", "\0", "backend,size\nnumpy,many\n"])
def test_a_table_of_another_form_is_named(tmp_path, content):
    (tmp_path / "eigh.csv").write_text(content)
    with pytest.raises(UserError, match=r"eigh\.csv cannot be read"):
        read_table(tmp_path / "eigh.csv", Eigh)


def eigh(backend, seconds, size=64, precision="float64", load="idle"):
    return [Eigh(backend, "cpu", size, precision, load, i, 2, s) for i, s in enumerate(seconds, 1)]


def stages(backend, without_eigh, size=64, precision="float64"):
    parts = dict.fromkeys(
        ("start", "read", "covariance", "eigh", "transform", "write", "check"), 0.0
    )
    parts |= {"read": without_eigh, "eigh": 1.0}
    return Stages(
        backend, "cpu", 100, size, precision, 1, 2, **parts, total=without_eigh + 1.0,
        without_eigh=without_eigh, eigh_share=1.0 / (without_eigh + 1.0),
    )  # fmt: skip


MEASURED = [
    *eigh("scipy evd", [1.0, 9.0, 1.1]),
    *eigh("scipy evr", [1.2, 1.2, 1.2]),
    *eigh("torch cpu", [0.4, 0.5, 0.6]),
    *eigh("scipy evd", [3.3, 3.3, 3.3], load="busy"),
    *eigh("scipy evr", [2.4, 2.4, 2.4], load="busy"),
    *eigh("torch cpu", [5.0, 5.0, 5.0], load="busy"),
    Eigh("cupy", "", note="CuPy finds no GPU here."),
]
JOBS = [stages("scipy evd", 1.0), stages("torch cpu", 3.0)]


def pretend(name):
    return Solver(name, (SOLVERS[name][0], "cpu"), SOLVERS[name][1], None)


def test_the_fastest_of_a_family_is_by_the_median_and_under_the_load_asked_for():
    solvers = [pretend(name) for name in ("scipy evd", "scipy evr", "torch cpu")]
    idle = fastest_of_families(MEASURED, solvers, 64, "float64", "idle")
    busy = fastest_of_families(MEASURED, solvers, 64, "float64", "busy")
    assert [solver.name for solver in idle] == ["scipy evd", "torch cpu"]
    assert [solver.name for solver in busy] == ["scipy evr", "torch cpu"]


def test_the_choice_is_of_the_whole_job_not_of_eigh_alone():
    (choice,) = choose(MEASURED, JOBS, "idle")
    assert (choice["solver"], choice["backend"], choice["driver"]) == ("scipy evd", "numpy", "evd")
    assert "scipy evd 2.10 s, torch cpu 3.50 s" in choice["reason"]
    (choice,) = choose(MEASURED, [JOBS[0], replace(JOBS[1], without_eigh=0.1)], "idle")
    assert (choice["solver"], choice["backend"], choice["driver"]) == ("torch cpu", "torch", "cpu")


def test_sentences_say_what_to_conclude():
    said = conclusions(MEASURED, JOBS, choose(MEASURED, JOBS, "idle"))
    assert "The fastest eigh at n = 64, idle: in float64 torch cpu with 0.5 s" in said["eigh"]
    assert "scipy evd 2.20 ×" in said["eigh"]
    assert "Not measured: cupy (CuPy finds no GPU here)" in said["eigh"]
    assert "2.0 (scipy evr) to 10.0 (torch cpu) times as long" in said["load"]
    assert "scipy evr is then the fastest" in said["load"]
    assert "eigh is 50% of its 2 s: were eigh free, 1 s would remain" in said["stages"]


def test_the_sentence_on_whole_jobs_names_the_shortest_bar_and_says_where_the_choice_differs():
    jobs = [JOBS[0], replace(JOBS[1], read=1.2, eigh=0.3)]
    chosen = [{"size": 64, "precision": "float64", "solver": "scipy evd"}]
    figure = Figure()
    plots._by_part(figure, jobs)
    (axes,) = figure.axes
    ends: dict[int, float] = {}
    for bar in axes.patches:
        position = round(bar.get_y() + bar.get_height() / 2)
        ends[position] = max(ends.get(position, 0), bar.get_x() + bar.get_width())
    names = [label.get_text() for label in axes.get_yticklabels()]
    shortest = names[min(ends, key=ends.__getitem__)]
    said = conclusions(MEASURED, jobs, chosen)["stages"]
    assert shortest == "torch cpu"
    assert f"the fastest is {shortest}, and eigh is " in said
    assert "`backend: auto` takes scipy evd" in said


def test_repeats_that_differ_much_are_said_to_be_disturbed():
    quiet = eigh("numpy", [1.0, 1.1])
    disturbed = eigh("numpy", [1.0, 2.5])
    assert "not idle" not in conclusions(quiet, [stages("numpy", 1.0)], [])["eigh"]
    assert "differ by a factor of 2.5" in conclusions(disturbed, [stages("numpy", 1.0)], [])["eigh"]


def of_both_loads(idle, busy):
    rows = [*eigh("numpy", idle), *eigh("numpy", busy, load="busy")]
    return conclusions(rows, [stages("numpy", 1.0)], [])


@pytest.mark.parametrize("sentence", ["eigh", "load"])
def test_what_was_measured_once_is_said_to_tell_no_spread(sentence):
    assert "tells no spread" in of_both_loads([1.0, 1.0], [2.0])[sentence]
    assert "tells no spread" not in of_both_loads([1.0, 1.0], [2.0, 2.0])[sentence]


def test_whole_jobs_that_were_measured_once_are_said_to_tell_no_spread():
    rows, job = eigh("numpy", [1.0, 1.0]), stages("numpy", 1.0)
    assert "tells no spread" in conclusions(rows, [job], [])["stages"]
    assert "tells no spread" not in conclusions(rows, [job, job], [])["stages"]


def test_a_machine_that_is_faster_when_busy_is_said_to_have_been_disturbed():
    assert "was disturbed" in of_both_loads([2.0, 2.0], [1.0, 1.0])["load"]
    assert "was disturbed" not in of_both_loads([1.0, 1.0], [0.99, 0.99])["load"]


@pytest.mark.parametrize("loads", [["busy"], ["busy", "idle"], ["idle", "busy"]])
def test_the_bar_of_the_busy_machine_is_the_dark_one(loads):
    figure = Figure()
    plots._by_load(figure, [row for load in loads for row in eigh("numpy", [1.0], load=load)])
    bars = figure.axes[0].containers
    shown = {
        bar.get_label(): bar.patches[0].get_facecolor()[0]
        for bar in bars
        if isinstance(bar, BarContainer)
    }
    assert shown == {load: {"idle": 0.9, "busy": 0.5}[load] for load in loads}


def test_one_load_alone_is_no_comparison_of_loads():
    rows = eigh("numpy", [1.0], load="busy")
    said = conclusions(rows, [stages("numpy", 1.0)], choose(rows, [stages("numpy", 1.0)], "busy"))
    assert said["load"].startswith("Only busy was measured.")
