"""Names of revisions: choosing them by pattern, ordering them by step, pinning their commits."""

from __future__ import annotations

import difflib
import fnmatch
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from unembedding.errors import GeometryError

LOCAL = "local"
TAKEN = frozenset({"revisions.tsv", "plots"})  # what else is in a model's folder
COMMIT = re.compile(r"[0-9a-f]{40}")
PINNED = re.compile(rf"[^\t]+\t({COMMIT.pattern}|{LOCAL})")  # a line of revisions.tsv
LONGEST_NAME = 255  # bytes of a folder's name in most file systems
ENDLESS = re.compile(r"(.+?)\1{19}$")  # Snakemake takes such a wildcard for one without end
WEIGHTS = ("*.safetensors", "*.bin", "*.pt")
SCALE = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}


@dataclass(frozen=True, order=True)
class Progress:
    """How far training had come, as a revision's name tells it."""

    stage: int
    step: int
    tokens: int | None = None


def parse_progress(revision: str) -> Progress | None:
    """Read stage, step and tokens from names like ``stage1-step1000-tokens5B``; None without step.

    A name without a stage counts as stage 0.
    """
    step = re.search(r"(?:^|[-_/])step[-_]?(\d+)", revision)
    if step is None:
        return None
    stage = re.search(r"(?:^|[-_/])stage[-_]?(\d+)", revision)
    tokens = re.search(r"tokens[-_]?(\d+(?:\.\d+)?)([KMBT]?)", revision, re.IGNORECASE)
    return Progress(
        stage=int(stage[1]) if stage else 0,
        step=int(step[1]),
        tokens=round(float(tokens[1]) * SCALE[tokens[2].upper()]) if tokens else None,
    )


def run_of(revision: str) -> str:
    """Return a revision's name without step and tokens, which the checkpoints of one run share."""
    counted = r"(?:^|[-_/])(?:step|tokens)[-_]?\d+(?:\.\d+)?[KMBT]?"
    return re.sub(counted, "", revision, flags=re.IGNORECASE).strip("-_/")


def by_step(revision: str) -> tuple[bool, int, int, str]:
    """Sort key: revisions with a step first, in order of stage and step; the others by name."""
    progress = parse_progress(revision)
    if progress is None:
        return (True, 0, 0, revision)
    return (False, progress.stage, progress.step, revision)


def is_pattern(revision: str) -> bool:
    return any(character in revision for character in "*?[")


def select_revisions(
    asked: Sequence[str], available: Iterable[str], every: int = 1, where: str = "the model"
) -> list[str]:
    """Return the revisions asked for, in that order, each once.

    A glob pattern gives what it matches in order of step, thinned to every ``every``-th. Raises
    GeometryError naming each revision that does not exist, with the nearest ones that do.
    """
    names = sorted(available, key=by_step)
    chosen: dict[str, None] = {}
    missing: list[str] = []
    for wanted in asked:
        if wanted in names:
            found = [wanted]
        elif is_pattern(wanted):
            matching = (n for n in names if fnmatch.fnmatchcase(n, wanted))
            found = [n for n in matching if _is_listed(n) or wanted.startswith("refs/")][::every]
        else:
            found = []
        if not found:
            missing.append(wanted)
        chosen.update(dict.fromkeys(found))
    if taken := TAKEN & {folder_name(name) for name in chosen}:
        raise GeometryError(
            f"{where}: a revision called {min(taken)!r} cannot have a folder beside the file or "
            "folder of that name. Leave it out of `revisions:`."
        )
    if missing:
        lines = [f"  {name!r}: {_nearest(name, names)}" for name in missing]
        raise GeometryError(
            f"{where} has {len(names)} revisions, and none of these:\n" + "\n".join(lines)
        )
    return list(chosen)


def _is_listed(revision: str) -> bool:
    """Return whether patterns such as ``all`` mean a revision: not commits and pull requests."""
    return not (COMMIT.fullmatch(revision) or revision.startswith("refs/"))


def _nearest(name: str, names: Sequence[str], most: int = 3) -> str:
    """Say which revisions come nearest: by step where both have one, else by spelling."""
    asked = parse_progress(name)
    steps = {n: p for n in names if (p := parse_progress(n)) is not None}
    if asked is not None and steps:
        near = sorted(
            steps, key=lambda n: (steps[n].stage != asked.stage, abs(steps[n].step - asked.step))
        )[:most]
    else:
        near = difflib.get_close_matches(name, names, n=most, cutoff=0) or list(names[:most])
    return "the nearest are " + ", ".join(near) if near else "there are none at all"


def local_revisions(folder: Path) -> dict[str, Path]:
    """Return {revision: folder} of a local model.

    A folder that holds weights or a config.json is one checkpoint, called ``local``; otherwise
    each sub-folder that does is one revision.
    """
    if not folder.is_dir():
        raise GeometryError(f"There is no folder {folder}. Check `path:` in the configuration.")
    if _is_checkpoint(folder):
        return {LOCAL: folder}
    found = {sub.name: sub for sub in folder.iterdir() if sub.is_dir() and _is_checkpoint(sub)}
    if not found:
        raise GeometryError(
            f"{folder} holds no checkpoint: neither weights nor a config.json, there or in any of "
            "its sub-folders."
        )
    return {name: found[name] for name in sorted(found, key=by_step)}


def require_no_braces(checkpoints: Iterable[Path]) -> None:
    for folder in checkpoints:
        if braced := [path for path in (folder, *folder.iterdir()) if set(path.name) & set("{}")]:
            raise GeometryError(
                f"{braced[0]}: Snakemake would take the braces in this name for a wildcard. Rename "
                "it, or ask for other `revisions:`."
            )


def _is_checkpoint(folder: Path) -> bool:
    return (folder / "config.json").is_file() or any(
        next(folder.glob(pattern), None) for pattern in WEIGHTS
    )


def folder_name(revision: str) -> str:
    """Return the revision percent-encoded, so that no two share a folder: ``refs%2Fpr%2F1``.

    Raises GeometryError for ``.`` and ``..``, which are no folders of their own, and for names that
    the file system or Snakemake refuses.
    """
    if revision in (".", ".."):
        raise GeometryError(f"A revision called {revision!r} would be written into another folder.")
    name = quote(revision, safe="")
    if len(name) > LONGEST_NAME or ENDLESS.search(name):
        raise GeometryError(
            f"A revision called {revision!r} cannot have a folder: its name has over "
            f"{LONGEST_NAME} bytes, or ends in 20 repetitions. Leave it out of `revisions:`."
        )
    return name


def read_revisions(path: Path) -> dict[str, str]:
    """Return {revision: commit} of a ``revisions.tsv``, in its order.

    Raises GeometryError, naming the file, for one that is not what ``format_revisions`` gives.
    """
    text = path.read_text(encoding="utf-8", errors="backslashreplace")
    header, *lines = text.removesuffix("\n").split("\n")
    damaged = [line for line in lines if not PINNED.fullmatch(line)]
    if damaged or header != "revision\tcommit":
        raise GeometryError(f"{path} is damaged: a line is {[*damaged, header][0]!r}. Delete it.")
    return {revision: commit for revision, _, commit in (line.partition("\t") for line in lines)}


def format_revisions(commits: Mapping[str, str]) -> str:
    """Return the content of a ``revisions.tsv``."""
    return "".join(f"{r}\t{c}\n" for r, c in {"revision": "commit", **commits}.items())
