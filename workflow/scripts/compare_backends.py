"""Compare the eigensolvers of this machine, idle and busy."""

from pathlib import Path
from typing import TYPE_CHECKING

from unembedding.machine import end_with_parent
from unembedding.workflow.joblog import logged_to

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

end_with_parent()  # and the competing processes with this one
with logged_to(snakemake.log[0]):
    from unembedding.backend_comparison.comparing import compare

    gamma, params = snakemake.input.get("gamma"), snakemake.params
    compare(
        targets={name: Path(snakemake.output[name]) for name in ("eigh", "stages", "choice")},
        scratch=Path(snakemake.output.scratch),
        sizes=params.sizes,
        precisions=params.precisions,
        loads=params.loads,
        repeats=params.repeats,
        seconds=params.seconds,
        threads=min(params.threads, snakemake.threads),
        rows=params.rows,
        checkpoint=Path(gamma) if gamma else None,
    )
