"""Records on disk: dataclasses as JSON with a checksum, and as tables."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, get_args, get_type_hints

from unembedding.errors import GeometryError, UserError
from unembedding.files import CHECKSUM, checksum, read_json_file, write_json, write_text

Record = TypeVar("Record")


def write_record(path: Path, record: Any) -> None:
    """Write a dataclass as JSON, with a checksum over it."""
    content = asdict(record)
    write_json(path, {**content, CHECKSUM: checksum(content)})


def read_record(path: Path, kind: type[Record]) -> Record:
    """Return the record that ``write_record`` wrote.

    Raises UserError, naming the file, where it is damaged, or has other keys than ``kind``.
    """
    content = read_json_file(path)
    if not isinstance(content, dict) or content.pop(CHECKSUM, None) != checksum(content):
        raise UserError(f"{path} is damaged: it is not what was written. Delete it and run again.")
    return _build(kind, content, path)


def _build(kind: Any, content: Any, path: Path) -> Any:
    nested: Any = next((t for t in (kind, *_members(kind)) if is_dataclass(t)), None)
    if nested is None or content is None:
        return content
    hints = get_type_hints(nested)
    if not isinstance(content, Mapping) or content.keys() != hints.keys():
        odd = sorted(set(content) ^ set(hints))
        raise GeometryError(
            f"{path} was written by another version of this workflow ({', '.join(odd)}). "
            "Delete the revision's folder and run again."
        )
    return nested(**{name: _build(hints[name], value, path) for name, value in content.items()})


def _members(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if isinstance(kind, UnionType) else ()


def table(kind: type[Any], rows: Iterable[Any], digits: int | None = None) -> str:
    """Return rows of one dataclass as CSV: a column for each field, None as an empty cell.

    ``digits`` rounds to so many that mean something; by default numbers are exact.
    """
    text = io.StringIO()
    writer = csv.DictWriter(text, [field.name for field in fields(kind)], lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: _cell(value, digits) for name, value in asdict(row).items()})
    return text.getvalue()


def write_table(
    path: Path, kind: type[Any], rows: Iterable[Any], digits: int | None = None
) -> None:
    """Write the ``table`` of rows."""
    write_text(path, table(kind, rows, digits))


def read_table(path: Path, kind: type[Record]) -> list[Record]:
    """Return the rows of a table of text and numbers that ``write_table`` wrote.

    Raises UserError, naming the file, where it is another one or damaged.
    """
    hints = get_type_hints(kind)
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            if reader.fieldnames != list(hints):
                raise ValueError(f"its columns are {reader.fieldnames}")
            return [
                kind(**{name: _value(cell, hints[name]) for name, cell in row.items()})
                for row in reader
            ]
    except (OSError, AttributeError, LookupError, TypeError, ValueError, csv.Error) as error:
        raise UserError(f"{path} cannot be read ({error}). Delete it and run again.") from None


def _cell(value: Any, digits: int | None) -> Any:
    if isinstance(value, list):
        return "; ".join(value)
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.{digits}g}" if digits and isinstance(value, float) else value


def _value(cell: str, hint: Any) -> Any:
    if hint is str:
        return cell
    if not cell:
        return None
    return float(cell) if hint in (float, float | None) else int(cell)
