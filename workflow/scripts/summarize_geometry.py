"""Gather one row per model and revision."""

from pathlib import Path
from typing import TYPE_CHECKING

from joblog import logged_to

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with logged_to(snakemake.log[0]):
    from files import write_text
    from unembedding.description import summary

    write_text(Path(snakemake.output[0]), summary([Path(path) for path in snakemake.input]))
