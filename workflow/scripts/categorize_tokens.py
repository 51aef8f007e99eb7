"""Find the synsets that enough tokens belong to, and split their members."""

from pathlib import Path
from typing import TYPE_CHECKING

from unembedding.workflow.joblog import logged_to

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with logged_to(snakemake.log[0]):
    from unembedding.concepts.categories import find_categories
    from unembedding.concepts.storage import save_categories
    from unembedding.concepts.vocabulary import read_tokens
    from unembedding.results import ConceptModel
    from unembedding.workflow.stage import forget

    results = ConceptModel(Path(snakemake.output.categories).parent)
    forget(results.made_after)
    settings = snakemake.params.settings
    chosen = {key: settings[key] for key in settings if key != "wordnet"}
    vocabulary = read_tokens(Path(snakemake.input.tokens))
    categories = find_categories(vocabulary, Path(snakemake.params.wordnet), **chosen)
    save_categories(results, categories, settings)
    print(f"{len(categories)} synsets of {len(categories.tokens):,} tokens")
