"""Write g and C^(−1/2) of one checkpoint, and the description of its geometry."""

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from unembedding.workflow.joblog import logged_to
from unembedding.workflow.profiles import profiled

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

log, profile = snakemake.log[0], Path(snakemake.output.profile[0]).with_suffix("")
with logged_to(log), profiled("transform", profile, Path(log)) as clock:
    with clock("import"):
        from unembedding.backends import select_backend
        from unembedding.files import read_facts, write_facts
        from unembedding.machine import using_threads
        from unembedding.records.geometry import describe
        from unembedding.transform import transform
        from unembedding.workflow.provenance import made_with

        decompose = read_facts(Path(snakemake.input.decompose))
        backend, reason = select_backend(
            snakemake.params.backend,
            Path(snakemake.params.choice),
            decompose["width"],
            decompose["precision"],
        )
    print(f"Backend {backend.name} on {backend.device} ({reason})")
    memory = snakemake.resources.get("mem_mb")
    with using_threads(snakemake.threads, memory) as allotment:
        facts = transform(
            Path(snakemake.input.unembedding),
            Path(snakemake.input.decomposition),
            Path(snakemake.output.causal),
            backend,
            snakemake.params.on_rank_deficient,
            clock,
        )
    geometry = describe(
        model=snakemake.wildcards.model,
        revision=unquote(snakemake.wildcards.revision),
        extract=read_facts(Path(snakemake.input.extract)),
        decompose=decompose,
        asked=snakemake.params.asked,
        transform={
            **facts,
            "backend": backend.name,
            "device": backend.device,
            "made_with": made_with(snakemake.params.code, snakemake.config),
            **allotment,
            **clock.record(),
        },
    )
    write_facts(Path(snakemake.output.geometry), geometry)
