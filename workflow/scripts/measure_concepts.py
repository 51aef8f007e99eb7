"""Find the direction of every synset in one g, and score it beside shuffled labels."""

from pathlib import Path
from typing import TYPE_CHECKING

from unembedding.workflow.joblog import logged_to

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with logged_to(snakemake.log[0]):
    from unembedding.backends import select_backend
    from unembedding.concepts.directions import gram_of
    from unembedding.concepts.measuring import measure
    from unembedding.concepts.storage import load_categories, save_concepts
    from unembedding.machine import using_threads
    from unembedding.results import ConceptRevision
    from unembedding.stopwatch import Stopwatch
    from unembedding.tensors.files import TensorFile
    from unembedding.whitening import G
    from unembedding.workflow.stage import forget

    results = ConceptRevision(Path(snakemake.output.scores).parent)
    forget([results.tokens, *results.made_after])
    stored, causal = load_categories(results.model), TensorFile(Path(snakemake.input.causal))
    width, clock = causal.tensor(G, 2).shape[1], Stopwatch()
    backend, reason = select_backend(
        snakemake.params.backend, Path(snakemake.params.choice), width, "float32"
    )
    print(f"Backend {backend.name} on {backend.device} ({reason})")
    with using_threads(snakemake.threads, snakemake.resources.get("mem_mb")):
        concepts = measure(causal, stored.categories, gram_of(backend), clock)
    save_concepts(results, stored, causal.digest, concepts)
    print(clock.record())
