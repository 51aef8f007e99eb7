"""Pin the commits of the revisions that the configuration asks for."""

from pathlib import Path
from typing import TYPE_CHECKING

from unembedding.workflow.joblog import logged_to

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with logged_to(snakemake.log[0]):
    from unembedding.checkpoints.revisions import (
        format_revisions,
        read_revisions,
        resolve_revisions,
    )
    from unembedding.files import write_text

    target = Path(snakemake.output.pinned)
    commits = resolve_revisions(
        asked=snakemake.params.revisions,
        every=snakemake.params.every,
        repo=snakemake.params.repo,
        folder=snakemake.params.path,
        pinned=read_revisions(target) if target.exists() else {},
    )
    write_text(target, format_revisions(commits))
