"""One row per checkpoint and part of speech, results/concepts/summary.csv: checked and gathered."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, make_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from unembedding.concepts.scores import SCORES, mean_scores
from unembedding.concepts.storage import (
    CATEGORIES,
    CAUSAL,
    TABLE,
    StoredCategories,
    load_categories,
    read_metadata,
    read_scores,
)
from unembedding.errors import UserError
from unembedding.pages import html_table, write_page
from unembedding.records.geometry import Geometry, read_geometry
from unembedding.records.serialization import write_table
from unembedding.records.stages import Asked
from unembedding.records.summary import of_other_models
from unembedding.results import (
    GEOMETRY,
    ConceptModel,
    ConceptResults,
    GeometryResults,
    RevisionResults,
)

Row: Any = make_dataclass(
    "Row",
    [
        *((name, str) for name in ("model", "revision")),
        *((name, int | None) for name in ("stage", "step", "tokens")),
        ("pos", str),
        *((name, int) for name in ("minimum", "synsets", "members")),
        *((n, float | None) for score in SCORES for n in (score, f"{score}_null")),
        ("asked", bool),
    ],
    frozen=True,
)
"""A row of summary.csv: the mean of each score over synsets, beside that of shuffled labels.

``asked``: whether the configuration of the last run asks for it; rows of other models are kept.
"""


@dataclass(frozen=True)
class Scored:
    """One checkpoint's scores, of what is asked for."""

    results: RevisionResults
    geometry: Geometry
    rows: Sequence[Any]
    """A Row for each part of speech."""
    columns: Mapping[str, np.ndarray]
    """Each column of scores.csv (S)."""


def gather(
    places: Iterable[tuple[Path, Asked]], settings: Mapping[str, Mapping[str, Any]]
) -> tuple[list[Scored], list[str]]:
    """Return the scores of checkpoints, and what is wrong with those that cannot be used.

    ``places`` are geometry.json of each and what is asked of it; ``settings`` are those asked of
    the categories of each model.
    """
    found: list[Scored] = []
    mistakes: dict[str, None] = {}
    categories: dict[str, StoredCategories] = {}
    for path, asked in places:
        results = RevisionResults(path.parent)
        try:
            if asked.model not in categories:
                categories[asked.model] = _asked_for(results.concepts.model, settings[asked.model])
            described = read_geometry(path, asked)
            found.append(_scored(results, described, categories[asked.model]))
        except UserError as error:
            mistakes[str(error)] = None  # once, where it is of a whole model
    return found, list(mistakes)


def gather_all(
    geometries: Iterable[str],
    checkpoints: Iterable[Mapping[str, Any]],
    settings: Mapping[str, Mapping[str, Any]],
) -> list[Scored]:
    """Return what ``gather`` does of a rule's inputs; raise UserError for any mistake."""
    asked = [Asked(**checkpoint) for checkpoint in checkpoints]
    found, mistakes = gather(zip(map(Path, geometries), asked, strict=True), settings)
    if mistakes:
        raise UserError("\n".join(mistakes))
    return found


def _asked_for(results: ConceptModel, settings: Mapping[str, Any]) -> StoredCategories:
    """Return a model's categories, where they were made with what is asked for."""
    stored = load_categories(results)
    for key, value in settings.items():
        if (made := stored.settings.get(key)) != value:
            raise UserError(
                f"{results.categories} was made with {key} {made!r}, and {value!r} is asked for. "
                "Delete it and run again."
            )
    return stored


def _scored(results: RevisionResults, geometry: Geometry, stored: StoredCategories) -> Scored:
    """Return the scores of a checkpoint, where they are of these categories and of its g."""
    concepts = results.concepts
    made_of = read_metadata(concepts.directions)
    for key, expected in ((CATEGORIES, stored.checksum), (CAUSAL, geometry.digest_of_g)):
        if made_of.get(key) != expected:
            raise UserError(
                f"{concepts.directions} was made of another {key.partition('_')[0]}.safetensors "
                "than the one that is there. Delete its folder and run again."
            )
    pos, columns = read_scores(concepts.scores, made_of.get(TABLE, ""))
    rows = [_row(geometry, stored, pos, columns, part) for part in dict.fromkeys(pos)]
    return Scored(results, geometry, rows, columns)


def _row(
    geometry: Geometry,
    stored: StoredCategories,
    pos: Sequence[str],
    columns: Mapping[str, np.ndarray],
    part: str,
) -> Any:
    training, categories = geometry.training, stored.categories
    chosen = [i for i, found in enumerate(pos) if found == part]
    members = [categories.token_ids[categories.of(i)] for i in chosen]
    return Row(
        model=geometry.model,
        revision=geometry.revision,
        stage=training and training.stage,
        step=training and training.step,
        tokens=training and training.tokens,
        pos=part,
        minimum=stored.settings["minimum"],
        synsets=len(chosen),
        members=len(np.unique(np.concatenate(members))),
        **mean_scores({name: values[chosen] for name, values in columns.items()}),
        asked=True,
    )


def write_summary(
    results: ConceptResults, scored: Sequence[Scored], models: Collection[str]
) -> None:
    """Write summary.csv and its page: these checkpoints of the ``models``, and those of others."""
    others = [replace(row, asked=False) for row in _of_other_models(results, models)]
    rows = [row for checkpoint in scored for row in checkpoint.rows] + others
    rows.sort(key=lambda row: row.model)
    write_table(results.summary, Row, rows, digits=6)
    page = results.summary_page
    write_page(page, "Scores of concepts", _findings(rows), html_table(results.summary))


def _of_other_models(results: ConceptResults, models: Collection[str]) -> Iterator[Any]:
    """Yield the rows of all models but these, as far as they can be read."""
    geometry = GeometryResults(results.folder.parent / GEOMETRY.folder.name)
    for described in of_other_models(geometry, models)[0]:
        revision = geometry.model(described.model).revision(described.revision)
        if revision.concepts.scores.is_file():
            with suppress(UserError):  # what is damaged is named once its model is asked for
                stored = load_categories(revision.concepts.model)
                yield from _scored(revision, described, stored).rows


def _findings(rows: Sequence[Any]) -> list[str]:
    """Say of each model, in a sentence, how well its first and last checkpoint tell members."""
    found = []
    for model, pos in dict.fromkeys((row.model, row.pos) for row in rows if row.asked):
        of_model = [row for row in rows if (row.model, row.pos) == (model, pos)]
        of_model = [row for row in of_model if row.auc is not None]
        if of_model:
            first, last = of_model[0], of_model[-1]
            early = f"{first.auc:.2f} at {first.revision} and " if first is not last else ""
            null = f" (shuffled labels: {last.auc_null:.2f})" if last.auc_null is not None else ""
            found.append(
                f"{model}: held-out members of {last.synsets} {pos} synsets are told from other "
                f"tokens with an AUC of {early}{last.auc:.2f} at {last.revision}{null}."
            )
    return found
