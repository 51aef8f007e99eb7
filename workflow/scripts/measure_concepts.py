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
    from unembedding.results import ConceptRevision, RevisionResults
    from unembedding.revision import Revision
    from unembedding.stopwatch import Stopwatch
    from unembedding.workflow.stage import forget

    results = ConceptRevision(Path(snakemake.output.scores).parent)
    forget([results.tokens, *results.made_after])
    revision = Revision(RevisionResults(Path(snakemake.input.causal[0]).parent))
    stored, clock = load_categories(results.model), Stopwatch()
    backend, reason = select_backend(
        snakemake.params.backend, Path(snakemake.params.choice), revision.shape[1], "float32"
    )
    print(f"Backend {backend.name} on {backend.device} ({reason})")
    with using_threads(snakemake.threads, snakemake.resources.get("mem_mb")):
        concepts = measure(revision, stored.categories, gram_of(backend), clock)
    save_concepts(results, stored, revision.digest, concepts)
    print(clock.record())
