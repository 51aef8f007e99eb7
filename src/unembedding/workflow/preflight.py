"""What a person should know before the jobs of a run start: where they run, and what is missing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from shutil import which

from unembedding.errors import UserError

TO_FILL_IN = {
    "slurm_account": "Slurm takes your default account",
    "slurm_partition": "Slurm takes its default partition",
}


def require_writable(*folders: Path) -> None:
    """Raise UserError where a folder is there and cannot be written to."""
    for folder in folders:
        if folder.exists() and not os.access(folder, os.W_OK):
            raise UserError(
                f"{folder}/ cannot be written: it is on a read-only file system, or its "
                "permissions forbid it. Change that, or run in another folder with --directory."
            )


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


def require_slurm(partition: str | None, asks_sacct: bool) -> None:
    """Raise UserError where a run on Slurm would fail without a reason, or wait for ever.

    Snakemake does not show why a group could not be submitted, and its executor waits for an
    answer of sacct that may never come.
    """
    if which("sbatch") is None:
        raise UserError(
            "There is no `sbatch` here. Run this where jobs can be submitted, on a login node, or "
            "without --profile profiles/slurm."
        )
    if asks_sacct and (refused := _asked("sacct", "--noheader", "--allocations").stderr.strip()):
        raise UserError(
            f"`sacct` cannot tell the state of jobs here ({refused}). Set "
            "`slurm-status-command: squeue` in profiles/slurm/config.yaml, or give "
            "--slurm-status-command squeue."
        )
    listed = ("sinfo", "--noheader", "--format=%R")
    if partition and not _asked(*listed, "--partition", partition).stdout.strip():
        known = ", ".join(_asked(*listed).stdout.split())
        raise UserError(
            f"Slurm has no partition {partition!r}, only {known}. Change `slurm_partition` in "
            "profiles/slurm/config.yaml."
        )


def _asked(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)
