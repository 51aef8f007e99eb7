"""What the stages of a checkpoint share: log, profile, leavings, backend, threads, provenance."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unembedding.results import RevisionResults
from unembedding.stopwatch import Stopwatch
from unembedding.workflow.joblog import logged_to
from unembedding.workflow.profiles import profiled

if TYPE_CHECKING:
    from unembedding.backends import Backend
    from unembedding.records.stages import Compute, Run


@dataclass
class Stage:
    """One stage of one checkpoint, under way."""

    job: Any
    """Snakemake's object of the rule."""
    clock: Stopwatch
    results: RevisionResults
    compute: Compute | None = None
    given: dict[str, Any] = field(default_factory=dict)

    @contextmanager
    def computing(self, width: int, precision: str) -> Iterator[Backend]:
        """Hold BLAS to the job's threads, and yield the backend for matrices of this width."""
        with self.clock("import"):
            from unembedding.backends import select_backend
            from unembedding.machine import cpu_model, memory_mb, using_threads
            from unembedding.records.stages import Compute
            from unembedding.workflow.sizing import require_memory

            choice = Path(self.job.params.choice)
            backend, reason = select_backend(self.job.params.backend, choice, width, precision)
        print(f"Backend {backend.name} on {backend.device} ({reason})")
        if backend.device == cpu_model():
            require_memory(width, precision, memory_mb())
        with using_threads(self.job.threads, self.job.resources.get("mem_mb")) as used:
            self.compute = Compute(
                backend.name,
                backend.device,
                reason,
                **{key: used.pop(key) for key in ("threads", "cpus_allowed", "blas")},
            )
            self.given = used
            yield backend

    def with_commit(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Return what is asked of a checkpoint with the commit that revisions.tsv pins it to.

        As a parameter it makes Snakemake run a stage again; where the results are in a storage,
        parameters are made before the file is here.
        """
        from unembedding.records.pins import read_pins

        pinned = read_pins(Path(self.job.input.pinned))
        return {**asked, "commit": pinned.get(asked["revision"])}

    def run(self) -> Run:
        """Return how this stage was made, up to now."""
        from unembedding.machine import allotment
        from unembedding.records.stages import Run
        from unembedding.workflow.provenance import made_with

        job, asked = self.job, dict(self.job.params.asked)
        return Run(
            asked=self.with_commit(asked) if "commit" in asked else asked,
            made_with=made_with(job.params.code, job.config),
            compute=self.compute,
            **(self.given or allotment(job.threads, job.resources.get("mem_mb"))),
            **self.clock.record(),
        )


@contextmanager
def begun(name: str, job: Any) -> Iterator[Stage]:
    """Log and profile a stage, and yield its parts.

    First removes what an earlier run made of its result, which from here on is no longer true:
    where the stage fails or is killed, nothing is left that looks finished.
    """
    log, profile = Path(job.log[0]), Path(job.output.profile[0]).with_suffix("")
    script = sys._getframe(2)
    with logged_to(str(log)), profiled(name, profile, log, script) as clock:
        results = RevisionResults(profile.parents[1])
        forget(results.made_after(name))
        yield Stage(job, clock, results)


def forget(leavings: Iterable[Path]) -> None:
    """Remove what an earlier run made of a result that is about to be made again."""
    for leaving in leavings:
        leaving.unlink(missing_ok=True)
