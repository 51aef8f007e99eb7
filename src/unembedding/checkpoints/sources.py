"""Where a checkpoint's files are: the interface, and the local folder."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from unembedding.checkpoints.formats import is_weights
from unembedding.errors import GeometryError

CHUNK = 8 * 2**20  # bytes handed on at a time: large enough to be fast, small beside any limit
SAMPLES, PAGE = 8, 4096  # of a file, to see whether it is another one
SMALL_FILE = 32 * 2**20  # config.json and index files; the largest real index is about 10 MB


class Source(Protocol):
    """The files of one checkpoint, readable by byte range."""

    bytes_fetched: int
    """Bytes that have crossed the network so far."""

    warnings: list[str]
    """What went differently than asked, for geometry.json."""

    verified: set[str]
    """Files of which every byte was checked against the digest that their origin gives."""

    def sizes(self) -> dict[str, int]:
        """Return {file name: size in bytes} of the checkpoint's top level."""
        ...

    def stream(self, name: str, start: int, stop: int) -> Iterator[bytes]:
        """Yield bytes ``start`` to ``stop`` (exclusive) of a file, all of them or an error."""
        ...

    def folders(self) -> list[str]:
        """Return the folders below that hold weights."""
        ...

    def digest(self, name: str) -> str | None:
        """Return what the origin says a file hashes to (see ``hasher``), None where it does not."""
        ...

    def where(self, name: str = "") -> str:
        """Return the path or address of a file, for messages."""
        ...


