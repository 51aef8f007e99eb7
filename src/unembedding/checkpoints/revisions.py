"""Names of revisions: choosing them by pattern, ordering them by step, pinning their commits."""

from __future__ import annotations

import difflib
import fnmatch
import logging
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from unembedding.checkpoints.formats import is_input, is_weights
from unembedding.errors import GeometryError, printable

LOGGER = logging.getLogger(__name__)
LOCAL, FINAL = "local", "final"
TAKEN = frozenset(  # what else is in a model's folders
    {"revisions.tsv", "tokens.tsv", "plots", "categories.safetensors", "synsets.csv"}
    | {"agreement.csv"}
)
COMMIT = re.compile(r"[0-9a-f]{40}")
PINNED = re.compile(rf"[^\t]+\t({COMMIT.pattern}|{LOCAL})")  # a line of revisions.tsv
VARIABLE = re.compile(r"[{}]|<[a-z][a-z0-9_]*>")  # of Snakemake, in a path: a wildcard, a pathvar
LONGEST_NAME = 255  # bytes of a folder's name in most file systems
ENDLESS = re.compile(r"(.+?)\1{19}$")  # Snakemake takes such a wildcard for one without end
SCALE = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}

# How people who train models count, in order of preference where a name has several: steps, which
# Megatron calls `iter_0000100`, DeepSpeed `global_step400`, Lightning `step=400`, Composer `ba400`;
# the Trainer's `checkpoint-500`, BabyLM's `chck_100M`; epochs; tokens, Baichuan 2's `train_00220B`.
WORDS = (
    r"(?:global[-_]?)?steps?|iter(?:ation)?s?|updates?|ba",
    r"checkpoint|ckpt|chkpt|chck",
    r"epochs?|ep",
    r"(?:consumed[-_]?)?(?:tokens?|samples?)|train(?=[-_]\d+[KMBT])",
)
NUMBER = r"(\d+(?:\.\d+)?[KMBT]|\d+)"
BEGIN, END = r"(?:^|[-_/])", r"(?![a-z0-9]|\.\d)"
COUNTERS = [
    *(re.compile(rf"{BEGIN}(?:{words})[-_=]?{NUMBER}{END}", re.IGNORECASE) for words in WORDS),
    # In the plural alone: `seed-1-step-10` counts no steps before the word.
    re.compile(rf"{BEGIN}{NUMBER}[-_]?(?:step|iter|iteration|update|epoch|token)s{END}", re.I),
    re.compile(f"^{NUMBER}$", re.IGNORECASE),
]
STAGE = re.compile(rf"{BEGIN}(?:stage|phase)[-_=]?(\d+)", re.IGNORECASE)
TOKENS = re.compile(rf"{BEGIN}(?:consumed[-_]?)?tokens?[-_=]?{NUMBER}", re.IGNORECASE)
LOSS = re.compile(rf"{BEGIN}(?:[a-z]+[-_])?loss[-_=]?\d+(?:\.\d+)?{END}", re.IGNORECASE)


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
    patterns = COUNTERS if pattern is None else [re.compile(pattern)]
    found = next((match for p in patterns if (match := p.search(revision))), None)
    step = _number(found[1]) if found else None
    if found is None or step is None:
        return None
    stage, tokens = STAGE.search(revision), TOKENS.search(revision)
    run = revision[: found.start()] + revision[found.end() :]
    for counter in (*COUNTERS[:-1], LOSS):
        run = counter.sub("", run)
    return Progress(
        stage=int(stage[1]) if stage else 0,
        step=step,
        tokens=_number(tokens[1]) if tokens else None,
        run=run.strip("-_/"),
    )


