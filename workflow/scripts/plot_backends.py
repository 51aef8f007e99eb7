"""Plot the comparison of the eigensolvers."""

from pathlib import Path
from typing import TYPE_CHECKING

from unembedding.workflow.joblog import logged_to

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with logged_to(snakemake.log[0]):
    from unembedding.backend_comparison.plots import plot_comparison
    from unembedding.pages import html_table, write_page

    targets = {name: Path(path) for name, path in snakemake.output.items()}
    tables = {name: Path(snakemake.input[name]) for name in ("eigh", "stages")}
    pages = {name: targets.pop(f"{name}_page") for name in tables}
    plot_comparison(tables["eigh"], tables["stages"], targets)
    for name, title in (("eigh", "Every call of eigh"), ("stages", "Whole jobs")):
        write_page(pages[name], title, [], html_table(tables[name]))
