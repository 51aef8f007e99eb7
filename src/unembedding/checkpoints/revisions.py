"""Names of revisions: choosing them by pattern, ordering them by step, pinning their commits."""

from __future__ import annotations

import difflib
import fnmatch
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from unembedding.checkpoints.formats import is_weights
from unembedding.errors import GeometryError

LOCAL, FINAL = "local", "final"
TAKEN = frozenset({"revisions.tsv", "plots"})  # what else is in a model's folder
COMMIT = re.compile(r"[0-9a-f]{40}")
PINNED = re.compile(rf"[^\t]+\t({COMMIT.pattern}|{LOCAL})")  # a line of revisions.tsv
LONGEST_NAME = 255  # bytes of a folder's name in most file systems
ENDLESS = re.compile(r"(.+?)\1{19}$")  # Snakemake takes such a wildcard for one without end
SCALE = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}


# How people who train models name a step: the Trainer's `checkpoint-500`, Megatron's
# `iter_0000100`, `global_step400`, `step=400`, `ckpt_100`, `epoch-2`, OLMo's `step1000-tokens4B`,
# or the number alone.
STEP = re.compile(
    r"(?:^|[-_/])(?:global[-_]?step|steps?|checkpoint|ckpt|iteration|iter|update|epoch)"
    r"[-_=]?(?P<count>\d+)(?P<unit>[KMBT]?)(?![a-z0-9.])",
    re.IGNORECASE,
)
NUMBER = re.compile(r"(?P<count>\d+)(?P<unit>[KMBT]?)", re.IGNORECASE)
STAGE = re.compile(r"(?:^|[-_/])stage[-_]?(\d+)")
TOKENS = re.compile(r"(?:^|[-_/])tokens[-_]?(\d+(?:\.\d+)?)([KMBT]?)", re.IGNORECASE)


@dataclass(frozen=True)
class Progress:
    """How far training had come, as a revision's name tells it."""

    stage: int
    """0 of a name without one."""
    step: int
    tokens: int | None
    run: str
    """The name without step and tokens, which the checkpoints of one run share."""


def parse_progress(revision: str, pattern: str | None = None) -> Progress | None:
    """Read stage, step and tokens from names like ``stage1-step1000-tokens5B``; None without step.

    ``pattern`` is a regular expression whose first group is the step, for names of another kind.
    """
    if COMMIT.fullmatch(revision):
        return None
    if pattern is not None:
        found = re.search(pattern, revision)
        if found is None or not (found[1] or "").isdecimal():
            return None
        step = int(found[1])
    else:
        found = STEP.search(revision) or NUMBER.fullmatch(revision)
        if found is None:
            return None
        step = int(found["count"]) * SCALE[found["unit"].upper()]
    stage, tokens = STAGE.search(revision), TOKENS.search(revision)
    run = revision[: found.start()] + revision[found.end() :]
    return Progress(
        stage=int(stage[1]) if stage else 0,
        step=step,
        tokens=round(float(tokens[1]) * SCALE[tokens[2].upper()]) if tokens else None,
        run=TOKENS.sub("", run).strip("-_/"),
    )


def by_step(revision: str, pattern: str | None = None) -> tuple[bool, int, int, str]:
    """Sort key: revisions with a step first, in order of stage and step; the others by name."""
    progress = parse_progress(revision, pattern)
    if progress is None:
        return (True, 0, 0, revision)
    return (False, progress.stage, progress.step, revision)


def is_pattern(revision: str) -> bool:
    return any(character in revision for character in "*?[")


def select_revisions(
    asked: Sequence[str],
    available: Iterable[str],
    every: int = 1,
    where: str = "the model",
    step: str | None = None,
) -> list[str]:
    """Return the revisions asked for, in that order, each once.

    A glob pattern gives what it matches in order of step. Of each run of training it is thinned to
    every ``every``-th and the last; what has no step is kept. ``step`` is a pattern of
    ``parse_progress``. Raises GeometryError naming each revision that does not exist, with the
    nearest ones that do.
    """
    names = sorted(available, key=lambda name: by_step(name, step))
    chosen: dict[str, None] = {}
    missing: list[str] = []
    for wanted in asked:
        if wanted in names:
            found = [wanted]
        elif is_pattern(wanted):
            matching = (n for n in names if fnmatch.fnmatchcase(n, wanted))
            listed = [n for n in matching if _is_listed(n) or wanted.startswith("refs/")]
            found = _thinned(listed, every, where, step)
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
        lines = [f"  {name!r}: {_nearest(name, names, step)}" for name in missing]
        raise GeometryError(
            f"{where} has {len(names)} revisions, and none of these:\n" + "\n".join(lines)
        )
    return list(chosen)


