"""Profile a forward pass of a Mamba model with the fused scan off, then on."""

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

import torch  # noqa: E402

from selective_scan import load_kernel  # noqa: E402
from selective_scan.model import compare, load_model, load_tokens  # noqa: E402

torch.set_num_threads(snakemake.threads)
load_kernel(Path(snakemake.input.record).parent)
model = load_model(**snakemake.params.model)
tokens = load_tokens(vocabulary=model.config.vocab_size, **snakemake.params.sequence)
result = compare(model, tokens)
Path(snakemake.output.before).write_text(result.before)
Path(snakemake.output.after).write_text(result.after)
Path(snakemake.output.summary).write_text(json.dumps(result.summary, indent=2) + "\n")
