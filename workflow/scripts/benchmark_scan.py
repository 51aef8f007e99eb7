"""Time every variant of the scan; write the table and its log-log picture."""

from pathlib import Path
from typing import TYPE_CHECKING

from unembedding.workflow.joblog import logged_to

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with logged_to(snakemake.log[0]):
    from mamba_cpu import load_kernel
    from mamba_cpu.bench.plot import plot_scaling
    from mamba_cpu.bench.timing import benchmark, conclusions, require_cores, table
    from mamba_cpu.bench.variants import all_variants
    from unembedding.files import write_text
    from unembedding.pages import html_table, write_page
    from unembedding.plot_style import save

    folder = Path(snakemake.input.record).parent
    kernel = load_kernel(folder)
    threads = snakemake.params.threads
    require_cores(threads, snakemake.threads)
    rows = benchmark(all_variants(folder), threads=threads, **snakemake.params.scan)
    machine = kernel.measured_on()
    measured = Path(snakemake.output.table)
    write_text(measured, table([row | machine for row in rows]))
    page = Path(snakemake.output.page)
    write_page(page, "Every selective scan", conclusions(rows), html_table(measured))
    save(plot_scaling(rows), Path(snakemake.output.figure))
