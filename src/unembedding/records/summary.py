"""All checkpoints in one table, summary.csv, and what it says, summary.html."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from unembedding.errors import UserError
from unembedding.pages import html_table, write_page
from unembedding.records.geometry import Geometry, read_geometry
from unembedding.records.pins import read_pins
from unembedding.records.serialization import table, write_table
from unembedding.records.stages import Asked
from unembedding.results import GeometryResults

MOST_NAMED = 5  # in one sentence


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
    """Write summary.csv and its page: these checkpoints of the ``models``, and those of others.

    Models come by name. Returns warnings: checkpoints with the same γ, and what cannot be read of
    other models.
    """
    others, mistakes = of_other_models(GeometryResults(target.parent), models)
    rows = summarize(sorted([*geometries, *others], key=lambda g: g.model), models)
    write_table(target, Row, rows)
    page = GeometryResults(target.parent).summary_page
    write_page(page, "All checkpoints", findings(rows), html_table(target))
    return [
        f"γ of {row.model}/{row.revision} is byte for byte that of {row.duplicate_of}"
        for row in rows
        if row.duplicate_of and row.asked
    ] + [f"Left out of the summary: {mistake}" for mistake in mistakes]


def findings(rows: Sequence[Row]) -> list[str]:
    """Return what the rows that are asked for say, in sentences."""
    asked = [row for row in rows if row.asked]
    said = [
        _of_model(name, [row for row in asked if row.model == name])
        for name in dict.fromkeys(row.model for row in asked)
    ]
    if asked:
        worst = max(asked, key=lambda row: row.whitening_residual)
        said.append(
            f"The largest whitening residual, of {worst.model}/{worst.revision}, is "
            f"{worst.whitening_residual:.1e}."
        )
    warned = [f"{row.model}/{row.revision}" for row in asked if row.warnings]
    copies = [f"{row.model}/{row.revision}" for row in asked if row.duplicate_of]
    said += [_some(warned, "with warnings")] if warned else []
    said += [_some(copies, "with the γ of another one, byte for byte")] if copies else []
    return said


def _of_model(name: str, rows: Sequence[Row]) -> str:
    steps = [row for row in rows if row.step is not None]
    if len(steps) < 2:
        shown = [
            f"{row.revision} has the effective rank {_number(row.effective_rank)} of {row.width} "
            f"and the condition number {_number(row.condition_number)}"
            for row in rows[:MOST_NAMED]
        ]
        more = f", and {len(rows) - MOST_NAMED} more" if len(rows) > MOST_NAMED else ""
        return f"{name}: {'; '.join(shown)}{more}."
    early = min(steps, key=lambda row: (row.stage or 0, row.step or 0))
    late = max(steps, key=lambda row: (row.stage or 0, row.step or 0))
    return (
        f"{name}, from {early.revision} to {late.revision}: the effective rank "
        f"{_change(early.effective_rank, late.effective_rank)} of {late.width}, and the "
        f"condition number {_change(early.condition_number, late.condition_number)}."
    )


def _change(early: float | None, late: float | None) -> str:
    """Say how a quantity goes; a tenth up or down is no change."""
    if early is None or late is None:
        return f"goes from {_number(early)} to {_number(late)}"
    if 0.9 < late / early < 1.1:
        return f"stays near {_number(early)}"
    return f"{'falls' if late < early else 'rises'} from {_number(early)} to {_number(late)}"


def _number(value: float | None) -> str:
    if value is None:
        return "none"
    return f"{value:.0f}" if 1000 <= value < 1e6 else f"{value:.3g}"


def _some(names: Sequence[str], what: str) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return f"{len(names)} {what}: {', '.join(names[:MOST_NAMED])}{more}."


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
