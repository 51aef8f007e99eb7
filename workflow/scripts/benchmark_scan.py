"""Time every variant of the scan; write the table and its log-log picture."""

from pathlib import Path
from typing import TYPE_CHECKING

from unembedding.workflow.joblog import logged_to

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with logged_to(snakemake.log[0]):
    from mamba_cpu import load_kernel
    from mamba_cpu.bench.plot import plot_scaling
    from mamba_cpu.bench.timing import benchmark, require_cores, table
    from mamba_cpu.bench.variants import all_variants
    from unembedding.files import write_text
    from unembedding.plot_style import save

    folder = Path(snakemake.input.record).parent
    kernel = load_kernel(folder)
    threads = snakemake.params.threads
    require_cores(threads, snakemake.threads)
    rows = benchmark(all_variants(folder), threads=threads, **snakemake.params.scan)
    machine = kernel.measured_on()
    write_text(Path(snakemake.output.table), table([row | machine for row in rows]))
    save(plot_scaling(rows), Path(snakemake.output.figure))
