"""The locks of huggingface_hub's cache, which it waits for without end (2.4.0), with an end."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import Timeout
from huggingface_hub import file_download
from huggingface_hub.utils import WeakFileLock

from unembedding.errors import printable
from unembedding.hub.messages import refusal

SILENT = 10  # seconds before a word is said
LONGEST_LOCK = 300  # seconds without a byte more of the file that is locked


@contextmanager
def locks_bounded(where: str) -> Iterator[None]:
    """Raise GeometryError in place of waiting for ever for a lock that another process holds.

    That process may be downloading the same file, so the wait goes on while the file grows.
    """

    @contextmanager
    def bounded(lock_file: str | Path, **_: Any) -> Iterator[Any]:
        with ExitStack() as stack:
            yield _acquired(stack, Path(lock_file), where)

    file_download.WeakFileLock = bounded
    try:
        yield
    finally:
        file_download.WeakFileLock = WeakFileLock


def _acquired(stack: ExitStack, lock: Path, where: str) -> Any:
    with suppress(Timeout):
        return stack.enter_context(WeakFileLock(lock, timeout=SILENT))
    said = printable(f"{where}: waiting for another process that holds {lock}")
    for place in dict.fromkeys((sys.stderr, sys.__stderr__)):  # the log, and the terminal
        print(said, file=place)
    before = None
    while (now := _arrived(lock)) != before:
        before = now
        with suppress(Timeout):
            return stack.enter_context(WeakFileLock(lock, timeout=LONGEST_LOCK))
    raise refusal(
        f"{where}: another process has held {lock} for over {LONGEST_LOCK} s, in which nothing of "
        "the file arrived. End that process; if there is none, as on a file system whose locks "
        "outlive their processes, delete it. Then run again."
    )


def _arrived(lock: Path) -> list[int]:
    """Return the sizes of what is there of the file that a lock guards."""
    cache, repository = lock.parents[2], lock.parent.name
    blobs = sorted((cache / repository / "blobs").glob(f"{lock.stem}*"))
    return [blob.stat().st_size for blob in blobs if blob.exists()]
