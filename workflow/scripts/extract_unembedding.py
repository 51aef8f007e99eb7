"""Fetch the unembedding matrix γ of one checkpoint."""

from pathlib import Path
from typing import TYPE_CHECKING

from unembedding.workflow.stage import begun

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with begun("extract", snakemake) as stage:
    from unembedding.extraction import extract_unembedding, open_source
    from unembedding.records.serialization import write_record
    from unembedding.records.stages import Extracted

    params, asked = snakemake.params, stage.with_commit(snakemake.params.asked)
    with stage.clock("open"):
        path = params.path and Path(params.path)
        commit, download = asked["commit"], params.download
        source = open_source(
            path, asked["repo"], asked["revision"], commit, download, asked["subfolder"]
        )
    with stage.clock("read and write"):
        facts = extract_unembedding(
            source,
            Path(snakemake.output.unembedding),
            {key: asked[key] for key in ("repo", "revision", "commit")},
            asked["tensor"],
        )
    write_record(Path(snakemake.output.facts), Extracted(facts, stage.run()))
