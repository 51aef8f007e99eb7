"""Runs of the real workflow on Slurm, through its profile, in a folder of their own."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
TINY = ROOT / "resources/tiny-olmo"
STAGES = ("extract", "decompose", "transform")
# The node keeps no accounts, and need not be asked gently.
HERE = ["--slurm-status-command=squeue", "--slurm-init-seconds-before-status-checks=3"]


class Workflow:
    """The workflow with a configuration, in a folder; ``options`` are those of Snakemake."""

    def __init__(self, folder: Path, models: dict, **config):
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.yaml").write_text(yaml.safe_dump({"models": models, **config}))

    def command(self, *options: str) -> list[str]:
        profile = ["--profile", str(ROOT / "profiles/slurm")]
        files = ["--snakefile", str(ROOT / "Snakefile"), "--configfile", "config.yaml"]
        return [sys.executable, "-m", "snakemake", *files, *profile, *HERE, *options]

    def start(self, *options: str, **environment: str) -> subprocess.Popen:
        """Start a run in a session of its own, whose output goes to driver.log."""
        with (self.folder / "driver.log").open("w") as log:
            return subprocess.Popen(
                self.command(*options),
                cwd=self.folder,
                env={**os.environ, **environment},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def run(self, *options: str, **environment: str) -> int:
        return self.start(*options, **environment).wait(timeout=1800)

    def kill(self, driver: subprocess.Popen) -> None:
        """End a run as the kernel would, and then what it left on the cluster and locked."""
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
        if name := re.search(r"SLURM run ID: (\S+)", self.log):
            subprocess.run(["scancel", "--name", name[1]], check=True)
            wait_until(lambda: not slurm("squeue", "--noheader", "--name", name[1]))
        subprocess.run(self.command("--unlock"), cwd=self.folder, check=True, capture_output=True)

    @property
    def log(self) -> str:
        return (self.folder / "driver.log").read_text()

    def submitted(self) -> list[str]:
        """Return the Slurm job ids of a run, in order."""
        return re.findall(r"has been submitted with SLURM jobid (\d+)", self.log)

    def results(self, pattern: str) -> dict[str, Path]:
        """Return {revision: file} of the model ``tiny``."""
        found = (self.folder / "results/geometry/tiny").glob(f"*/{pattern}")
        return {path.parent.name: path for path in found}


def slurm(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def wait_until(condition, seconds: float = 120, driver: subprocess.Popen | None = None) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        assert driver is None or driver.poll() is None, "the run ended before"
        time.sleep(0.1)
