"""A random walk through what happens to a folder of results: each row is right, or it is absent.

Runs are forked from a server that has imported what they import (warm.py), but for one in COLD.
"""

import csv
import os
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
from checkpoints import matrix, random_matrix
from promises import SOAK
from running import command, environment
from warm import WarmProcesses

STEPS = int(os.environ.get("WALK_STEPS", 200))  # of each seed
SEEDS = [int(os.environ.get("WALK_SEED", 0)) + i for i in range(2 if SOAK else 1)]
COLD = 50
CHECKPOINTS = ("a/step1", "a/step2", "b/local")
ROWS, WIDTH = 48, 6


class Walk:
    """A workspace, and what happens to it."""

    def __init__(self, folder: Path, seed: int, processes: WarmProcesses) -> None:
        self.folder, self.random, self.processes = folder, random.Random(seed), processes
        self.gammas: dict[str, np.ndarray | None] = {}
        self.seed = 1000 * seed
        self.config = {
            "models": {"a": {"path": "models/a"}, "b": {"path": "models/b"}},
            "precision": "float64",
            "keep_unembedding": True,
        }
        for name in CHECKPOINTS:
            self.write(name)
        self.backup = folder / "backup"

    @property
    def results(self) -> Path:
        return self.folder / "results/geometry"

    def weights(self, name: str) -> Path:
        return self.folder / "models" / name.removesuffix("/local")

    def write(self, name: str, good: bool = True) -> None:
        self.seed += 1
        gamma = random_matrix(self.seed, ROWS, WIDTH)
        if not good:
            gamma[3, 2] = np.nan
        written = matrix(self.weights(name), gamma)
        self.gammas[name] = written if good else None

    # What may happen. Each returns nothing, and leaves the truth in ``gammas`` and ``config``.

    def nothing(self) -> None:
        pass

    def new_weights(self) -> None:
        self.write(self.random.choice(CHECKPOINTS))

    def new_weights_of_the_same_date(self) -> None:
        name = self.random.choice(CHECKPOINTS)
        file = self.weights(name) / "model.safetensors"
        before = file.stat()
        self.write(name)
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))

    def bad_weights(self) -> None:
        self.write(self.random.choice(CHECKPOINTS), good=False)

    def mended_weights(self) -> None:
        for name, gamma in self.gammas.items():
            if gamma is None:
                self.write(name)

    def other_precision(self) -> None:
        self.config["precision"] = self.random.choice(["float64", "float32"])

    def other_rows(self) -> None:
        self.config["models"]["a"]["rows"] = self.random.choice([ROWS, ROWS - 8, "all"])

    def other_revisions(self) -> None:
        asked = self.random.choice(["all", ["step1"], ["step2", "step1"]])
        self.config["models"]["a"]["revisions"] = asked

    def revision_that_does_not_exist(self) -> None:
        self.config["models"]["a"]["revisions"] = ["step1", "step9"]

    def other_keeping(self) -> None:
        self.config["keep_unembedding"] = not self.config["keep_unembedding"]

    def deleted_file(self) -> None:
        if files := self.files():
            self.random.choice(files).unlink()

    def damaged_file(self) -> None:
        if files := self.files():
            file = self.random.choice(files)
            content = bytearray(file.read_bytes())
            if content:
                content[self.random.randrange(len(content))] ^= 1
                file.write_bytes(content)

    def deleted_record(self) -> None:
        shutil.rmtree(self.folder / ".snakemake", ignore_errors=True)

    def exchanged_revisions(self) -> None:
        one, other = self.results / "a/step1", self.results / "a/step2"
        if one.is_dir() and other.is_dir():
            one.rename(self.folder / "between")
            other.rename(one)
            (self.folder / "between").rename(other)

    def backed_up(self) -> None:
        shutil.rmtree(self.backup, ignore_errors=True)
        if self.results.is_dir():
            shutil.copytree(self.results, self.backup, symlinks=True)

    def put_back(self) -> None:
        if self.backup.is_dir():
            shutil.rmtree(self.results, ignore_errors=True)
            shutil.copytree(self.backup, self.results, symlinks=True)

    def killed(self) -> None:
        line = command(self.folder, self.config, "geometry")
        run = self.processes.start(line, self.folder, environment(self.folder))
        time.sleep(self.random.uniform(0.1, 2))
        run.kill(self.random.choice([signal.SIGKILL, signal.SIGINT, signal.SIGTERM]))
        self.run("--unlock")

    def files(self) -> list[Path]:
        found = sorted(self.results.rglob("*")) if self.results.is_dir() else []
        return [file for file in found if file.is_file()]

    # What a run has to give.

    def run(self, *arguments: str, cold: bool = False) -> subprocess.CompletedProcess[str]:
        line = command(self.folder, self.config, *arguments)
        if not cold:
            return self.processes.run(line, self.folder, environment(self.folder))
        return subprocess.run(
            line,
            cwd=self.folder,
            env=environment(self.folder),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
        )

    def asked(self) -> list[str]:
        revisions = self.config["models"]["a"].get("revisions", "all")
        of_a = CHECKPOINTS[:2] if revisions == "all" else [f"a/{name}" for name in revisions]
        return [*of_a, "b/local"]

    def condition_number(self, name: str) -> float:
        gamma = self.gammas[name]
        assert gamma is not None
        rows = self.config["models"][name[0]].get("rows", "all")
        used = gamma.astype(np.float64)[: None if rows == "all" else rows]
        values = np.linalg.eigvalsh(np.cov(used.T, bias=True))
        return values[-1] / values[0]

    def check(self, run: subprocess.CompletedProcess[str]) -> None:
        """Fail unless every row of the summary is right, and all are there after a success."""
        summary = self.results / "summary.csv"
        rows = {}
        if summary.is_file():
            with summary.open() as file:
                found = [row for row in csv.DictReader(file) if row["asked"] == "true"]
            rows = {f"{row['model']}/{row['revision']}": row for row in found}
        if run.returncode == 0:
            assert sorted(rows) == sorted(self.asked()), "rows that are asked for"
        else:
            assert "rror" in run.stdout or "Delete" in run.stdout, "it says why"
        # A run that did nothing, since it says what differs, leaves what is there.
        checked = run.returncode == 0 or "Absent" in run.stdout
        for name, row in rows.items() if checked else ():
            assert self.gammas[name] is not None, f"a row of {name}, whose weights are bad"
            found = float(row["condition_number"])
            rtol = 1e-6 if self.config["precision"] == "float64" else 1e-3
            assert found == pytest.approx(self.condition_number(name), rel=rtol), name
            assert row["precision"] == self.config["precision"]

    def heal(self) -> None:
        """Do what the message of a failed run asks for, in one stroke."""
        self.mended_weights()
        self.config["models"]["a"].pop("revisions", None)
        shutil.rmtree(self.results, ignore_errors=True)
        shutil.rmtree(self.backup, ignore_errors=True)


