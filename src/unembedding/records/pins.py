"""The commits of a model's revisions, revisions.tsv: read, and renewed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from unembedding.checkpoints.revisions import format_revisions, read_revisions
from unembedding.files import write_text

BEFORE = ".revisions.before.tsv"
"""Beside revisions.tsv while that is being made, and after that has failed."""


def read_pins(path: Path) -> Mapping[str, str]:
    """Return {revision: commit} of a revisions.tsv, or of the one that could not be renewed.

    Empty where there is neither. Read once for its thousands of jobs; raises GeometryError for a
    file that is damaged.
    """
    file = path if path.exists() else path.with_name(BEFORE)
    return _read(file, file.stat().st_mtime_ns) if file.exists() else {}


@cache
def _read(file: Path, _changed: int) -> Mapping[str, str]:
    return read_revisions(file)


@contextmanager
def renewing(
    path: Path,
) -> Iterator[tuple[Mapping[str, str], Callable[[Mapping[str, str]], None]]]:
    """Yield the pins so far, and the function that writes the new ones.

    Until it has been called there is no revisions.tsv: after a failure a run has to resolve again,
    whatever Snakemake noted of it.
    """
    pinned, before = read_pins(path), path.with_name(BEFORE)
    if path.exists():
        path.replace(before)
    yield pinned, lambda commits: write_text(path, format_revisions(commits))
    before.unlink(missing_ok=True)