def _number(text: str | None) -> int | None:
    """Return what `500` or `1.5k` stands for, None for anything else."""
    found = re.fullmatch(NUMBER, text or "", re.IGNORECASE)
    if found is None:
        return None
    digits = found[1].rstrip("KMBTkmbt")
    return int(digits) if digits == found[1] else round(float(digits) * SCALE[found[1][-1].upper()])


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

    A glob pattern gives what it matches in order of step: commits where it matches nothing else,
    and pull requests where it says so. Of each run of training it is thinned to every ``every``-th
    and the last; what has no step is kept. ``step`` is a pattern of ``parse_progress``. Raises
    GeometryError naming each revision that does not exist, with the nearest ones that do.
    """
    names = sorted(available, key=lambda name: by_step(name, step))
    chosen: dict[str, None] = {}
    missing: list[str] = []
    for wanted in asked:
        if wanted in names:
            folder_name(wanted)
            found = [wanted]
        elif is_pattern(wanted):
            matching = [n for n in names if fnmatch.fnmatchcase(n, wanted) and _is_meant(n, wanted)]
            named = [n for n in matching if not COMMIT.fullmatch(n)]
            found = _thinned(_storable(named or matching, where), every, where, step)
        else:
            found = []
        if not found:
            missing.append(wanted)
        chosen.update(dict.fromkeys(found))
    if missing:
        lines = [f"  {name!r}: {_nearest(name, names, step)}" for name in missing]
        raise GeometryError(
            f"{where} has {len(names)} revisions, and none of these:\n" + "\n".join(lines)
        )
    if len(chosen) > 1 and not any(parse_progress(name, step) for name in chosen):
        LOGGER.warning(
            f"{where}: no training step is known in {_some(chosen)}, so plots are in order of "
            "name. `step:` says how to read it from the names."
        )
    return list(chosen)


def _storable(names: Iterable[str], where: str) -> list[str]:
    """Return the names that can have a folder; one that cannot is no reason to have none."""
    kept = []
    for name in names:
        try:
            folder_name(name)
        except GeometryError as error:
            LOGGER.warning(f"{where}: {error} It was left out.")
        else:
            kept.append(name)
    return kept


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
            f"{_some(names)}. Give the model a `step:`, a regular expression whose first group is "
            "the step."
        )
    if len(runs) > 2 and all(len(run) == 1 for run in runs.values()):
        LOGGER.warning(
            f"{where}: `every: {every}` left out nothing, since {_some(names)} look like runs of "
            "their own. If they are one, give the model a `step:` that matches all of a name that "
            "changes from one to the next, with the step in its first group."
        )
    for run in runs.values():
        kept |= {*run[::every], run[-1]}
    return [name for name in names if name in kept]


def _some(names: Iterable[str]) -> str:
    first, *others = names
    return ", ".join([first, *others[:2]]) + (", …" if len(others) > 2 else "")


def _is_meant(revision: str, pattern: str) -> bool:
    """Return whether a pattern means a revision that it matches: `all` means no pull requests."""
    return pattern.startswith("refs/") or not revision.startswith("refs/")


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
    """Return {revision: folder} of a local model, in order of step.

    A folder that holds a checkpoint is one revision, called ``local``; otherwise each sub-folder
    that does is one. Where both do, as the Trainer leaves its output, the sub-folders are
    revisions, and the folder itself is ``final``. Of a model in the Hub's cache they are its
    snapshots, under the names that the cache knows for them.
    """
    if not folder.is_dir():
        raise GeometryError(f"There is no folder {folder}. Check `path:` in the configuration.")
    found = _checkpoints(folder)
    if not found:
        raise GeometryError(
            f"{folder} holds no checkpoint: neither weights nor a config.json, there or in any of "
            "its sub-folders."
        )
    usable = [n for n, path in found.items() if path == folder or _is_usable(path)]
    if not usable:
        raise GeometryError(f"{folder}: none of the checkpoints below it can be used.")
    return {name: found[name] for name in sorted(usable, key=by_step)}


def local_checkpoint(folder: Path, revision: str) -> Path:
    """Return the folder of one revision of a local model, be it one that is gone."""
    return _checkpoints(folder).get(revision, folder / revision)


def _checkpoints(folder: Path) -> dict[str, Path]:
    for model in (folder, folder.parent):
        if folder in (model, model / "snapshots") and _is_cached(model):
            return _cached_revisions(model)
    top = _has_weights(folder)
    subs = (sub for sub in _entries(folder) if sub.is_dir())
    below = {sub.name: sub for sub in subs if _is_checkpoint(sub, beside=top)}
    if top and below:
        return {**below, (LOCAL if FINAL in below else FINAL): folder}
    return {LOCAL: folder} if not below and _is_checkpoint(folder) else below


def _is_usable(checkpoint: Path) -> bool:
    """Return whether a folder can be a revision; warn of one that cannot, which costs no other.

    What is wrong with the files in it, the job of the checkpoint says.
    """
    name, variable = checkpoint.name, _variable(checkpoint)
    if not name.isprintable():
        why = f"the name {name!r} has characters that tables and plots cannot hold. Rename it."
    elif not _is_open(checkpoint):
        why = "its permissions forbid to read it."
    elif variable:
        why = f"Snakemake reads braces and <…>, as in {variable.name!r}. Rename it."
    else:
        return True
    LOGGER.warning(printable(f"{checkpoint} was left out: {why}"))
    return False


def require_no_braces(checkpoints: Iterable[Path]) -> None:
    """Raise GeometryError for names that Snakemake would take for wildcards or path variables."""
    if variable := next(filter(None, map(_variable, checkpoints)), None):
        raise GeometryError(f"{variable}: Snakemake reads braces and <…> in a name. Rename it.")


def _variable(checkpoint: Path) -> Path | None:
    """Return a path that a rule would have as input, and Snakemake would not read as it stands."""
    inputs = [path for path in _entries(checkpoint) if is_input(path.name)]
    return next((path for path in (checkpoint, *inputs) if VARIABLE.search(path.name)), None)


def _is_cached(model: Path) -> bool:
    """Return whether a folder is a model's in the Hub's cache, ``models--owner--name``."""
    snapshots = model / "snapshots"
    return snapshots.is_dir() and any(COMMIT.fullmatch(path.name) for path in _entries(snapshots))


def _cached_revisions(model: Path) -> dict[str, Path]:
    """Return {branch, tag or commit: snapshot} of a model in the Hub's cache."""
    snapshots = {sub.name: sub for sub in sorted(_entries(model / "snapshots")) if sub.is_dir()}
    refs = [file for file in sorted((model / "refs").rglob("*")) if file.is_file()]
    named = {
        str(r.relative_to(model / "refs")): r.read_text("utf-8", "replace").strip() for r in refs
    }
    found = {name: snapshots[commit] for name, commit in named.items() if commit in snapshots}
    return found | {c: path for c, path in snapshots.items() if c not in named.values()}


