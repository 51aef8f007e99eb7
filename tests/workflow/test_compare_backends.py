"""`snakemake backends`: the comparison runs offline, tells what to conclude, and leaves nothing."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from running import REPOSITORY, command, snakemake, succeed

SOLVERS = {"numpy", "scipy evd", "scipy evr", "scipy evx", "torch cpu", "torch cuda", "cupy"}
SMALL = {"sizes": [16, 48], "repeats": 2, "seconds": 5, "threads": 1, "rows": 200}
MODEL = {"path": str(REPOSITORY / "resources/tiny-olmo"), "revisions": ["step0-tokens0M"]}


def config(**changes):
    return {"models": {"tiny": MODEL}, "backends": {**SMALL, **changes}}


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compared")
    succeed(folder, config(), "backends")
    return folder


@pytest.fixture(scope="module")
def results(compared):
    return compared / "results/backends"


def table(file):
    with file.open() as lines:
        return list(csv.DictReader(lines))


def test_every_call_is_a_row_and_every_absent_solver_one_with_the_reason(results):
    rows = table(results / "eigh.csv")
    assert {row["backend"] for row in rows} == SOLVERS
    calls = Counter(row["backend"] for row in rows if row["seconds"])
    assert set(calls.values()) == {2 * 2 * 2 * 2}  # sizes, precisions, loads, repeats
    for row in rows:
        assert bool(row["seconds"]) != bool(row["note"])
        if row["seconds"]:
            assert float(row["seconds"]) > 0
            assert float(row["residual"]) < (1e-12 if row["precision"] == "float64" else 1e-4)
            assert row["threads"] == "1"


def test_a_whole_job_is_a_row_of_every_backend(results):
    rows = table(results / "stages.csv")
    jobs = Counter((row["size"], row["precision"], row["device"]) for row in rows)
    assert {(size, precision) for size, precision, _ in jobs} == {
        (size, precision) for size in ("16", "48") for precision in ("float64", "float32")
    }
    assert {row["rows"] for row in rows} == {"200"}
    assert all(0 < float(row["eigh_share"]) < 1 for row in rows)


def test_the_choice_has_an_entry_for_each_size_and_precision(results):
    choice = json.loads((results / "choice.json").read_text())
    assert [(entry["size"], entry["precision"]) for entry in choice["choices"]] == [
        (16, "float64"), (16, "float32"), (48, "float64"), (48, "float32"),
    ]  # fmt: skip
    assert choice["machine"]["cpu"]


def test_nothing_else_is_left(results):
    expected = {f"{name}.svg" for name in ("eigh", "load", "stages")}
    expected |= {"eigh.csv", "eigh.html", "stages.csv", "stages.html", "choice.json"}
    assert {path.name for path in results.iterdir()} == expected


def test_a_second_run_has_nothing_to_do(compared):
    assert "Nothing to be done" in succeed(compared, config(), "backends").output


def test_captions_say_what_to_conclude_here(compared, results):
    succeed(compared, config(), "backends", "--report", "report.html")
    report = (compared / "report.html").read_text()
    said = json.loads((results / "choice.json").read_text())["conclusions"]
    assert set(said) == {"eigh", "load", "stages", "machine"}
    for sentence in ("The fastest eigh at n = 48", "With every core taken", "were eigh free"):
        assert any(sentence in conclusion for conclusion in said.values())
        assert sentence in report
    for file in ("eigh.html", "stages.html", "eigh.svg", "load.svg", "stages.svg"):
        assert file in report


def test_auto_takes_what_was_measured_and_a_new_comparison_reruns_nothing(compared, results):
    succeed(compared, config(), "geometry")  # the checkpoint's width is 64, not far from 48
    file = compared / "results/geometry/tiny/step0-tokens0M/geometry.json"
    geometry = json.loads(file.read_text())
    choice = json.loads((results / "choice.json").read_text())
    entry = next(c for c in choice["choices"] if (c["size"], c["precision"]) == (48, "float64"))
    assert geometry["backend"] == entry["backend"]
    assert entry["reason"] in geometry["backend_reason"]
    assert "results/backends/choice.json" in geometry["backend_reason"]
    (results / "choice.json").write_text(json.dumps({**choice, "choices": []}))
    again = succeed(compared, config(), "geometry", "--dry-run")
    assert "Nothing to be done" in again.output


def test_a_run_compares_only_where_the_configuration_says_so(tmp_path):
    without = {"models": {"tiny": MODEL}}
    assert "compare_backends" not in succeed(tmp_path, without, "--dry-run").jobs
    assert "compare_backends" in succeed(tmp_path, config(), "--dry-run").jobs


def test_the_covariance_of_a_checkpoint_can_be_compared(tmp_path):
    small = {"repeats": 1, "loads": ["busy"], "precisions": ["float64"]}
    chosen = config(**small, checkpoint="tiny/step0-tokens0M")
    succeed(tmp_path, chosen, "backends")
    rows = table(tmp_path / "results/backends/eigh.csv")
    assert {row["size"] for row in rows if row["seconds"]} == {"16", "48", "64"}
    assert {row["rows"] for row in table(tmp_path / "results/backends/stages.csv")} == {"1024"}


def test_a_checkpoint_that_is_none_of_the_models_is_named(tmp_path):
    run = snakemake(tmp_path, config(checkpoint="tiny/step1"), "backends")
    assert run.code != 0
    assert "'step1' is none of the revisions of tiny (step0-tokens0M)" in run.output


def processes_of(folder: Path) -> dict[str, list[int]]:
    """Return the competitors and the jobs whose working directory is a folder, by kind."""
    found: dict[str, list[int]] = {"load.py": [], "compare_backends.py": []}
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and (process / "cwd").readlink() == folder:
                line = (process / "cmdline").read_bytes().rstrip(b"\0").decode()
                for kind in found:
                    if line.endswith(kind):
                        found[kind].append(int(process.name))
        except OSError:
            continue  # it has ended, or is another's
    return found


def until(condition, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.1)
    return condition()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("victim", ["snakemake", "job"])
def test_whatever_is_killed_no_process_is_left(tmp_path, victim):
    endless = config(loads=["busy"], repeats=10**6, seconds=3600)
    cores = len(os.sched_getaffinity(0))
    with subprocess.Popen(
        command(tmp_path, endless, "backends"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as run:
        try:
            assert until(lambda: len(processes_of(tmp_path)["load.py"]) == cores, 60)
            (job,) = processes_of(tmp_path)["compare_backends.py"]
            os.kill(run.pid if victim == "snakemake" else job, signal.SIGKILL)
            assert until(lambda: not any(processes_of(tmp_path).values()), 20)
            assert run.wait(30) != 0
        finally:
            run.kill()
