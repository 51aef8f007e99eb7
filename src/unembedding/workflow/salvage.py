"""What a run that failed still gives: the summary and plots of the checkpoints that are finished.

Snakemake makes neither where one checkpoint failed. A stage that begins removes both; where a run
failed before any stage began, they are replaced here if something of them is no longer as asked.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from unembedding.errors import UserError
from unembedding.records.geometry import Geometry
from unembedding.records.pins import read_pins, read_resolution
from unembedding.records.stages import Asked
from unembedding.records.summary import read_all, write_summary
from unembedding.results import PLOTS, GeometryResults, RevisionResults
from unembedding.workflow.configuration import Config
from unembedding.workflow.inputs import asked


def salvage(
    config: Config,
    results: GeometryResults,
    logs: Path,
    since: float,
    mark: Callable[[Path], None],
    settings: Mapping[str, Mapping[str, Any]],
) -> list[str]:
    """Summarize and plot what is finished; return lines that tell of it, and of what is absent.

    ``logs`` has the rules' logs, of which those after ``since`` (seconds of time.time) are of this
    run. ``mark`` records a file so that the next run makes it again. ``settings`` are those of each
    model's categories.
    """
    checkpoints, mistakes = _asked_for(config, results)
    if not checkpoints and not mistakes:
        return []
    present = [checkpoint for checkpoint in checkpoints if checkpoint[0].is_file()]
    geometries, unusable = read_all(present)
    usable = {(geometry.model, geometry.revision) for geometry in geometries}
    wanted = [(asked_for.model, asked_for.revision) for _, asked_for in checkpoints]
    absent = [name for name in wanted if name not in usable]
    try:
        whole = not absent and not mistakes
        made = _summarize(results, geometries, config, whole)
        plotted = _plot(results, geometries, {model for model, _ in absent})
        scored = _summarize_concepts(present, settings, whole)
    except UserError as error:
        return [f"What is finished could not be summarized. {error}"]
    # Older than what they are of, so that the next run makes them again without any record of it.
    before = min((path.stat().st_mtime for path, _ in present), default=1) - 1
    for file in (*made, *scored, *plotted):
        mark(file)
        os.utime(file, (before, before))
    reasons = {f"{m}/{revision}": _reason(logs / m / revision, since) for m, revision in absent}
    for model in config.models:
        pinned = results.model(model).pinned
        if not (pinned.exists() and read_resolution(pinned).done):
            reasons[model] = _reason(logs / model, since)
    shown = list(dict.fromkeys([*made[:1], *scored[:1], *(plot.parent for plot in plotted)]))
    return _lines(shown, len(geometries), reasons, mistakes + unusable)


def _asked_for(
    config: Config, results: GeometryResults
) -> tuple[list[tuple[Path, Asked]], list[str]]:
    """Return the geometry.json of every checkpoint that is asked for, in order, and mistakes."""
    found, mistakes = [], []
    for name in sorted(config.models):
        model = results.model(name)
        try:
            for revision, commit in read_pins(model.pinned).items():
                wanted = asked(config, name, revision, commit)
                found.append((model.revision(revision).geometry, wanted))
        except UserError as error:
            mistakes.append(str(error))
    return found, mistakes


def _summarize(
    results: GeometryResults, geometries: Sequence[Geometry], config: Config, whole: bool
) -> list[Path]:
    """Write the summary, unless the one that is there is ``whole``; return its files."""
    files = [results.summary, results.summary_page]
    if whole and results.summary.exists():
        return []
    _remove(files)
    if not geometries:
        return []
    write_summary(results.summary, geometries, config.models)
    return files


def _summarize_concepts(
    present: Sequence[tuple[Path, Asked]],
    settings: Mapping[str, Mapping[str, Any]],
    whole: bool,
) -> list[Path]:
    """Gather the scores of the checkpoints that have some; return the summary and its page."""
    concepts = {path: RevisionResults(path.parent).concepts for path, _ in present}
    scored = [(path, asked) for path, asked in present if concepts[path].scores.exists()]
    whole = whole and len(scored) == len(present)
    made: list[Path] = []
    for place in {found.model.of_all for found in concepts.values()}:
        files = [place.summary, place.summary_page]
        if whole and place.summary.exists():
            continue
        _remove([*files, place.explorer])
        if not scored:
            continue
        from unembedding.concepts.explorer import write_explorer
        from unembedding.concepts.summary import gather, write_summary

        if found := gather(scored, settings)[0]:
            write_summary(place, found, settings)
            made += files
            tokens = [concepts[path].tokens for path, _ in scored]
            write_explorer(place.explorer, found, [file for file in tokens if file.exists()])
            made.append(place.explorer)
    return made


def _plot(
    results: GeometryResults, geometries: Sequence[Geometry], partial: Collection[str]
) -> list[Path]:
    """Draw the plots that are absent, and all of the models of which only a part is finished."""
    try:
        from unembedding.plots import plot_model
    except ImportError:  # matplotlib may be in the environments of conda alone
        return []
    for name in partial:
        _remove(map(results.model(name).plot, PLOTS))
    made: list[Path] = []
    for name in dict.fromkeys(geometry.model for geometry in geometries):
        model = results.model(name)
        targets = {p: model.plot(p) for p in PLOTS if not model.plot(p).exists()}
        if targets:
            own = [geometry for geometry in geometries if geometry.model == name]
            decompositions = [model.revision(g.revision).decomposition for g in own]
            plot_model(name, own, decompositions, targets)
            made += targets.values()
    return made


def _remove(files: Iterable[Path]) -> None:
    for file in files:
        file.unlink(missing_ok=True)


def _reason(folder: Path, since: float) -> Path | None:
    """Return the log that was written last in this run, of those that say something."""
    said = [
        (state.st_mtime, log)
        for log in folder.glob("*.log")
        if (state := log.stat()).st_size and state.st_mtime >= since
    ]
    return max(said)[1] if said else None


def _lines(
    made: Sequence[Path], finished: int, reasons: dict[str, Path | None], mistakes: Sequence[str]
) -> list[str]:
    lines = []
    if made:
        lines += [f"Made of the {finished} checkpoints that are finished; the next run redoes it:"]
        lines += [f"  {path}" for path in made]
    lines += [f"Not used: {mistake}" for mistake in mistakes]
    if failed := {name: log for name, log in reasons.items() if log}:
        lines += ["Absent, and the log that says why:"]
        lines += [f"  {name}: {log}" for name, log in failed.items()]
    if missed := len(reasons) - len(failed):
        lines += [f"Absent, since this run did not come to it: {missed} more."]
    return lines
