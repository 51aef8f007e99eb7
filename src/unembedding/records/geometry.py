"""What is recorded of one checkpoint (geometry.json), and of all (summary.csv)."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from unembedding.checkpoints.revisions import folder_name, parse_progress, read_revisions
from unembedding.errors import GeometryError, UserError
from unembedding.files import read_facts

# The columns of summary.csv: where each value stands in geometry.json.
COLUMNS: dict[str, tuple[str, ...]] = {
    "model": ("model",),
    "revision": ("revision",),
    "commit": ("commit",),
    "stage": ("training", "stage"),
    "step": ("training", "step"),
    "tokens": ("training", "tokens"),
    "rows": ("rows",),
    "matrix_rows": ("matrix_rows",),
    "width": ("width",),
    "dtype": ("unembedding", "dtype"),
    "tied": ("unembedding", "tied"),
    "rank": ("rank",),
    "condition_number": ("condition_number",),
    "effective_rank": ("effective_rank",),
    "whitening_residual": ("whitening_residual",),
    "backend": ("backend",),
    "precision": ("precision",),
    "seconds_extract": ("seconds", "extract"),
    "seconds_decompose": ("seconds", "decompose"),
    "seconds_transform": ("seconds", "transform"),
    "bytes_fetched": ("bytes_fetched",),
    "verified": ("unembedding", "verified"),
    "duplicate_of": ("duplicate_of",),
    "warnings": ("warnings",),
}


def describe(
    model: str,
    revision: str,
    extract: dict[str, Any],
    decompose: dict[str, Any],
    transform: dict[str, Any],
    asked: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the content of geometry.json from the facts that the three stages recorded.

    ``asked`` has what the configuration asks of them now (see ``unasked``). Raises
    GeometryError where they are of another checkpoint, of different matrices, or of what was not
    asked: a job may outlive its driver, and write into a later run.
    """
    stages = {"extract": extract, "decompose": decompose, "transform": transform}
    if extract["revision"] != revision:
        raise GeometryError(
            f"What was fetched for {model}/{revision} says that it is {extract['revision']!r}. "
            "Delete the revision's folder and run again."
        )
    used = {facts["unembedding_sha256"] for facts in (decompose, transform)}
    if used != {extract["sha256"]}:
        raise GeometryError(
            f"The stages of {model}/{extract['revision']} are not of the same matrix: "
            f"{extract['sha256']} was fetched, and {', '.join(sorted(used))} used. Delete the "
            "revision's folder and run again."
        )
    digest = transform["decomposition_sha256"]
    if decompose["decomposition_sha256"] != digest:
        raise GeometryError(
            f"profiles/decompose.json of {model}/{revision} is about another decomposition than "
            "the one there. Delete the revision's folder and run again."
        )
    progress = parse_progress(extract["revision"])
    warnings = [w for facts in stages.values() for w in facts["warnings"]]
    geometry = {
        "model": model,
        "repo": extract["repo"],
        "revision": extract["revision"],
        "commit": extract["commit"],
        "training": vars(progress) if progress else None,
        "unembedding": {
            key: extract[key] for key in ("tensor", "file", "tied", "dtype", "sha256", "verified")
        },
        "rows": transform["rows"],
        "matrix_rows": decompose["height"],
        "vocabulary": extract["vocabulary"],
        "width": decompose["width"],
        "rank": transform["rank"],
        "condition_number": transform["condition_number"],
        "effective_rank": transform["effective_rank"],
        "whitening_residual": transform["whitening_residual"],
        "precision": decompose["precision"],
        "decomposition_sha256": digest,
        "causal_sha256": transform["causal_sha256"],
        "backend": decompose["backend"],
        "device": decompose["device"],
        "backend_reason": decompose["reason"],
        "threads": decompose["threads"],
        "cpus_allowed": decompose["cpus_allowed"],
        "blas": decompose["blas"],
        "jobs": {stage: facts["job"] for stage, facts in stages.items()},
        "seconds": {stage: facts["seconds"] for stage, facts in stages.items()},
        "steps": {stage: facts["steps"] for stage, facts in stages.items()},
        "bytes_fetched": extract["bytes_fetched"],
        "made_with": {stage: facts["made_with"] for stage, facts in stages.items()},
        "warnings": list(dict.fromkeys(warnings)),
    }
    if asked is not None and (difference := unasked(geometry, asked)):
        raise GeometryError(
            f"{difference}; a job of an earlier run may have written it. Delete the revision's "
            "folder and run again."
        )
    return geometry


