"""Compile the scan kernel for this machine, and record what was made with what."""

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

# Before the heavy imports, so that a failed import is in the log too.
log = open(snakemake.log[0], "w", buffering=1)  # noqa: PTH123, SIM115
os.dup2(log.fileno(), sys.stdout.fileno())
os.dup2(log.fileno(), sys.stderr.fileno())

import json  # noqa: E402
from pathlib import Path  # noqa: E402

from selective_scan.build import build, build_ladder  # noqa: E402

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
record.write_text(json.dumps(described, indent=2) + "\n")
