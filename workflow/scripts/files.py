"""Files that are there whole or not at all."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from errors import UserError


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Write a file under a name of its own, and rename it into place once it is complete.

    The name is unique, so two jobs that write one output do not mix; on any exception the
    temporary file is removed and the old one stays.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
        temporary.replace(path)
    except OSError as error:
        if error.filename not in (None, str(temporary), str(path)):
            raise  # it was not this file that failed
        raise UserError(
            f"Could not write {path}: {error.strerror}. Nothing was left behind; free some space "
            "or check the permissions, and run again."
        ) from error
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a whole text file, or leave the old one."""
    with replacing(path) as file:
        file.write(text.encode())


def write_json(path: Path, content: Any) -> None:
    """Write an indented JSON file whole; NaN and infinity are refused, since JSON has neither."""
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def read_json_file(path: Path) -> Any:
    """Read a JSON file of this workflow; raise UserError, naming it, where it is damaged."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}). Delete it and run again.") from None