def _entries(folder: Path) -> list[Path]:
    """List a folder, as empty where it may not be read."""
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _is_checkpoint(folder: Path, beside: bool = False) -> bool:
    """Return whether a folder holds a checkpoint, be it ``beside`` the weights of the one above.

    Those have parts in folders, too, such as adapters: a checkpoint of its own has a config.json,
    or a step in its name.
    """
    names = {path.name for path in _entries(folder)}
    weights, config = any(map(is_weights, names)), "config.json" in names
    if beside:
        return weights and (config or parse_progress(folder.name) is not None)
    return weights or config or not _is_open(folder)


def _is_open(folder: Path) -> bool:
    return os.access(folder, os.R_OK | os.X_OK)


def _has_weights(folder: Path) -> bool:
    return any(is_weights(path.name) for path in _entries(folder))


def folder_name(revision: str) -> str:
    """Return the revision percent-encoded, so that no two share a folder: ``refs%2Fpr%2F1``.

    Raises GeometryError for names that are taken, and those that the file system or Snakemake
    refuses.
    """
    if revision in (".", ".."):
        raise GeometryError(f"A revision called {revision!r} would be written into another folder.")
    name = quote(revision, safe="")
    if name in TAKEN:
        raise GeometryError(
            f"A revision called {revision!r} cannot have a folder beside the file or folder of "
            "that name."
        )
    if len(name) > LONGEST_NAME or ENDLESS.search(name):
        raise GeometryError(
            f"A revision called {revision!r} cannot have a folder: its name has over "
            f"{LONGEST_NAME} bytes, or ends in 20 repetitions."
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
