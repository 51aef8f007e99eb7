"""Project tokens on concepts, and find the neighbours of words, at one checkpoint."""

from pathlib import Path
from typing import TYPE_CHECKING

from unembedding.workflow.joblog import logged_to

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with logged_to(snakemake.log[0]):
    from unembedding.concepts.storage import (
        CATEGORIES,
        CAUSAL,
        load_categories,
        load_directions,
        save_arrays,
    )
    from unembedding.concepts.tokens import describe_tokens
    from unembedding.concepts.vocabulary import read_tokens
    from unembedding.machine import using_threads
    from unembedding.results import ConceptRevision, RevisionResults
    from unembedding.revision import Revision

    results = ConceptRevision(Path(snakemake.output[0]).parent)
    stored = load_categories(results.model)
    directions, made_of = load_directions(results)
    with using_threads(snakemake.threads, snakemake.resources.get("mem_mb")):
        arrays = describe_tokens(
            Revision(RevisionResults(Path(snakemake.input.causal[0]).parent)),
            directions["train"],
            stored.categories,
            read_tokens(Path(snakemake.input.vocabulary)),
        )
    save_arrays(results.tokens, arrays, {key: made_of[key] for key in (CATEGORIES, CAUSAL)})
