"""Gather one row per model and revision."""

from pathlib import Path
from typing import TYPE_CHECKING

from unembedding.workflow.joblog import logged_to

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with logged_to(snakemake.log[0]):
    import sys

    from unembedding.files import write_text
    from unembedding.records.geometry import gather, summary

    geometries = gather(Path(path) for path in snakemake.input.geometry)
    for geometry in geometries:
        if other := geometry["duplicate_of"]:
            name = f"{geometry['model']}/{geometry['revision']}"
            for place in (sys.stderr, sys.__stderr__):  # the log, and the terminal
                print(f"Warning: γ of {name} is byte for byte that of {other}", file=place)
    write_text(Path(snakemake.output[0]), summary(geometries))
