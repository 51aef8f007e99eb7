"""Plot one model's geometry over its training."""

from pathlib import Path
from typing import TYPE_CHECKING

from unembedding.workflow.joblog import logged_to

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with logged_to(snakemake.log[0]):
    from unembedding.plots import plot_model

    plot_model(
        snakemake.wildcards.model,
        [Path(path) for path in snakemake.input.geometry],
        [Path(path) for path in snakemake.input.decomposition],
        {name: Path(path) for name, path in snakemake.output.items()},
    )
