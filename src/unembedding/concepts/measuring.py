"""One checkpoint's concepts: from g and categories to directions, matrices and scores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from unembedding.concepts.categories import Categories
from unembedding.concepts.directions import Directions, Gram, find_directions, gram_float32
from unembedding.concepts.matrices import Matrices, three_matrices
from unembedding.concepts.scores import SCORES, score
from unembedding.errors import UserError
from unembedding.revision import Revision
from unembedding.stopwatch import Stopwatch


@dataclass(frozen=True)
class Concepts:
    """What was found of S synsets."""

    directions: Mapping[str, Directions]
    matrices: Matrices
    scores: Mapping[str, np.ndarray]
    """Each of SCORES (S)."""
    nulls: Mapping[str, np.ndarray]
    """The same with shuffled labels, the mean over shuffles; NaN where there are none."""


def measure(
    revision: Revision,
    categories: Categories,
    gram: Gram = gram_float32,
    clock: Stopwatch | None = None,
) -> Concepts:
    """Find the directions of all synsets in g, and score them beside shuffled labels.

    Raises UserError where the categories are of a larger vocabulary than g.
    """
    clock = clock or Stopwatch()
    require_rows(revision, categories)
    with clock("directions and scores"):
        directions, matrices, scores = _of_labels(revision, categories, None, gram)
    nulls = []
    for permutation in categories.permutations:
        with clock("shuffled labels"):
            nulls.append(_of_labels(revision, categories, permutation, gram)[2])
    return Concepts(directions, matrices, scores, _mean(nulls, len(categories)))


def require_rows(revision: Revision, categories: Categories) -> None:
    """Raise UserError where tokens have no row in g."""
    rows = revision.shape[0]
    needed = max(categories.permutations.shape[1], int(categories.words.max(initial=-1)) + 1)
    if needed > rows:
        raise UserError(
            f"The tokenizer has {needed:,} tokens, and {revision.path} only {rows:,} rows: they "
            "are of different models, or `rows:` leaves tokens out. Name the right tokenizer.json "
            "as the model's `tokenizer:`."
        )


def _of_labels(
    revision: Revision, categories: Categories, permutation: np.ndarray | None, gram: Gram
) -> tuple[Mapping[str, Directions], Matrices, dict[str, np.ndarray]]:
    """Return directions, matrices and scores, of labels as they are or as they are permuted."""

    def token_of(ids: np.ndarray) -> np.ndarray:
        return ids if permutation is None else permutation[ids]

    directions = find_directions(revision.g(token_of(categories.tokens)), categories, gram)
    matrices = three_matrices(directions["all"].vectors, categories)
    blocks, words = revision.blocks(), categories.words
    scores = score(blocks, directions, matrices, categories, words, token_of)
    return directions, matrices, scores


def _mean(nulls: list[dict[str, np.ndarray]], synsets: int) -> dict[str, np.ndarray]:
    if not nulls:
        return {name: np.full(synsets, np.nan) for name in SCORES}
    return {name: np.mean([null[name] for null in nulls], axis=0) for name in SCORES}
