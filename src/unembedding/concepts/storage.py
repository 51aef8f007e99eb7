"""The files of concepts: arrays with a checksum over all of them, and tables of synsets."""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from unembedding.concepts.categories import Categories
from unembedding.concepts.directions import Directions
from unembedding.concepts.measuring import Concepts
from unembedding.concepts.scores import SCORES
from unembedding.errors import UserError
from unembedding.files import CHECKSUM, replacing, write_text
from unembedding.results import ConceptModel, ConceptRevision

ARRAYS = ("token_ids", "offsets", "held_out", "half", "parent", "edges", "words", "permutations")
DIRECTIONS = {"directions": "all", "directions_train": "train"}
"""Names in directions.safetensors, and the subset of members that each is found from."""
SYNSETS = ("id", "name", "pos", "depth", "members")
SETTINGS = "settings"
# What directions.safetensors was made of, and the digest of the table that was written with it.
CATEGORIES, CAUSAL, TABLE = "categories", "causal_digest", "scores"


def save_arrays(path: Path, arrays: Mapping[str, np.ndarray], metadata: Mapping[str, str]) -> str:
    """Write a safetensors file whole; return the checksum of its arrays and metadata."""
    found = _checksum(arrays, metadata)
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    with replacing(path) as file:
        file.write(save(contiguous, {**metadata, CHECKSUM: found}))
    return found


def load_arrays(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Return the arrays and metadata of a file, checked; raise UserError naming a damaged one."""
    try:
        with safe_open(path, "np") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            metadata = dict(file.metadata() or {})
    except (OSError, SafetensorError, TypeError) as error:
        raise UserError(f"{path} cannot be read ({error}). Delete it and run again.") from None
    others = {key: value for key, value in metadata.items() if key != CHECKSUM}
    if metadata.get(CHECKSUM) != _checksum(arrays, others):
        raise UserError(f"{path} is damaged: it is not what was written. Delete it and run again.")
    return arrays, metadata


def read_metadata(path: Path) -> dict[str, str]:
    """Return what a file's header says it was made of, without reading the arrays."""
    try:
        with safe_open(path, "np") as file:
            return dict(file.metadata() or {})
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path} cannot be read ({error}). Delete it and run again.") from None


def _checksum(arrays: Mapping[str, np.ndarray], metadata: Mapping[str, str]) -> str:
    digest = hashlib.sha256(json.dumps(dict(metadata), sort_keys=True).encode())
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def save_categories(results: ConceptModel, categories: Categories, settings: Any) -> None:
    """Write a model's categories.safetensors and synsets.csv; ``settings`` they were made with."""
    rows = zip(
        categories.ids, categories.names, categories.pos, categories.depth, categories.sizes,
        strict=True,
    )  # fmt: skip
    table = _table(SYNSETS, rows)
    write_text(results.synsets, table)
    metadata = {SETTINGS: json.dumps(settings, sort_keys=True), "synsets": digest(table)}
    save_arrays(results.categories, {n: getattr(categories, n) for n in ARRAYS}, metadata)


@dataclass(frozen=True)
class StoredCategories:
    """Categories as they lie on disk."""

    categories: Categories
    settings: dict[str, Any]
    checksum: str


def load_categories(results: ConceptModel) -> StoredCategories:
    """Return what ``save_categories`` wrote; raise UserError where it is damaged."""
    arrays, metadata = load_arrays(results.categories)
    table = read_text(results.synsets)
    if digest(table) != metadata.get("synsets"):
        raise UserError(
            f"{results.synsets} is not what {results.categories.name} was written with. Delete "
            "both and run again."
        )
    rows = list(csv.DictReader(io.StringIO(table)))
    categories = Categories(
        ids=[row["id"] for row in rows],
        names=[row["name"] for row in rows],
        pos=[row["pos"] for row in rows],
        depth=np.array([int(row["depth"]) for row in rows], np.int32),
        **arrays,
    )
    return StoredCategories(categories, json.loads(metadata[SETTINGS]), metadata[CHECKSUM])


def save_concepts(
    results: ConceptRevision, stored: StoredCategories, causal_digest: str, concepts: Concepts
) -> None:
    """Write matrices.safetensors, scores.csv and directions.safetensors, which names the others."""
    scores = _scores_table(stored.categories, concepts.scores, concepts.nulls)
    made_of = {CATEGORIES: stored.checksum, CAUSAL: causal_digest}
    save_arrays(results.matrices, vars(concepts.matrices), made_of)
    write_text(results.scores, scores)
    arrays = {}
    for name, key in DIRECTIONS.items():
        found = concepts.directions[key]
        arrays[name] = found.vectors.astype(np.float32)
        arrays[f"shrinkage_of_{name}"] = found.shrinkage
    save_arrays(results.directions, arrays, {**made_of, TABLE: digest(scores)})


def load_directions(results: ConceptRevision) -> tuple[dict[str, Directions], dict[str, str]]:
    """Return the directions that ``save_concepts`` wrote, by subset, and what they were made of."""
    arrays, made_of = load_arrays(results.directions)
    found = {
        key: Directions(arrays[name], arrays[f"shrinkage_of_{name}"])
        for name, key in DIRECTIONS.items()
    }
    return found, made_of


def load_made_with(results: ConceptRevision, path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of a file made with a revision's directions, or of them.

    Raises UserError where it was made with others.
    """
    arrays, made_of = load_arrays(path)
    directions = read_metadata(results.directions)
    if any(made_of.get(key) != directions.get(key) for key in (CATEGORIES, CAUSAL)):
        raise UserError(f"{path} is not of the directions beside it. Delete it and run again.")
    return arrays


def _scores_table(
    categories: Categories, scores: Mapping[str, np.ndarray], nulls: Mapping[str, np.ndarray]
) -> str:
    """Return scores.csv: a row per synset, each score beside that of shuffled labels."""
    columns: dict[str, Any] = {
        "id": categories.ids,
        "name": categories.names,
        "pos": categories.pos,
        "depth": categories.depth,
        "members": categories.sizes,
    }
    for name in SCORES:
        columns |= {name: scores[name], f"{name}_null": nulls[name]}
    return _table(columns, zip(*columns.values(), strict=True))


def read_scores(path: Path, expected: str) -> tuple[list[str], dict[str, np.ndarray]]:
    """Return the part of speech of each row of scores.csv, and each column of scores.

    ``expected`` is the table's digest; raises UserError where it has another.
    """
    text = read_text(path)
    if digest(text) != expected:
        raise UserError(
            f"{path} is not what was written with the directions beside it. Delete the folder and "
            "run again."
        )
    rows = list(csv.DictReader(io.StringIO(text)))
    names = [n for score in SCORES for n in (score, f"{score}_null")]
    columns = {n: np.array([float(r[n]) if r[n] else np.nan for r in rows]) for n in names}
    return [row["pos"] for row in rows], columns


def read_text(path: Path) -> str:
    """Return a text file's content; raise UserError where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}). Delete it and run again.") from None


def digest(text: str) -> str:
    """Return the SHA-256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()


def _table(header: Any, rows: Any) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([_cell(value) for value in row] for row in rows)
    return text.getvalue()


def _cell(value: Any) -> Any:
    if isinstance(value, float | np.floating):
        return "" if np.isnan(value) else f"{value:.6g}"
    return value
