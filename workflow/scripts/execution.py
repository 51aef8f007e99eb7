"""What a person should know before the jobs of a run start: where they run, and what is missing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping

TO_FILL_IN = {
    "slurm_account": "Slurm takes your default account",
    "slurm_partition": "Slurm takes its default partition",
}


class ExecutionError(Exception):
    """A run that could not end well, and what to change."""


def notices(executor: str, conda: bool, resources: Mapping[str, object]) -> list[str]:
    """Return a line for each thing that is left to a default; ``resources`` are those of a job."""
    lines = []
    if not conda:
        lines.append(
            f"Without --use-conda every job runs in the environment of Snakemake itself, "
            f"{sys.prefix}."
        )
    if executor == "slurm":
        lines += [
            f"{name} is not filled in (profiles/slurm/config.yaml): {instead}."
            for name, instead in TO_FILL_IN.items()
            if not resources.get(name)
        ]
    return lines


def require_accounting() -> None:
    """Raise ExecutionError where sacct cannot tell the state of jobs.

    The Slurm executor asks it by default, and waits for ever for an answer that never comes.
    """
    asked = subprocess.run(
        ["sacct", "--noheader", "--allocations"], capture_output=True, text=True, check=False
    )
    if asked.returncode:
        raise ExecutionError(
            f"`sacct` cannot tell the state of jobs here ({asked.stderr.strip()}). Set "
            "`slurm-status-command: squeue` in profiles/slurm/config.yaml, or give "
            "--slurm-status-command squeue."
        )
