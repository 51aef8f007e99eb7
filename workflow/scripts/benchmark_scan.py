"""Time every variant of the scan; write the table and its log-log picture."""

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

# Before the heavy imports, so that a failed import is in the log too.
log = open(snakemake.log[0], "w", buffering=1)  # noqa: PTH123, SIM115
os.dup2(log.fileno(), sys.stdout.fileno())
os.dup2(log.fileno(), sys.stderr.fileno())

import csv  # noqa: E402
from pathlib import Path  # noqa: E402

from selective_scan import load_kernel  # noqa: E402
from selective_scan.benchmark import benchmark  # noqa: E402
from selective_scan.machine import describe_cpu  # noqa: E402
from selective_scan.plot import plot_scaling  # noqa: E402
from selective_scan.variants import all_variants  # noqa: E402

folder = Path(snakemake.input.record).parent
kernel = load_kernel(folder)
rows = benchmark(all_variants(folder), threads=snakemake.threads, **snakemake.params.scan)
machine = {"cpu": describe_cpu(), "compiler": kernel.compiler, "flags": " ".join(kernel.flags)}
columns = list(dict.fromkeys(key for row in rows for key in row)) + list(machine)
with Path(snakemake.output.table).open("w", newline="") as file:
    writer = csv.DictWriter(file, columns)
    writer.writeheader()
    writer.writerows(row | machine for row in rows)
plot_scaling(rows, Path(snakemake.output.figure))
