"""Compare checkpoints with the last one: leading eigenspaces, and products of tokens."""

from pathlib import Path
from typing import TYPE_CHECKING

from unembedding.workflow.joblog import logged_to

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with logged_to(snakemake.log[0]):
    from unembedding.agreement import Row, compare_with_last
    from unembedding.machine import using_threads
    from unembedding.records.serialization import write_table
    from unembedding.results import RevisionResults

    with using_threads(snakemake.threads, snakemake.resources.get("mem_mb")):
        rows = compare_with_last(
            [RevisionResults(Path(path).parent) for path in snakemake.input.decomposition]
        )
    write_table(Path(snakemake.output[0]), Row, rows, digits=6)
