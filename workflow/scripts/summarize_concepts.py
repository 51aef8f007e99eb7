"""Gather one row per model, revision and part of speech."""

from pathlib import Path
from typing import TYPE_CHECKING

from unembedding.workflow.joblog import logged_to

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with logged_to(snakemake.log[0]):
    from unembedding.concepts.summary import gather_all, write_summary
    from unembedding.results import ConceptResults

    params = snakemake.params
    found = gather_all(snakemake.input.geometry, params.checkpoints, params.settings)
    write_summary(ConceptResults(Path(snakemake.output.table).parent), found, params.settings)
