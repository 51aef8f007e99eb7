"""Compile the scan kernel for this machine, and record what was made with what."""

from pathlib import Path
from typing import TYPE_CHECKING

from unembedding.workflow.joblog import logged_to

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with logged_to(snakemake.log[0]):
    from mamba_cpu.build import build, build_ladder
    from unembedding.files import write_json

    # They are of another kernel from here on, also where this one does not compile.
    for measured in snakemake.params.measured:
        Path(measured).unlink(missing_ok=True)
    record = Path(snakemake.output.record)
    kernel = build(record.parent)
    ladder = build_ladder(record.parent)
    described = {
        "library": kernel.library.name,
        "ladder": ladder.library.name,
        "level": kernel.level,
        "compiler": kernel.compiler,
        "flags": list(kernel.flags),
    }
    write_json(record, described)
