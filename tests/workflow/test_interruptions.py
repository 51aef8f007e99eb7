"""Killed, terminated or out of space: what is left is true, and the next run completes it."""

import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from checkpoints import matrix, random_matrix
from running import command, environment, snakemake, succeed

RESULTS = "results/geometry/wide/local"
LOG = "logs/geometry/wide/local/decompose.log"
CONFIG = {"models": {"wide": {"path": "models/wide"}}}
FILES = ("unembedding.safetensors", "decomposition.safetensors", "causal.safetensors")
GEOMETRY = f"{RESULTS}/geometry.json"


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """A matrix wide enough that its decomposition takes more than a second, and its results."""
    folder = tmp_path_factory.mktemp("undisturbed")
    matrix(folder / "models/wide", random_matrix(1, 3000, 1000).half())
    succeed(folder, CONFIG, GEOMETRY)
    return folder


@pytest.fixture
def folder(undisturbed, tmp_path):
    shutil.copytree(undisturbed / "models", tmp_path / "models")
    return tmp_path


def start(folder):
    return subprocess.Popen(
        command(folder, CONFIG, GEOMETRY),
        cwd=folder,
        env=environment(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def in_the_middle_of(driver, sign):
    """Wait for the sign of a stage, and return the processes that the run consists of."""
    deadline = time.monotonic() + 300
    while not sign():
        assert driver.poll() is None, driver.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.005)
    parent = psutil.Process(driver.pid)
    return [parent, *parent.children(recursive=True)]


def decomposing(folder):
    log = folder / LOG
    return lambda: log.exists() and "covariance:" in log.read_text()


def transforming(folder):
    return lambda: list((folder / RESULTS).glob(".causal.safetensors.*.tmp"))


@pytest.mark.parametrize("stage", [decomposing, transforming])
def test_a_run_that_was_killed_is_completed_to_the_same_bytes(undisturbed, folder, stage):
    driver = start(folder)
    for process in in_the_middle_of(driver, stage(folder)):
        process.kill()
    assert driver.wait() == -signal.SIGKILL
    assert not (folder / RESULTS / "causal.safetensors").exists()
    succeed(folder, CONFIG, "--unlock")
    succeed(folder, CONFIG, GEOMETRY)
    for name in FILES:
        first, again = (root / RESULTS / name for root in (undisturbed, folder))
        assert first.read_bytes() == again.read_bytes()


def test_a_job_that_is_terminated_leaves_its_profile_beside_the_log(folder):
    driver = start(folder)
    processes = in_the_middle_of(driver, decomposing(folder))
    [job] = [p for p in processes if "decompose_covariance.py" in " ".join(p.cmdline()[1:2])]
    job.terminate()
    output = driver.communicate()[0]
    assert driver.returncode != 0
    assert "Ended by SIGTERM" in (folder / LOG).read_text(), output
    assert "mean_and_covariance" in (folder / f"{LOG}.txt").read_text()
    assert (folder / f"{LOG}.prof").exists() and (folder / f"{LOG}.svg").exists()
    assert not (folder / RESULTS / "decomposition.safetensors").exists()


def test_a_file_that_cannot_grow_is_an_error_and_leaves_nothing(folder):
    limit = f"import os, resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, ({2**20},) * 2)"
    run = snakemake(
        folder, CONFIG, GEOMETRY,
        prefix=(sys.executable, "-c", f"{limit}; os.execv(sys.argv[1], sys.argv[1:])"),
    )  # fmt: skip
    assert_said_and_nothing_left(run, folder, "File too large")


def test_a_full_disk_is_an_error_and_leaves_nothing(folder):
    look = "find results -name '*unembedding*'"
    run = run_with_little_room(folder, "256k", ("results", "logs"), look)
    assert_said_and_nothing_left(run, folder, "No space left on device")
    assert not run.output.splitlines()[-1].startswith("results/")


def test_a_disk_that_is_full_for_the_logs_is_an_error_that_names_one(folder):
    run = run_with_little_room(folder, "16k", ("logs",), "true")
    assert run.code != 0
    log = "logs/geometry/wide/local/extract.log"
    assert f"Error: Could not write {log}: No space left on device" in run.output


def run_with_little_room(folder, size, folders, afterwards):
    """Run on a file system of that size under some folders, of which 16k are filled at once."""
    private = ("unshare", "--map-root-user", "--mount", "sh", "-c")
    lines = [f"mount -t tmpfs -o size={size} tmpfs disk"]
    for name in folders:
        lines.append(f"mkdir disk/{name} && mount --bind disk/{name} {name}")
    small = " && ".join(lines)
    for name in ("disk", *folders):
        (folder / name).mkdir()
    if subprocess.run([*private, small], cwd=folder, capture_output=True).returncode:
        pytest.skip("this machine lets no user mount a small file system")
    fill = "head -c 16k /dev/zero > disk/filling"
    line = f'{small} && {fill}; "$@"; code=$?; {afterwards}; exit $code'
    return snakemake(folder, CONFIG, GEOMETRY, prefix=(*private, line, "sh"))


def assert_said_and_nothing_left(run, folder, reason):
    assert run.code != 0
    assert f"Error: Could not write {RESULTS}/unembedding.safetensors: {reason}" in run.output
    assert "Traceback" not in run.output
    assert not list(Path(folder, "results").rglob("*unembedding*"))
