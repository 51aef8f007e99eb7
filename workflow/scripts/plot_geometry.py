"""Plot one model's geometry over its training."""

from pathlib import Path
from typing import TYPE_CHECKING

from unembedding.workflow.joblog import logged_to

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with logged_to(snakemake.log[0]):
    from unembedding.plots import plot_model
    from unembedding.records.geometry import read_geometry
    from unembedding.records.stages import Asked

    asked = [Asked(**checkpoint) for checkpoint in snakemake.params.checkpoints]
    paths = map(Path, snakemake.input.geometry)
    plot_model(
        snakemake.wildcards.model,
        [read_geometry(path, wanted) for path, wanted in zip(paths, asked, strict=True)],
        [Path(path) for path in snakemake.input.decomposition],
        {name: Path(path) for name, path in snakemake.output.items()},
    )
