"""Runs the real Snakefile in a folder, by the command line, as a person would."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

REPOSITORY = Path(__file__).parents[1]
# A dry run indents the jobs of a group.
JOB = re.compile(r"^( *)(?:local)?(?:rule|checkpoint) (\w+):\n((?:\1 {4}.*\n)*)", re.MULTILINE)


@dataclass(frozen=True)
class Run:
    """What a run of the workflow left on the terminal."""

    code: int
    output: str

    @property
    def jobs(self) -> set[str]:
        """The jobs that ran, or would run: ``extract_unembedding model/revision``."""
        found = set()
        for _, rule, properties in JOB.findall(self.output):
            wildcards = dict(re.findall(r"\b(model|revision)=([^\s,]+)", properties))
            found.add(" ".join([rule, "/".join(wildcards.values())]).strip())
        return found - {"all", "geometry"}


def command(
    folder: Path, config: Mapping[str, Any] | None, *arguments: str, home: Path = REPOSITORY
) -> list[str]:
    """Return the command line that runs the workflow of ``home`` in ``folder``."""
    line = [sys.executable, "-m", "snakemake", "--snakefile", str(home / "Snakefile")]
    line += ["--directory", str(folder)]
    if config is not None:
        given = folder / "given.yaml"
        given.write_text(yaml.safe_dump(dict(config), sort_keys=False))
        line += ["--configfile", str(given)]
    # The default profile is quiet; tests read off what Snakemake says which jobs run.
    return [*line, "--quiet", "reason", "--cores", "2", "--nocolor", *arguments]


def environment(folder: Path, **variables: str) -> dict[str, str]:
    """Return an environment with no Hub but the one that is given, and no token or cache."""
    kept = {
        k: v for k, v in os.environ.items() if not k.startswith(("HF_", "HUGGING", "SNAKEMAKE_"))
    }
    offline = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(folder / "hf")}
    return {**kept, **offline, **variables}


def snakemake(
    folder: Path,
    config: Mapping[str, Any] | None = None,
    *arguments: str,
    home: Path = REPOSITORY,
    prefix: tuple[str, ...] = (),
    **variables: str,
) -> Run:
    """Run the workflow to its end; ``prefix`` is a command that runs it in turn."""
    done = subprocess.run(
        [*prefix, *command(folder, config, *arguments, home=home)],
        cwd=folder,
        env=environment(folder, **variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=900,
    )
    return Run(done.returncode, done.stdout)


def succeed(folder: Path, config: Mapping[str, Any] | None = None, *a: str, **k: Any) -> Run:
    """Run the workflow, which has to succeed."""
    run = snakemake(folder, config, *a, **k)
    assert run.code == 0, run.output
    return run