class LocalFolder:
    """A checkpoint in a folder of this machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bytes_fetched = 0
        self.warnings: list[str] = []
        self.verified: set[str] = set()
        self._states: dict[str, tuple[int, ...]] = {}
        if not folder.is_dir():
            raise GeometryError(f"There is no folder {folder}. Check `path:` in the configuration.")

    def sizes(self) -> dict[str, int]:
        entries = sorted(self.folder.iterdir())
        files = [f for f in entries if f.is_file()]
        if odd := [f.name for f in files if not is_text(f.name)]:
            raise GeometryError(
                f"{self.folder} holds {odd[0]!r}, whose name is no UTF-8. Rename it."
            )
        # Without its config.json a checkpoint can be taken for one of another kind.
        if lost := [f for f in entries if f.is_symlink() and not f.exists() and _matters(f.name)]:
            raise GeometryError(f"{lost[0]} is a link to nowhere. Fetch the file, or remove it.")
        return {f.name: f.stat().st_size for f in files}

    def stream(self, name: str, start: int, stop: int) -> Iterator[bytes]:
        self._require_unchanged(name)  # from here on
        try:
            with (self.folder / name).open("rb") as file:
                file.seek(start)
                while start < stop and (chunk := file.read(min(CHUNK, stop - start))):
                    yield chunk
                    start += len(chunk)
        except OSError as error:
            raise self._unreadable(name, error) from None
        for read_before in self._states:  # config.json and weights belong together
            self._require_unchanged(read_before)
        if start < stop:
            raise GeometryError(f"{self.where(name)} ends at byte {start}; {stop} were expected.")

    def _require_unchanged(self, name: str) -> None:
        """Raise where a file is no longer the one of which parts were read before."""
        try:
            now = state(self.folder / name)
        except OSError as error:
            raise self._unreadable(name, error) from None
        if self._states.setdefault(name, now) != now:
            raise GeometryError(
                f"{self.where(name)} was changed while it was read. Wait until it is written, and "
                "run again."
            )

    def _unreadable(self, name: str, error: OSError) -> GeometryError:
        return GeometryError(f"{self.where(name)} cannot be read: {error.strerror}.")

    def folders(self) -> list[str]:
        subs = (sub for sub in sorted(self.folder.iterdir()) if sub.is_dir())
        below = [sub for sub in subs if os.access(sub, os.R_OK | os.X_OK)]
        return [sub.name for sub in below if any(is_weights(f.name) for f in sub.iterdir())]

    def digest(self, name: str) -> str | None:
        return None  # a folder says nothing about its files

    def where(self, name: str = "") -> str:
        return str(self.folder / name)


class LocalFile(LocalFolder):
    """One file of a folder, whatever else lies in it."""

    def __init__(self, path: Path) -> None:
        super().__init__(path.parent)
        self.path = path

    def sizes(self) -> dict[str, int]:
        return {self.path.name: self.path.stat().st_size}


def state(path: Path) -> tuple[int, int, int, int]:
    """Return size, times of modification and change (ns), and inode: they tell a file that changed.

    The date alone can be kept, as by `cp -p` and `rsync -t`.
    """
    found = path.stat()
    return (found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino)


def state_of(files: Iterable[Path]) -> str:
    """Return a digest of the names, sizes and dates of files, and of samples of their content.

    A date and a size can stay the same when weights are replaced. Inodes and times of change would
    tell, but change too when a folder is copied or moved.
    """
    digest = hashlib.sha256()
    for file in files:
        size, modified, changed, _ = state(file)
        digest.update(f"{file}\0{size}\0{modified}\0".encode())
        digest.update(_sample(file, size, modified, changed))
    return digest.hexdigest()[:16]


@cache
def _sample(file: Path, size: int, *_state: int) -> bytes:
    """Return a digest of SAMPLES pages of a file, the first and the last among them."""
    digest = hashlib.sha256()
    try:
        with file.open("rb") as opened:
            for index in range(SAMPLES):
                opened.seek(max(size - PAGE, 0) * index // (SAMPLES - 1))
                digest.update(opened.read(PAGE))
    except OSError:
        return b""  # the job that reads it says what is wrong
    return digest.digest()


def _matters(name: str) -> bool:
    return is_weights(name) or name == "config.json" or name.endswith(".index.json")


def is_text(name: str) -> bool:
    """Return whether a name has no surrogates, which stand for bytes that are no UTF-8."""
    return not any("\ud800" <= character <= "\udfff" for character in name)


def hasher(digest: str, size: int) -> Any:
    """Return the hash that a digest is of: git-lfs takes SHA-256, git SHA-1 with a prefix."""
    return hashlib.sha256() if len(digest) == 64 else hashlib.sha1(b"blob %d\0" % size)


def digest_of(content: bytes, like: str) -> str:
    """Return the digest of a whole file, of the kind that ``like`` is of."""
    found = hasher(like, len(content))
    found.update(content)
    return found.hexdigest()


def read(source: Source, name: str, start: int, stop: int) -> bytes:
    """Return bytes ``start`` to ``stop`` (exclusive) of a file."""
    return b"".join(source.stream(name, start, stop))


def read_json(source: Source, name: str) -> Any:
    """Return the parsed content of a small JSON file, or raise GeometryError naming it.

    Where the origin gives a digest, content that differs is fetched once more, and then refused.
    """
    size = source.sizes()[name]
    if size > SMALL_FILE:
        raise GeometryError(f"{source.where(name)} has {size} bytes; that is no JSON description.")
    content = read_genuine(source, name, size)
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise GeometryError(f"{source.where(name)} is not valid JSON: {error}") from None


def read_genuine(source: Source, name: str, size: int) -> bytes:
    """Return a whole file, as its origin means it to be: fetched once more if it is not."""
    content = read(source, name, 0, size)
    expected = source.digest(name)
    if expected is None:
        return content
    if digest_of(content, expected) != expected:
        content = read(source, name, 0, size)
        if (found := digest_of(content, expected)) != expected:
            raise differs(source.where(name), found)
    source.verified.add(name)
    return content


LFS_POINTER = b"version https://git-lfs"


def require_no_lfs_pointer(head: bytes, where: str, size: int) -> None:
    """Raise where a file, by its first bytes, only tells Git LFS what would be in its place."""
    if head.startswith(LFS_POINTER):
        raise GeometryError(
            f"{where} is a Git LFS pointer, not weights: {size} bytes of text. "
            "Fetch the real file with `git lfs pull`, or give the model as `repo:`."
        )


def differs(where: str, found: str) -> GeometryError:
    """Return the error of a file that came twice with other bytes than its origin announces."""
    return GeometryError(
        f"{where} was fetched twice, and its bytes have the digest {found}, not the Hub's. "
        "Something between the Hub and here changes files; try another network."
    )
