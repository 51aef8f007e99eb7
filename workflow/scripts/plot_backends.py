"""Plot the comparison of the eigensolvers."""

from pathlib import Path
from typing import TYPE_CHECKING

from unembedding.workflow.joblog import logged_to

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with logged_to(snakemake.log[0]):
    from unembedding.backend_comparison.plots import plot_comparison

    plot_comparison(
        Path(snakemake.input.eigh),
        Path(snakemake.input.stages),
        {name: Path(path) for name, path in snakemake.output.items()},
    )
