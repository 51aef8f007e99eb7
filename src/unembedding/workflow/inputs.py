"""What the rules ask of a checkpoint: functions of the configuration, a model, and a revision.

Snakemake evaluates them while it plans, for every revision and again on every node of a cluster, so
nothing here touches the network.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from unembedding.checkpoints.revisions import LOCAL, local_revisions
from unembedding.checkpoints.sources import state_of
from unembedding.errors import GeometryError, UserError
from unembedding.files import read_json_file
from unembedding.records.stages import Asked
from unembedding.results import RevisionResults
from unembedding.workflow.configuration import Config, Model
from unembedding.workflow.sizing import matrix_width

PATTERNS = ("*.safetensors", "*.bin", "*.pt", "*.json")


def model_of(config: Config, name: str) -> Model:
    """Return what the configuration says of a model; raise UserError where it does not know it."""
    if name not in config.models:
        known = ", ".join(config.models)
        raise UserError(f"There is no model {name!r} in the configuration, only {known}.")
    return config.models[name]


def revisions_present(model: Model) -> list[str]:
    """Return the revisions of a local model, so that a new folder is noticed."""
    try:
        return list(local_revisions(model.path)) if model.path else []
    except GeometryError:
        return []  # the job that resolves them says what is wrong


def checkpoint_files(model: Model, revision: str) -> list[Path]:
    """Return the files of a local checkpoint; one on the Hub is pinned by its commit instead."""
    folder = model.path and _listed(model.path, model.path.stat().st_mtime_ns).get(revision)
    found = (f for pattern in PATTERNS for f in folder.glob(pattern)) if folder else ()
    # A link to nowhere is left to the job, whose error is of one checkpoint, not of the run.
    return sorted(f for f in found if f.exists())


@cache
def _listed(folder: Path, _changed: int) -> dict[str, Path]:
    """List a folder once for all of its revisions."""
    return local_revisions(folder)


def asked(config: Config, model: str, revision: str, commit: str | None) -> Asked:
    """Return all that the numbers of a checkpoint depend on; ``commit`` is None until pinned."""
    section = model_of(config, model)
    return Asked(
        model=model,
        revision=revision,
        repo=section.repo or str(section.path),
        commit=commit,
        tensor=section.unembedding,
        state=state_of(checkpoint_files(section, revision)) if section.path else None,
        precision=config.precision,
        rows=section.rows,
        on_rank_deficient=config.on_rank_deficient,
    )


def width(model: Model, revision: str, results: Path) -> int:
    """Return the width of a revision's matrix; ``results`` is the folder of its results."""
    folder = model.path
    if folder is not None and revision != LOCAL:
        folder = folder / revision
    return matrix_width(RevisionResults(results), folder)


def require_revision(revision: str, known: Mapping[str, str], model: str) -> None:
    """Raise UserError where the comparison of backends names a revision that a model has not."""
    if revision not in known:
        raise UserError(
            f"backends.checkpoint: {revision!r} is none of the revisions of {model} "
            f"({', '.join(known)})."
        )


def compared_rows(config: Config) -> int | None:
    """Return how many rows a job of the comparison uses: the configuration's, or the model's."""
    if config.backends.checkpoint is None:
        return config.backends.rows
    return config.models[config.backends.checkpoint.partition("/")[0]].rows


def conclusions(choice: Path) -> dict[str, str]:
    """Return what the comparison says of this machine, for the captions."""
    return read_json_file(choice)["conclusions"]
