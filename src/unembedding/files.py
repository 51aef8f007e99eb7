"""Files that are there whole or not at all."""

from __future__ import annotations

import errno
import fcntl
import glob
import hashlib
import json
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from unembedding.errors import UserError

CHECKSUM = "checksum"
"""In a record and in a header: the SHA-256 of everything else that stands there."""


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Write a file under a name of its own, and rename it into place once it is complete.

    The name is unique, so two jobs that write one output do not mix; on any exception the
    temporary file is removed and the old one stays. A temporary file that a killed job left of the
    same output is removed too.
    """
    temporary = path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(path)
        with _create_temporary(path) as file:
            temporary = Path(file.name)
            yield file
            file.flush()
            os.fsync(file.fileno())  # where the disk turns out to be full, on a network file system
            temporary.replace(path)  # while it is locked, so that nobody takes it for abandoned
    except OSError as error:
        failed = Path(error.filename or path)
        if failed not in (path, path.parent) and not failed.name.startswith(f".{path.name}."):
            raise  # it was not this file that failed
        raise UserError(
            f"Could not write {path}: {error.strerror}. Nothing was left behind; free some space "
            "or check the permissions, and run again."
        ) from error
    finally:
        if temporary != path:
            temporary.unlink(missing_ok=True)


def require_room(file: BinaryIO, size: int) -> None:
    """Raise OSError, as a late write would, where a file's disk has not got ``size`` bytes free."""
    try:
        disk = os.fstatvfs(file.fileno())
    except OSError:  # no file of a disk
        return
    free = disk.f_bavail * disk.f_frsize
    if disk.f_blocks and size > free:
        why = f"No space left on device: it takes {size:,} bytes, and {free:,} are free"
        raise OSError(errno.ENOSPC, why, file.name)


def _create_temporary(path: Path) -> BinaryIO:
    """Open a new file beside ``path``, locked for as long as its writer lives."""
    while True:
        file = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp").open("xb")
        with suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_EX)
        if os.fstat(file.fileno()).st_nlink:
            return file
        file.close()  # another job took it for abandoned before it was locked


def _remove_abandoned(path: Path) -> None:
    """Remove temporary files of ``path`` that no living process holds the lock of."""
    for left in path.parent.glob(f".{glob.escape(path.name)}.{'[0-9a-f]' * 8}.tmp"):
        with suppress(OSError), left.open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            left.unlink()


def write_text(path: Path, text: str) -> None:
    """Write a whole text file, or leave the old one."""
    with replacing(path) as file:
        file.write(text.encode())


def write_json(path: Path, content: Any) -> None:
    """Write an indented JSON file whole; NaN and infinity are refused, since JSON has neither."""
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def checksum(content: Any) -> str:
    """Return a SHA-256 of JSON content, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def read_json_file(path: Path) -> Any:
    """Read a JSON file of this workflow; raise UserError, naming it, where it is damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read ({error}). Delete it and run again.") from None
