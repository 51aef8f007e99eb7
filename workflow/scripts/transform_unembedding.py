"""Write g and C^(−1/2) of one checkpoint, and the description of its geometry."""

from pathlib import Path
from typing import TYPE_CHECKING

from joblog import logged_to
from profiling import profiled

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

log, profile = snakemake.log[0], Path(snakemake.output.profile[0]).with_suffix("")
with logged_to(log), profiled("transform", profile, Path(log)) as clock:
    with clock("import"):
        from files import read_json_file, write_json
        from machine import using_threads
        from unembedding.backends import select_backend
        from unembedding.description import describe
        from unembedding.transform import transform

        backend, reason = select_backend(snakemake.params.backend)
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
        extract=read_json_file(Path(snakemake.input.extract)),
        decompose=read_json_file(Path(snakemake.input.decompose)),
        transform={
            **facts,
            "backend": backend.name,
            "device": backend.device,
            **allotment,
            **clock.record(),
        },
    )
    write_json(Path(snakemake.output.geometry), geometry)
