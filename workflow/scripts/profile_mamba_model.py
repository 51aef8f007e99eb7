"""Profile a forward pass of a Mamba model with the fused scan off, then on."""

from pathlib import Path
from typing import TYPE_CHECKING

from unembedding.workflow.joblog import logged_to

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with logged_to(snakemake.log[0]):
    import torch

    from mamba_cpu import load_kernel
    from mamba_cpu.bench.timing import require_cores
    from mamba_cpu.bench.whole_model import compare, load_model, load_tokens
    from unembedding.files import write_json, write_text
    from unembedding.pages import html_text, write_page

    require_cores(snakemake.params.threads, snakemake.threads)
    torch.set_num_threads(snakemake.params.threads)
    kernel = load_kernel(Path(snakemake.input.record).parent)
    model = load_model(**snakemake.params.model)
    vocabulary = model.get_input_embeddings().num_embeddings
    tokens = load_tokens(vocabulary=vocabulary, **snakemake.params.sequence)
    result = compare(model, tokens)
    write_text(Path(snakemake.output.before), result.before)
    write_text(Path(snakemake.output.after), result.after)
    write_text(Path(snakemake.output.comparison), result.side_by_side)
    page = Path(snakemake.output.page)
    write_page(page, "A whole model", result.conclusions(), html_text(result.side_by_side))
    write_json(Path(snakemake.output.summary), result.summary | kernel.measured_on())
