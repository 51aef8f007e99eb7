"""The commits of a model's revisions, revisions.tsv: read, and renewed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from unembedding.checkpoints.revisions import format_revisions, read_revisions
from unembedding.errors import UserError
from unembedding.files import write_text
from unembedding.records.serialization import read_record, write_record


@dataclass(frozen=True)
class Resolution:
    """What is known of the last attempt to resolve a model's revisions, beside revisions.tsv."""

    request: dict[str, Any] | None
    """What revisions.tsv answers."""
    failures: int
    """Attempts that failed or were killed: Snakemake takes them for done, unless this changes."""
    done: bool


def read_pins(path: Path) -> Mapping[str, str]:
    """Return {revision: commit} of a revisions.tsv, empty where there is none.

    Read once for its thousands of jobs. Raises GeometryError for a file that is damaged.
    """
    return _read(path, path.stat().st_mtime_ns) if path.exists() else {}


@cache
def _read(file: Path, _changed: int) -> Mapping[str, str]:
    return read_revisions(file)


def read_resolution(pinned: Path) -> Resolution:
    """Return how a revisions.tsv came to be, as far as it is known."""
    try:
        return read_record(_beside(pinned), Resolution)
    except UserError:
        return Resolution(None, 0, True)


@contextmanager
def renewing(
    path: Path, request: dict[str, Any]
) -> Iterator[tuple[Mapping[str, str], Callable[[Mapping[str, str]], None]]]:
    """Yield the pins so far, and the function that writes those that answer ``request``."""
    before = read_resolution(path)
    write_record(_beside(path), replace(before, failures=before.failures + 1, done=False))
    yield read_pins(path), lambda commits: write_text(path, format_revisions(commits))
    write_record(_beside(path), Resolution(request, before.failures, True))


def _beside(pinned: Path) -> Path:
    return pinned.with_name(".resolution.json")