EVENTS = [
    Walk.nothing,
    Walk.new_weights,
    Walk.new_weights_of_the_same_date,
    Walk.bad_weights,
    Walk.other_precision,
    Walk.other_rows,
    Walk.other_revisions,
    Walk.revision_that_does_not_exist,
    Walk.other_keeping,
    Walk.deleted_file,
    Walk.damaged_file,
    Walk.deleted_record,
    Walk.exchanged_revisions,
    Walk.backed_up,
    Walk.put_back,
    Walk.killed,
]


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    with WarmProcesses(tmp_path_factory.mktemp("warm")) as processes:
        yield processes


@pytest.mark.parametrize("seed", SEEDS)
def test_every_row_is_right_whatever_happened_before(tmp_path, seed, processes, report):
    walk = Walk(tmp_path, seed, processes)
    story: list[str] = []
    failures = 0
    begun = time.monotonic()
    for step in range(STEPS):
        for event in walk.random.sample(EVENTS, walk.random.choice([1, 1, 2])):
            event(walk)
            story.append(event.__name__)
        target = walk.random.choice(["geometry", *3 * ["results/geometry/summary.csv"]])
        run = walk.run(target, cold=step % COLD == COLD - 1)
        try:
            walk.check(run)
        except AssertionError as error:
            said = f"{error}\nat step {step}, after {story[-12:]}\n{run.stdout[-3000:]}"
            raise AssertionError(said) from None
        failures = failures + 1 if run.returncode else 0
        if failures == 3:
            walk.heal()
            story.append("heal")
            failures = 0
    report(f"{STEPS} steps of seed {seed}: {(time.monotonic() - begun) / STEPS:.2f} s each")
