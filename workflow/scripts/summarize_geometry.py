"""Gather one row per model and revision."""

from pathlib import Path
from typing import TYPE_CHECKING

from unembedding.workflow.joblog import logged_to

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with logged_to(snakemake.log[0]):
    from unembedding.errors import UserError
    from unembedding.records.stages import Asked
    from unembedding.records.summary import read_all, write_summary
    from unembedding.workflow.joblog import warn

    paths = map(Path, snakemake.input.geometry)
    asked = [Asked(**checkpoint) for checkpoint in snakemake.params.checkpoints]
    geometries, mistakes = read_all(zip(paths, asked, strict=True))
    if mistakes:
        raise UserError("\n".join(mistakes))
    for warning in write_summary(Path(snakemake.output.table), geometries, snakemake.params.models):
        warn(warning)
