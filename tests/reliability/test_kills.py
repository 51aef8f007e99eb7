"""Killed anywhere, run again until it is done: the results of a run that nobody disturbed."""

import random
import shutil
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from checkpoints import matrix, random_matrix
from promises import SOAK
from running import command, environment, snakemake, succeed

KILLS = 50 if SOAK else 3
SEED = 1
CONFIG = {"models": {"m": {"path": "models/m"}}}
NUMERIC = ("unembedding.safetensors", "decomposition.safetensors", "causal.safetensors")
GIVEN = {"models", "given.yaml"}
MADE = {"results", "logs", ".snakemake"}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """A finished run, and the seconds it took."""
    folder = tmp_path_factory.mktemp("undisturbed")
    matrix(folder / "models/m/step1", random_matrix(1, 600, 200))
    started = time.monotonic()
    succeed(folder, CONFIG)
    return folder, time.monotonic() - started


def numbers(folder: Path) -> dict[str, bytes]:
    found = [p for name in (*NUMERIC, "revisions.tsv") for p in (folder / "results").rglob(name)]
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def kill_one(driver: subprocess.Popen, chance: random.Random) -> str | None:
    """Kill the driver or a job with SIGKILL, and return which; None where it is done already.

    The driver's jobs are killed with it, as where a node is lost, or end first, or go on beside
    the next run.
    """
    if driver.poll() is not None:
        return None
    try:
        parent = psutil.Process(driver.pid)
        jobs = parent.children(recursive=True)
        if jobs and chance.random() < 0.5:
            chance.choice(jobs).kill()
            return "job"
        parent.kill()
    except psutil.NoSuchProcess:
        return None
    fate = chance.choice(["killed", "waited for", "left"])
    for job in jobs if fate == "killed" else ():
        with suppress(psutil.NoSuchProcess):
            job.kill()
    if fate != "left":
        psutil.wait_procs(jobs, timeout=60)
    return "driver"


def wait_for_those_left(folder: Path) -> None:
    """Wait until no process works in a folder."""
    everything = psutil.process_iter(["cwd"])
    _, alive = psutil.wait_procs([p for p in everything if p.info["cwd"] == str(folder)], 60)
    assert not alive


def test_kills_at_any_moment_change_no_result_and_leave_nothing(undisturbed, tmp_path, report):
    finished, seconds = undisturbed
    folder, chance, killed = tmp_path / "run", random.Random(SEED), {"driver": 0, "job": 0}
    shutil.copytree(finished / "models", folder / "models")
    while sum(killed.values()) < KILLS:
        with (tmp_path / "output").open("w") as output:
            driver = subprocess.Popen(
                command(folder, CONFIG),
                cwd=folder,
                env=environment(folder),
                stdout=output,
                stderr=output,
            )
            started = time.monotonic()
            with suppress(subprocess.TimeoutExpired):
                driver.wait(seconds * chance.uniform(0.1, 0.9))
                seconds = time.monotonic() - started  # the machine is less busy than at first
            victim = kill_one(driver, chance)
            code = driver.wait(timeout=120)
        if victim:
            killed[victim] += 1
        elif code == 0:
            wait_for_those_left(folder)
            assert numbers(folder) == numbers(finished)
            shutil.rmtree(folder / "results")
        assert victim or code == 0, (tmp_path / "output").read_text()
        if any((folder / ".snakemake/locks").glob("*")):
            if killed["driver"] == 1:
                assert "--unlock" in snakemake(folder, CONFIG).output
            succeed(folder, CONFIG, "--unlock")
    succeed(folder, CONFIG)
    wait_for_those_left(folder)
    assert numbers(folder) == numbers(finished)
    assert {path.name for path in folder.iterdir()} == GIVEN | MADE
    assert not list((folder / "results").rglob("*.tmp"))
    report(f"kills: {killed['driver']} of the driver, {killed['job']} of a job; nothing differed")
