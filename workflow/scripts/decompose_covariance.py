"""Eigendecompose the covariance of one unembedding matrix."""

from pathlib import Path
from typing import TYPE_CHECKING

from joblog import logged_to
from profiling import profiled

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

log, profile = snakemake.log[0], Path(snakemake.output.profile[0]).with_suffix("")
with logged_to(log), profiled("decompose", profile, Path(log)) as clock:
    with clock("import"):
        from files import write_json
        from machine import using_threads
        from unembedding.backends import select_backend
        from unembedding.decomposition import decompose

        backend, reason = select_backend(snakemake.params.backend)
    print(f"Backend {backend.name} on {backend.device} ({reason})")
    memory = snakemake.resources.get("mem_mb")
    with using_threads(snakemake.threads, memory) as allotment:
        facts = decompose(
            Path(snakemake.input.unembedding),
            Path(snakemake.output.decomposition),
            backend,
            snakemake.params.precision,
            snakemake.params.rows,
            clock,
        )
    write_json(
        Path(snakemake.output.facts),
        {
            **facts,
            "backend": backend.name,
            "device": backend.device,
            "reason": reason,
            **allotment,
            **clock.record(),
        },
    )
