"""All checkpoints in one table: summary.csv."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from unembedding.errors import UserError
from unembedding.records.geometry import Geometry, read_geometry
from unembedding.records.pins import read_pins
from unembedding.records.serialization import table, write_table
from unembedding.records.stages import Asked
from unembedding.results import GeometryResults


@dataclass(frozen=True)
class Row:
    """A row of summary.csv."""

    model: str
    revision: str
    commit: str
    stage: int | None
    step: int | None
    tokens: int | None
    rows: int
    matrix_rows: int
    width: int
    dtype: str
    tied: bool
    rank: int
    condition_number: float | None
    effective_rank: float
    whitening_residual: float
    mean_of_g: float
    reproducibility: float | None
    backend: str
    precision: str
    seconds_extract: float
    seconds_decompose: float
    seconds_transform: float
    bytes_fetched: int
    verified: bool
    asked: bool
    """Whether the configuration of the last run asks for it; rows of other models are kept."""
    duplicate_of: str | None
    """The first row with the same γ, byte for byte."""
    warnings: list[str]


def read_all(places: Iterable[tuple[Path, Asked | None]]) -> tuple[list[Geometry], list[str]]:
    """Return what each geometry.json holds, and what is wrong with those that cannot be used."""
    geometries, mistakes = [], []
    for path, asked in places:
        try:
            geometries.append(read_geometry(path, asked))
        except UserError as error:
            mistakes.append(str(error))
    return geometries, mistakes


def summarize(geometries: Sequence[Geometry], models: Collection[str]) -> list[Row]:
    """Return a row for each checkpoint, in this order; ``models`` are those that are asked for."""
    first: dict[int, str] = {}
    for same in identical(geometries):
        first |= {position: geometries[same[0]].name for position in same[1:]}
    return [_row(g, g.model in models, first.get(i)) for i, g in enumerate(geometries)]


def identical(geometries: Sequence[Geometry]) -> list[list[int]]:
    """Return the positions of checkpoints whose γ are equal byte for byte, a list for each γ."""
    groups: dict[tuple[object, ...], list[int]] = {}
    for position, geometry in enumerate(geometries):
        gamma = geometry.unembedding
        key = (gamma.digest, gamma.dtype, geometry.matrix_rows, geometry.width)
        groups.setdefault(key, []).append(position)
    return list(groups.values())


def of_other_models(
    results: GeometryResults, models: Collection[str]
) -> tuple[list[Geometry], list[str]]:
    """Return the finished checkpoints of all models but these, and what cannot be read of them."""
    found, mistakes = [], []
    for pinned in sorted(results.folder.glob("*/revisions.tsv")):
        model = results.model(pinned.parent.name)
        if model.folder.name in models:
            continue
        try:
            paths = [model.revision(revision).geometry for revision in read_pins(pinned)]
        except UserError as error:
            mistakes.append(str(error))
            continue
        geometries, unread = read_all((path, None) for path in paths if path.is_file())
        found += geometries
        mistakes += unread
    return found, mistakes


def write_summary(
    target: Path, geometries: Sequence[Geometry], models: Collection[str]
) -> list[str]:
    """Write summary.csv of these checkpoints of the configured ``models``, and those of others.

    Models come by name. Returns warnings: checkpoints with the same γ, and what cannot be read of
    other models.
    """
    others, mistakes = of_other_models(GeometryResults(target.parent), models)
    rows = summarize(sorted([*geometries, *others], key=lambda g: g.model), models)
    write_table(target, Row, rows)
    return [
        f"γ of {row.model}/{row.revision} is byte for byte that of {row.duplicate_of}"
        for row in rows
        if row.duplicate_of and row.asked
    ] + [f"Left out of the summary: {mistake}" for mistake in mistakes]


def _row(geometry: Geometry, asked: bool, duplicate_of: str | None) -> Row:
    training, gamma = geometry.training, geometry.unembedding
    return Row(
        model=geometry.model,
        revision=geometry.revision,
        commit=geometry.commit,
        stage=training.stage if training else None,
        step=training.step if training else None,
        tokens=training.tokens if training else None,
        rows=geometry.rows,
        matrix_rows=geometry.matrix_rows,
        width=geometry.width,
        dtype=gamma.dtype,
        tied=gamma.tied,
        rank=geometry.rank,
        condition_number=geometry.condition_number,
        effective_rank=geometry.effective_rank,
        whitening_residual=geometry.whitening_residual,
        mean_of_g=geometry.mean_of_g,
        reproducibility=geometry.reproducibility,
        backend=geometry.backend,
        precision=geometry.precision,
        seconds_extract=geometry.seconds["extract"],
        seconds_decompose=geometry.seconds["decompose"],
        seconds_transform=geometry.seconds["transform"],
        bytes_fetched=geometry.bytes_fetched,
        verified=gamma.verified,
        asked=asked,
        duplicate_of=duplicate_of,
        warnings=geometry.warnings,
    )


if __name__ == "__main__":  # python -m unembedding.records.summary results/geometry > summary.csv
    geometries, _ = of_other_models(GeometryResults(Path(sys.argv[1])), ())
    print(table(Row, summarize(geometries, ())), end="")
