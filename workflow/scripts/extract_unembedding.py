"""Fetch the unembedding matrix γ of one checkpoint."""

from pathlib import Path
from typing import TYPE_CHECKING

from unembedding.workflow.joblog import logged_to
from unembedding.workflow.profiles import profiled

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

log, profile = snakemake.log[0], Path(snakemake.output.profile[0]).with_suffix("")
with logged_to(log), profiled("extract", profile, Path(log)) as clock:
    from urllib.parse import unquote

    from unembedding.extraction import extract_unembedding, open_source
    from unembedding.files import write_facts
    from unembedding.machine import allotment
    from unembedding.workflow.provenance import made_with

    params = snakemake.params
    revision = unquote(snakemake.wildcards.revision)
    with clock("open"):
        source = open_source(params.path, params.repo, revision, params.commit, params.download)
    with clock("read and write"):
        facts = extract_unembedding(
            source,
            Path(snakemake.output.unembedding),
            {
                "repo": params.repo or str(params.path),
                "revision": revision,
                "commit": params.commit,
            },
            params.tensor,
        )
    made = made_with(params.code, snakemake.config)
    given = allotment(snakemake.threads, snakemake.resources.get("mem_mb"))
    warnings = facts["warnings"] + given["warnings"]
    write_facts(
        Path(snakemake.output.facts),
        {**facts, **given, "warnings": warnings, "made_with": made, **clock.record()},
    )