def _thinned(names: Sequence[str], every: int, where: str, step: str | None) -> list[str]:
    """Return every ``every``-th and the last of each run, and what has no step."""
    if every == 1:
        return list(names)
    runs: dict[tuple[int, str], list[str]] = {}
    kept = set()
    for name in names:
        if (progress := parse_progress(name, step)) is None:
            kept.add(name)
        else:
            runs.setdefault((progress.stage, progress.run), []).append(name)
    if not runs and len(names) > 1:
        raise GeometryError(
            f"{where}: `every: {every}` needs a training step in the names, and none is known in "
            f"{', '.join(names[:3])}. Give the model a `step:`, a regular expression whose first "
            "group is the step."
        )
    for run in runs.values():
        kept |= {*run[::every], run[-1]}
    return [name for name in names if name in kept]


def _is_listed(revision: str) -> bool:
    """Return whether patterns such as ``all`` mean a revision: not commits and pull requests."""
    return not (COMMIT.fullmatch(revision) or revision.startswith("refs/"))


def _nearest(name: str, names: Sequence[str], step: str | None, most: int = 3) -> str:
    """Say which revisions come nearest: by step where both have one, else by spelling."""
    asked = parse_progress(name, step)
    steps = {n: p for n in names if (p := parse_progress(n, step)) is not None}
    if asked is not None and steps:
        near = sorted(
            steps, key=lambda n: (steps[n].stage != asked.stage, abs(steps[n].step - asked.step))
        )[:most]
    else:
        near = difflib.get_close_matches(name, names, n=most, cutoff=0) or list(names[:most])
    return "the nearest are " + ", ".join(near) if near else "there are none at all"


def local_revisions(folder: Path) -> dict[str, Path]:
    """Return {revision: folder} of a local model.

    A folder that holds a checkpoint is one revision, called ``local``; otherwise each sub-folder
    that does is one. Where both do, as the Trainer leaves its output, the sub-folders with a step
    are revisions, and the folder itself is ``final``. Of a model in the Hub's cache they are its
    snapshots, under the names that the cache knows for them.
    """
    if not folder.is_dir():
        raise GeometryError(f"There is no folder {folder}. Check `path:` in the configuration.")
    if (folder / "snapshots").is_dir():
        return _cached_revisions(folder)
    subs = {sub.name: sub for sub in folder.iterdir() if sub.is_dir() and not _is_odd(sub.name)}
    if _has_weights(folder):
        found = {n: s for n, s in subs.items() if parse_progress(n) and _has_weights(s)}
        found = {**found, FINAL: folder} if found else {LOCAL: folder}
    else:
        found = {name: sub for name, sub in subs.items() if _is_checkpoint(sub)}
        if not found and _is_checkpoint(folder):
            found = {LOCAL: folder}
    if not found:
        raise GeometryError(
            f"{folder} holds no checkpoint: neither weights nor a config.json, there or in any of "
            "its sub-folders."
        )
    return {name: found[name] for name in sorted(found, key=by_step)}


def _is_odd(name: str) -> bool:
    """Return whether a name has characters that revisions.tsv and plots cannot hold."""
    return not name.isprintable()


def _cached_revisions(folder: Path) -> dict[str, Path]:
    """Return {branch, tag or commit: snapshot} of a ``models--…`` folder of the Hub's cache."""
    snapshots = {sub.name: sub for sub in sorted((folder / "snapshots").iterdir()) if sub.is_dir()}
    refs = [file for file in sorted((folder / "refs").rglob("*")) if file.is_file()]
    named = {
        str(ref.relative_to(folder / "refs")): ref.read_text(encoding="utf-8").strip()
        for ref in refs
    }
    found = {name: snapshots[commit] for name, commit in named.items() if commit in snapshots}
    return found | {c: path for c, path in snapshots.items() if c not in named.values()}


def require_no_braces(checkpoints: Iterable[Path]) -> None:
    for folder in checkpoints:
        if braced := [path for path in (folder, *folder.iterdir()) if set(path.name) & set("{}")]:
            raise GeometryError(
                f"{braced[0]}: Snakemake would take the braces in this name for a wildcard. Rename "
                "it, or ask for other `revisions:`."
            )


def _is_checkpoint(folder: Path) -> bool:
    return (folder / "config.json").is_file() or _has_weights(folder)


def _has_weights(folder: Path) -> bool:
    return any(is_weights(path.name) for path in folder.iterdir())


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
