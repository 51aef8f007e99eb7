"""What the rules ask of a checkpoint: functions of the configuration, a model, and a revision.

Snakemake evaluates them while it plans, for every revision and again on every node of a cluster, so
nothing here touches the network.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from unembedding.checkpoints.formats import is_input
from unembedding.checkpoints.formats.safetensors import read_header
from unembedding.checkpoints.revisions import by_step, local_revisions, parse_progress
from unembedding.checkpoints.sources import LocalFile, state_of
from unembedding.concepts.tokenizer import local_tokenizer
from unembedding.concepts.vocabulary import read_vocabulary, table
from unembedding.errors import GeometryError, UserError
from unembedding.records.geometry import Geometry
from unembedding.records.pins import read_resolution
from unembedding.records.serialization import read_record
from unembedding.records.stages import Asked
from unembedding.results import RevisionResults
from unembedding.workflow.configuration import Config, Model
from unembedding.workflow.sizing import matrix_width


def model_of(config: Config, name: str) -> Model:
    """Return what the configuration says of a model; raise UserError where it does not know it."""
    if name not in config.models:
        known = ", ".join(config.models)
        raise UserError(f"There is no model {name!r} in the configuration, only {known}.")
    return config.models[name]


def folder_of(model: Model) -> str | None:
    """Return a local model's folder as text: Snakemake sees no change in other parameters."""
    return str(model.path) if model.path else None


def request_of(model: Model) -> dict[str, Any]:
    """Return what is asked of a model's revisions; of a local one also which there are."""
    return {
        "path": folder_of(model),
        "repo": model.repo,
        "revisions": model.revisions,
        "every": model.every,
        "step": model.step,
        "present": revisions_present(model),
    }


def revisions_present(model: Model) -> list[str]:
    """Return the revisions of a local model, so that a new folder is noticed."""
    try:
        return list(local_revisions(model.path)) if model.path else []
    except GeometryError:
        return []  # the job that resolves them says what is wrong


def checkpoint_files(model: Model, revision: str) -> list[Path]:
    """Return the files of a local checkpoint; one on the Hub is pinned by its commit instead."""
    folder = _checkpoint(model, revision)
    files = folder.iterdir() if folder else ()
    found = (f for f in files if is_input(f.name))
    # A link to nowhere, or what may not be read, is left to the job: its error is of one
    # checkpoint, and Snakemake's would be of the run.
    return sorted(f for f in found if f.is_file() and os.access(f, os.R_OK))


def _checkpoint(model: Model, revision: str) -> Path | None:
    """Return the folder of a local checkpoint."""
    if model.path is None:
        return None
    return _listed(model.path, model.path.stat().st_mtime_ns).get(revision)


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
        step=section.step,
        subfolder=section.subfolder,
        residual=config.residual,
        write=list(config.write),
    )


Recorded = Callable[[Path], Sequence[str] | None]
"""Returns the parameters, as texts, with which Snakemake has recorded a file as made."""


def require_resolved(pinned: Path, request: Mapping[str, Any], recorded: Recorded) -> None:
    """Raise UserError where Snakemake would keep a revisions.tsv that answers another request."""
    resolution, made_with = read_resolution(pinned), recorded(pinned)
    answered = resolution.request
    if made_with and not resolution.done:
        return  # the failure is another parameter, so it is made again
    if pinned.exists() and answered is not None and _is_kept(answered, request, made_with):
        raise UserError(
            f"{pinned} was made for {_difference(answered, request)}, and .snakemake/ has no "
            "record of it, as if that folder had been deleted or the results copied. Delete the "
            "file, and run again; its revisions are pinned anew."
        )


def require_made_as_asked(
    checkpoints: Iterable[tuple[Path, Mapping[str, Any]]], recorded: Recorded
) -> None:
    """Raise UserError where Snakemake would keep a geometry.json that is not what is asked for."""
    kept = [
        f"{path.parent.parent.name}/{path.parent.name} was made with {_difference(made, asked)}"
        for path, asked in checkpoints
        if (made := _made_with(path)) is not None and _is_kept(made, asked, recorded(path))
    ]
    if kept:
        raise UserError(
            f"{kept[0]}, and .snakemake/ has no record of it, as if that folder had been deleted "
            f"or the results copied. So it is with {len(kept)} checkpoints. Delete their folders "
            "of results/geometry/, or put back what was configured, and run again."
        )


def require_categorized_as_asked(
    categories: Iterable[tuple[Path, Mapping[str, Any]]], recorded: Recorded
) -> None:
    """Raise UserError where Snakemake would keep categories of other settings than are asked."""
    for path, asked in categories:
        made = _settings_of(path, path.stat().st_mtime_ns) if path.exists() else None
        if made is None:
            continue
        made = {key: made[key] for key in asked if key in made}  # in the order that is recorded
        if _is_kept(made, asked, recorded(path)):
            raise UserError(
                f"{path} was made with {_difference(made, asked)}, and .snakemake/ has no record "
                "of it, as if that folder had been deleted or the results copied. Delete the file, "
                "and run again."
            )


def require_listed_as_asked(model: Model, tokens: Path, recorded: Recorded) -> None:
    """Raise UserError where Snakemake would keep a tokens.tsv of another local tokenizer."""
    for file in tokenizer_files(model) if tokens.exists() and not recorded(tokens) else ():
        try:
            content = table(read_vocabulary(file))
        except UserError:
            continue  # costs that model its concepts, and no other
        if content != tokens.read_text(encoding="utf-8", errors="replace"):
            raise UserError(
                f"{tokens} is not of {file}, and .snakemake/ has no record of it, as if that "
                "folder had been deleted or the results copied. Delete the file, and run again."
            )


