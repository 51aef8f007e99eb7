"""Plot one model's concepts: over training, and at its last checkpoint."""

from pathlib import Path
from typing import TYPE_CHECKING

from unembedding.workflow.joblog import logged_to

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with logged_to(snakemake.log[0]):
    from unembedding.concepts.plots import plot_concepts
    from unembedding.concepts.summary import gather_all

    params, inputs = snakemake.params, snakemake.input
    plot_concepts(
        gather_all(inputs.geometry, params.checkpoints, params.settings),
        Path(inputs.agreement),
        {name: Path(path) for name, path in snakemake.output.items()},
    )
