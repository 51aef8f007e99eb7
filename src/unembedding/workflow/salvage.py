"""What a run that failed still gives: the summary and plots of the checkpoints that are finished.

Snakemake makes neither where one checkpoint failed. A stage that begins removes both, so they are
absent exactly where something of them may have changed; the next run makes them again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    settings: Mapping[str, Mapping[str, Any]],
) -> list[str]:
    """Summarize and plot what is finished; return lines that tell of it, and of what is absent.

    ``logs`` has the rules' logs, of which those after ``since`` (seconds of time.time) are of this
    run. ``settings`` are those of each model's categories.
    """
    checkpoints, mistakes = _asked_for(config, results)
    if not checkpoints and not mistakes:
        return []
    present = [(path, wanted) for path, wanted in checkpoints if path.is_file()]
    geometries, unusable = read_all(present)
    try:
        made = _summarize(results, geometries, config) + _plot(results, geometries)
        made += _summarize_concepts(present, settings)
    except UserError as error:
        return [f"What is finished could not be summarized. {error}"]
    names = {geometry.name for geometry in geometries}
    absent = [f"{a.model}/{a.revision}" for _, a in checkpoints]
    reasons = {name: _reason(logs / name, since) for name in absent if name not in names}
    for model in config.models:
        pinned = results.model(model).pinned
        if not (pinned.exists() and read_resolution(pinned).done):
            reasons[model] = _reason(logs / model, since)
    return _lines(made, len(geometries), reasons, mistakes + unusable)


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
    results: GeometryResults, geometries: Sequence[Geometry], config: Config
) -> list[Path]:
    if results.summary.exists() or not geometries:
        return []
    write_summary(results.summary, geometries, config.models)
    return [results.summary]


def _summarize_concepts(
    present: Sequence[tuple[Path, Asked]], settings: Mapping[str, Mapping[str, Any]]
) -> list[Path]:
    """Gather the scores of the checkpoints that have some, where no summary is there."""
    concepts = {path: RevisionResults(path.parent).concepts for path, _ in present}
    scored = [(path, asked) for path, asked in present if concepts[path].scores.exists()]
    places = {concepts[path].model.of_all for path, _ in scored}
    if any(place.summary.exists() for place in places):
        return []
    made = []
    for place in places:
        from unembedding.concepts.summary import gather, write_summary

        if found := gather(scored, settings)[0]:
            write_summary(place, found)
            made.append(place.summary)
    return made


def _plot(results: GeometryResults, geometries: Sequence[Geometry]) -> list[Path]:
    """Draw the plots that are absent, of each model."""
    try:
        from unembedding.plots import plot_model
    except ImportError:  # matplotlib may be in the environments of conda alone
        return []
    made = []
    for name in dict.fromkeys(geometry.model for geometry in geometries):
        model = results.model(name)
        targets = {p: model.plot(p) for p in PLOTS if not model.plot(p).exists()}
        if targets:
            own = [geometry for geometry in geometries if geometry.model == name]
            decompositions = [model.revision(g.revision).decomposition for g in own]
            plot_model(name, own, decompositions, targets)
            made.append(model.plot("").parent)
    return made


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
