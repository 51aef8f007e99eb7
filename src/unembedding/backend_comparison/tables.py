"""Tables of dataclasses as CSV files: a column for each field, None as an empty cell."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from unembedding.files import write_text

Row = TypeVar("Row")


def write_table(path: Path, kind: type[Any], rows: Sequence[Any]) -> None:
    """Write rows of one kind; numbers are rounded to four digits that mean something."""
    text = io.StringIO()
    writer = csv.DictWriter(text, [field.name for field in fields(kind)], lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: _cell(value) for name, value in asdict(row).items()})
    write_text(path, text.getvalue())


def read_table(path: Path, kind: type[Row]) -> list[Row]:
    """Return the rows of a table that ``write_table`` wrote."""
    hints = get_type_hints(kind)
    with path.open(encoding="utf-8", newline="") as file:
        return [
            kind(**{name: _value(cell, hints[name]) for name, cell in row.items()})
            for row in csv.DictReader(file)
        ]


def _cell(value: Any) -> Any:
    return f"{value:.4g}" if isinstance(value, float) else value


def _value(cell: str, hint: Any) -> Any:
    if hint is str:
        return cell
    if not cell:
        return None
    return float(cell) if hint in (float, float | None) else int(cell)
