"""What a run that failed still gives: the summary and plots of the checkpoints it finished."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from os.path import commonpath
from pathlib import Path
from typing import Any

from unembedding.errors import UserError
from unembedding.files import write_text
from unembedding.records.geometry import finished, gather, summary

RESULTS = Path("results/geometry")


def salvage(workflow: Any) -> list[str]:
    """Summarize and plot what is finished; return lines that tell of it, and of what is absent.

    Snakemake does neither where one checkpoint failed. It is told that these files are incomplete,
    as a killed job would leave them, so that its next run makes them again. Nothing is done where
    no checkpoint failed, or nobody asked for summary or plots.
    """
    dag, failed = workflow.dag, _jobs(workflow.scheduler.failed)
    reasons = _reasons(failed)
    waiting = [job for job in dag.needrun_jobs() if job.rule.name in GATHERED and job not in failed]
    if not (reasons and waiting):
        return []
    described = [job for job in dag.jobs if job.rule.name == "transform_unembedding"]
    # Not whatever lies there: a file of an earlier run may be of another configuration.
    done = {Path(job.output.geometry) for job in described if dag.noneedrun_finished(job)}
    try:
        geometries = [path for path in finished(RESULTS) if path in done]
        made = _gather(workflow.persistence, waiting, geometries)
    except UserError as error:
        _remove(waiting)
        return [f"What is finished could not be summarized. {error}"]
    missed = {_name(job) for job in described if not dag.noneedrun_finished(job)} - reasons.keys()
    return _lines(made, len(geometries), reasons, len(missed))


def _jobs(scheduled: Iterable[Any]) -> set[Any]:
    """Return single jobs; on a cluster the scheduler has groups of them."""
    return {job for item in scheduled for job in (item.jobs if item.is_group() else [item])}


def _name(job: Any) -> str:
    return "/".join(job.wildcards)


def _reasons(failed: Iterable[Any]) -> dict[str, Path]:
    """Return {model/revision: log}; of the logs of a group the last one that says something.

    Snakemake makes empty ones for the jobs of a failed group that never ran.
    """
    logs = [(Path(path), _name(job)) for job in failed if job.wildcards for path in job.log]
    logs.sort(key=lambda log: _last_said(log[0]))
    return {name: path for path, name in logs}


def _last_said(log: Path) -> int:
    """Return when a log was written, in nanoseconds; 0 for one that says nothing."""
    return log.stat().st_mtime_ns if log.exists() and log.stat().st_size else 0


def _gather(persistence: Any, waiting: Iterable[Any], geometries: Sequence[Path]) -> list[str]:
    """Do the jobs that wait for every checkpoint with those there are; return what was made."""
    made: list[str] = []
    for job in waiting:
        model = job.wildcards.get("model")
        own = [path for path in geometries if model in (None, path.parts[-3])]
        _remove([job])
        if own:
            persistence.started(job)
            with suppress(ImportError):  # matplotlib may be in the environments of conda alone
                GATHERED[job.rule.name](job, own)
                made.append(commonpath(job.output))
    return sorted(made)


def _remove(jobs: Iterable[Any]) -> None:
    """Remove what an earlier run made of checkpoints of which some are no longer true."""
    for job in jobs:
        for output in job.output:
            Path(output).unlink(missing_ok=True)


def _summarize(job: Any, geometries: Sequence[Path]) -> None:
    write_text(Path(job.output[0]), summary(gather(geometries)))


def _plot(job: Any, geometries: Sequence[Path]) -> None:
    from unembedding.plots import plot_model

    decompositions = [path.with_name("decomposition.safetensors") for path in geometries]
    targets = {name: Path(path) for name, path in job.output.items()}
    plot_model(job.wildcards.model, geometries, decompositions, targets)


GATHERED = {"summarize_geometry": _summarize, "plot_geometry": _plot}


def _lines(made: Sequence[str], finished: int, reasons: dict[str, Path], missed: int) -> list[str]:
    lines = []
    if made:
        lines += [f"Made of the {finished} checkpoints that are finished; the next run redoes it:"]
        lines += [f"  {path}" for path in made]
    lines += ["Absent, and the log that says why:"]
    lines += [f"  {name}: {reasons[name]}" for name in sorted(reasons)]
    if missed:
        lines += [f"Absent, since this run did not come to it: {missed} more."]
    return lines
