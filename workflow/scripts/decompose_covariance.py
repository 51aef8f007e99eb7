"""Eigendecompose the covariance of one unembedding matrix."""

from pathlib import Path
from typing import TYPE_CHECKING

from unembedding.workflow.joblog import logged_to
from unembedding.workflow.profiles import profiled

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

log, profile = snakemake.log[0], Path(snakemake.output.profile[0]).with_suffix("")
with logged_to(log), profiled("decompose", profile, Path(log)) as clock:
    with clock("import"):
        from unembedding.backends import select_backend
        from unembedding.covariance import decompose
        from unembedding.extraction import UNEMBEDDING
        from unembedding.files import write_facts
        from unembedding.machine import using_threads
        from unembedding.tensors.files import TensorFile
        from unembedding.workflow.provenance import made_with

        width = TensorFile(Path(snakemake.input.unembedding)).tensor(UNEMBEDDING, 2).shape[1]
        backend, reason = select_backend(
            snakemake.params.backend,
            Path(snakemake.params.choice),
            width,
            snakemake.params.precision,
        )
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
    write_facts(
        Path(snakemake.output.facts),
        {
            **facts,
            "backend": backend.name,
            "device": backend.device,
            "reason": reason,
            "made_with": made_with(snakemake.params.code, snakemake.config),
            **allotment,
            **clock.record(),
        },
    )
