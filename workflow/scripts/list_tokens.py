"""Write the text of each row of γ."""

from pathlib import Path
from typing import TYPE_CHECKING

from unembedding.workflow.joblog import logged_to

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with logged_to(snakemake.log[0]):
    from unembedding.concepts.tokenizer import find_vocabulary
    from unembedding.concepts.vocabulary import write_tokens
    from unembedding.records.pins import read_pins
    from unembedding.results import ModelResults
    from unembedding.workflow.stage import forget

    results = ModelResults(Path(snakemake.output[0]).parent)
    concepts = results.concepts
    forget([concepts.categories, concepts.synsets, *concepts.made_after])
    source = snakemake.params.source
    pins = read_pins(Path(snakemake.input.pinned))
    vocabulary = find_vocabulary(
        tokenizer=source["tokenizer"] and Path(source["tokenizer"]),
        path=source["path"] and Path(source["path"]),
        repo=source["repo"],
        pin=next(iter(pins.items())),
        subfolder=source["subfolder"],
    )
    write_tokens(results.vocabulary, vocabulary)
    print(f"{len(vocabulary.texts):,} tokens of {vocabulary.source}")
