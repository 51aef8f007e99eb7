"""Write one page on which concepts and tokens of all models can be looked at."""

from pathlib import Path
from typing import TYPE_CHECKING

from unembedding.workflow.joblog import logged_to

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with logged_to(snakemake.log[0]):
    from unembedding.concepts.explorer import write_explorer
    from unembedding.concepts.summary import gather_all

    params, inputs = snakemake.params, snakemake.input
    write_explorer(
        Path(snakemake.output[0]),
        gather_all(inputs.geometry, params.checkpoints, params.settings),
        [Path(path) for path in inputs.tokens],
    )
