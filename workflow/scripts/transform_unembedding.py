"""Write g and C^(−1/2) of one checkpoint, and the description of its geometry."""

from pathlib import Path
from typing import TYPE_CHECKING

from unembedding.workflow.stage import begun

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with begun("transform", snakemake) as stage:
    with stage.clock("import"):
        from unembedding.records.geometry import describe, doubts
        from unembedding.records.serialization import read_record, write_record
        from unembedding.records.stages import Asked, Decomposed, Extracted, Transformed
        from unembedding.transform import transform
        from unembedding.workflow.joblog import tell, warn
        from unembedding.workflow.terminal import finished_line

    asked = snakemake.params.asked
    decomposed = read_record(Path(snakemake.input.decompose), Decomposed)
    with stage.computing(decomposed.facts.width, decomposed.facts.precision) as backend:
        facts = transform(
            Path(snakemake.input.unembedding),
            Path(snakemake.input.decomposition),
            stage.results.causal if "g" in asked["write"] else None,
            backend,
            asked["on_rank_deficient"],
            stage.clock,
            asked["residual"],
            stage.results.factors if "factors" in asked["write"] else None,
        )
    geometry = describe(
        Asked(**stage.with_commit(snakemake.params.checkpoint)),
        read_record(Path(snakemake.input.extract), Extracted),
        decomposed,
        Transformed(facts, stage.run()),
    )
    write_record(Path(snakemake.output.geometry), geometry)
    tell(finished_line(geometry, stage.results, Path(snakemake.input.pinned)))
    for doubt in doubts(geometry):
        warn(f"{geometry.name}: {doubt}")
