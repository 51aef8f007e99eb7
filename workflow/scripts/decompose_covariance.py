"""Eigendecompose the covariance of one unembedding matrix."""

from pathlib import Path
from typing import TYPE_CHECKING

from unembedding.workflow.stage import begun

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with begun("decompose", snakemake) as stage:
    with stage.clock("import"):
        from unembedding.covariance import decompose
        from unembedding.extraction import matrix_shape
        from unembedding.records.serialization import write_record
        from unembedding.records.stages import Decomposed

    gamma, asked = Path(snakemake.input.unembedding), snakemake.params.asked
    with stage.computing(matrix_shape(gamma)[1], asked["precision"]) as backend:
        facts = decompose(
            gamma,
            Path(snakemake.output.decomposition),
            backend,
            asked["precision"],
            asked["rows"],
            stage.clock,
        )
    write_record(Path(snakemake.output.facts), Decomposed(facts, stage.run()))