def unasked(geometry: Mapping[str, Any], asked: Mapping[str, Any]) -> str | None:
    """Say what a geometry.json was made with that is not ``asked`` for; None where all is.

    ``asked`` has repo, commit, tensor, precision and rows, of which None is left to the checkpoint.
    """
    found = {**geometry, **geometry["unembedding"]}
    given = {key: value for key, value in asked.items() if value is not None}
    for key, value in {"rows": geometry["matrix_rows"], **given}.items():
        if found[key] != value:
            name = f"{geometry['model']}/{geometry['revision']}"
            return f"{name} was made with {key} {found[key]!r}, and {value!r} is asked for"
    return None


def gather(descriptions: Iterable[Path]) -> list[dict[str, Any]]:
    """Return the content of each geometry.json, and of which earlier one it is a duplicate.

    Raises GeometryError for one that lies in the folder of another model or revision, is of another
    commit than the revision is pinned to, or of other files than those beside it.
    """
    pinned = cache(_pinned)
    geometries = [_in_its_place(path, pinned(path.parents[1])) for path in descriptions]
    for same in identical(geometries):
        first, *others = (geometries[i] for i in same)
        for other in others:
            other["duplicate_of"] = f"{first['model']}/{first['revision']}"
    return [{"duplicate_of": None, **geometry} for geometry in geometries]


def _pinned(model: Path) -> dict[str, str]:
    file = model / "revisions.tsv"
    return read_revisions(file) if file.exists() else {}


def _in_its_place(path: Path, pinned: Mapping[str, str]) -> dict[str, Any]:
    geometry = read_facts(path)
    own = (geometry["model"], folder_name(geometry["revision"]))
    if own != path.parts[-3:-1]:
        raise GeometryError(
            f"{path} describes another checkpoint, {geometry['model']}/{geometry['revision']}. "
            "Delete it and run again."
        )
    revision, commit = geometry["revision"], geometry["commit"]
    if pinned.get(revision, commit) != commit:
        raise GeometryError(
            f"{path} is of the commit {commit}, and revisions.tsv pins {pinned[revision]}. Delete "
            "the revision's folder and run again."
        )
    for file in ("unembedding", "decomposition", "causal"):
        if (beside := path.with_name(f"{file}.safetensors")).exists():
            require_described(geometry, file, beside)
    return geometry


def require_described(geometry: Mapping[str, Any], what: str, path: Path) -> None:
    """Raise GeometryError where a file is not the one that a geometry.json is of.

    Such as one by a job that went on after its driver had been killed, beside a run that was
    configured otherwise.
    """
    from unembedding.tensors.files import (  # imports NumPy; the Snakefile needs none
        SHA256,
        TensorFile,
    )

    gamma = geometry["unembedding"]["sha256"]
    described = gamma if what == "unembedding" else geometry.get(f"{what}_sha256")
    if TensorFile(path).metadata.get(SHA256) != described:
        raise GeometryError(
            f"{path} is not what {geometry['model']}/{geometry['revision']} was described from "
            "(geometry.json). Delete the revision's folder and run again."
        )


def identical(geometries: Sequence[dict[str, Any]]) -> list[list[int]]:
    """Return the positions of checkpoints whose γ are equal byte for byte, a list for each γ."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    for position, geometry in enumerate(geometries):
        gamma = geometry["unembedding"]
        key = (gamma["sha256"], gamma["dtype"], geometry["matrix_rows"], geometry["width"])
        groups.setdefault(key, []).append(position)
    return list(groups.values())


def summary(geometries: Iterable[dict[str, Any]]) -> str:
    """Return the content of summary.csv, one row per checkpoint that was gathered, in order."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for geometry in geometries:
        writer.writerow([_cell(geometry, place) for place in COLUMNS.values()])
    return text.getvalue()


def finished(results: Path) -> list[Path]:
    """Return each geometry.json of a folder of results, in the order of summary.csv.

    That is models by name, and of each the revisions as its revisions.tsv lists them.
    """
    return [
        path
        for pinned in sorted(results.glob("*/revisions.tsv"))
        for revision in read_revisions(pinned)
        if (path := pinned.parent / folder_name(revision) / "geometry.json").is_file()
    ]


def _cell(geometry: Any, place: tuple[str, ...]) -> Any:
    value = geometry
    for key in place:
        value = None if value is None else value[key]
    if isinstance(value, list):
        return "; ".join(value)
    return str(value).lower() if isinstance(value, bool) else value


if __name__ == "__main__":  # python -m unembedding.records.geometry results/geometry > summary.csv
    try:
        print(summary(gather(finished(Path(sys.argv[1])))), end="")
    except UserError as error:
        sys.exit(f"Error: {error}")