@cache
def _settings_of(path: Path, _changed: int) -> dict[str, Any] | None:
    """Return what categories were made with, None where they cannot be read."""
    try:
        return json.loads(read_header(LocalFile(path), path.name)[1]["settings"])
    except (GeometryError, KeyError, ValueError):
        return None  # the job that reads them says what is wrong


def _is_kept(
    made: Mapping[str, Any], asked: Mapping[str, Any], recorded: Sequence[str] | None
) -> bool:
    """Return whether Snakemake would keep what was ``made`` with other parameters than ``asked``.

    It makes a result again once these differ from those it has recorded. It keeps what it finds
    where it has no record, or one of another file than the one that lies there: a backup that was
    put back, results that were copied.
    """
    return made != asked and repr(made) not in (recorded or ())


def _difference(made: Mapping[str, Any], asked: Mapping[str, Any]) -> str:
    key = next(key for key in asked if made.get(key) != asked[key])
    return f"{key} {made.get(key)!r}, and {asked[key]!r} is asked for"


def _made_with(path: Path) -> dict[str, Any] | None:
    """Return what a geometry.json was made with, None where there is none that can be read."""
    try:
        state = path.stat()
    except OSError:
        return None
    return _asked_in(path, state.st_mtime_ns, state.st_size)


@cache
def _asked_in(path: Path, *_state: int) -> dict[str, Any] | None:
    """Read a file once for all the rules that gather it."""
    try:
        return vars(read_record(path, Geometry).asked)
    except UserError:
        return None  # the job that gathers it says what is wrong


def tokenizer_files(model: Model) -> list[Path]:
    """Return the local tokenizer.json that a model's tokens are read from, where there is one."""
    if model.tokenizer is not None:
        return [model.tokenizer] if model.tokenizer.is_file() else []
    found = local_tokenizer(model.path) if model.path else None
    return [found] if found else []


def wordnet_files(wordnet: Path, pos: Iterable[str]) -> list[Path]:
    """Return WordNet's database files, as far as they are there."""
    names = {f"{kind}.{part}" for part in pos for kind in ("data", "index")}
    names |= {f"{part}.exc" for part in pos}
    return sorted(f for n in names for f in (wordnet / n, wordnet / f"{n}.gz") if f.is_file())


def categories_of(config: Config, model: str, wordnet: Path) -> dict[str, Any]:
    """Return all that a model's categories depend on, beside its tokens."""
    files = wordnet_files(wordnet, config.concepts.pos)
    asked = config.concepts.model_dump(exclude={"wordnet"})
    return {**asked, "rows": model_of(config, model).rows, "wordnet": _content(tuple(files))}


@cache
def _content(files: tuple[Path, ...]) -> str:
    """Return a digest of small files, wherever and whenever they were written."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.name}\0".encode() + file.read_bytes())
    return digest.hexdigest()[:16]


MOST_SHOWN = 6  # checkpoints of a model whose tokens the explorer has


def shown(model: Model, revisions: Iterable[str]) -> list[str]:
    """Return the revisions whose tokens are explored: the first, the last, and some between."""
    ordered = sorted(revisions, key=partial(by_step, pattern=model.step))
    ordered = [name for name in ordered if parse_progress(name, model.step)] or ordered
    count = min(MOST_SHOWN, len(ordered))
    return [ordered[round(i * (len(ordered) - 1) / max(count - 1, 1))] for i in range(count)]


def width(model: Model, revision: str, results: Path) -> int:
    """Return the width of a revision's matrix; ``results`` is the folder of its results."""
    return matrix_width(RevisionResults(results), _checkpoint(model, revision))


def require_revision(revision: str, known: Mapping[str, str], model: str) -> None:
    """Raise UserError where the comparison of backends names a revision that a model has not."""
    if revision not in known:
        raise UserError(
            f"backends.checkpoint: {revision!r} is none of the revisions of {model} "
            f"({', '.join(known)})."
        )


def until_nothing(until: Iterable[str], logs: Path, since: float) -> list[str]:
    """Return lines for a run `--until` a rule whose jobs are known only once revisions are."""
    stages = {"extract_unembedding", "decompose_covariance", "transform_unembedding"}
    behind = sorted(stages.intersection(until))
    if not behind or any(log.stat().st_mtime >= since for log in logs.glob("*/*/*.log")):
        return []
    return [
        f"Nothing of {', '.join(behind)} was made: with --until Snakemake does not resolve the",
        "revisions, so it knows none of these jobs. Name a target instead: `unembeddings`, or a",
        "file.",
        "",
    ]


def compared_rows(config: Config) -> int | None:
    """Return how many rows a job of the comparison uses: the configuration's, or the model's."""
    if config.backends.checkpoint is None:
        return config.backends.rows
    return config.models[config.backends.checkpoint.partition("/")[0]].rows


def conclusions(choice: Path) -> dict[str, str]:
    """Return what the comparison says of this machine, for the captions.

    Raises FileNotFoundError until there is one, which tells Snakemake to ask again later.
    """
    return json.loads(choice.read_text(encoding="utf-8"))["conclusions"]
