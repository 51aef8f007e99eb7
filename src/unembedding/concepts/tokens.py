"""What the explorer shows of single tokens at one checkpoint: projections and neighbours."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from unembedding.concepts.categories import Categories
from unembedding.concepts.directions import Directions
from unembedding.concepts.measuring import require_rows
from unembedding.concepts.neighbours import nearest
from unembedding.concepts.scores import project
from unembedding.concepts.vocabulary import Vocabulary
from unembedding.revision import Revision

MOST_WORDS = (
    12_000  # whose neighbours are kept: those with the smallest ids, the most frequent ones
)
NEIGHBOURS = 10
OUTSIDERS = 8  # of each synset, the tokens outside that project highest on it


def describe_tokens(
    revision: Revision, trained: Directions, categories: Categories, vocabulary: Vocabulary
) -> Mapping[str, np.ndarray]:
    """Return, by name, the arrays of tokens.safetensors.

    ``projections`` (M, float16) of each member of each synset on its direction found without those
    held out; ``outsiders`` (S × 8, int32) and their projections; ``queries`` (n, int32), words,
    with their ``neighbours`` (n × 10, int32) among all tokens that stand for text, and ``cosines``.
    """
    require_rows(revision, categories)
    rows = revision.shape[0]
    projections = project(revision.blocks(), trained)
    outsiders = np.zeros((len(categories), min(OUTSIDERS, rows)), np.int32)
    highest = np.full(outsiders.shape, np.nan, np.float16)
    of_members = np.empty(len(categories.token_ids), np.float16)
    for synset in range(len(categories)):
        members = categories.of(synset)
        ids, line = categories.token_ids[members], projections[synset]
        of_members[members] = line[ids]
        line[ids] = -np.inf
        outsiders[synset] = np.argsort(-line, kind="stable")[: outsiders.shape[1]]
        highest[synset] = line[outsiders[synset]]
    queries = categories.words[:MOST_WORDS]
    texts = np.array(sorted(n for n in vocabulary.texts if n < rows), np.int32)
    among = texts[~np.isin(texts, list(vocabulary.special))]
    near, cosines = zip(*nearest(revision.g(), queries, NEIGHBOURS, among), strict=True)
    return {
        "projections": of_members,
        "outsiders": outsiders,
        "outsiders_projections": highest,
        "queries": queries,
        "neighbours": np.concatenate(near).astype(np.int32),
        "cosines": np.concatenate(cosines).astype(np.float16),
    }
