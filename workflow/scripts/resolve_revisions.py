"""Pin the commits of the revisions that the configuration asks for."""

from pathlib import Path
from typing import TYPE_CHECKING

from unembedding.workflow.joblog import logged_to

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with logged_to(snakemake.log[0]):
    from unembedding.records.pins import renewing
    from unembedding.resolution import resolve_revisions

    request = snakemake.params.request
    with renewing(Path(snakemake.output.pinned), request) as (pinned, pin):
        pin(
            resolve_revisions(
                asked=request["revisions"],
                every=request["every"],
                step=request["step"],
                repo=request["repo"],
                folder=request["path"] and Path(request["path"]),
                pinned=pinned,
            )
        )
