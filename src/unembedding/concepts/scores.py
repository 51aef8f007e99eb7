"""How well directions tell concepts, each score beside what shuffled labels give.

docs/concepts.md says how to read each score, and which of them carry evidence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np

from unembedding.concepts.categories import Categories
from unembedding.concepts.directions import Directions
from unembedding.concepts.matrices import Matrices, cosines

SCORES = (
    "linear",
    "auc",
    "auc_words",
    "separability",
    "hierarchy",
    "held_out_cosine",
    "self_agreement",
)


def score(
    blocks: Iterable[np.ndarray],
    directions: Mapping[str, Directions],
    matrices: Matrices,
    categories: Categories,
    words: np.ndarray,
    token_of: Callable[[np.ndarray], np.ndarray] = lambda ids: ids,
) -> dict[str, np.ndarray]:
    """Return each of ``SCORES`` of each synset (S, float64); NaN where it is not defined.

    ``blocks`` are all rows of g, and ``words`` the ids of tokens that are a space and a word.
    ``token_of`` gives the rows of token ids, others than the ids where labels are shuffled.
    """
    projections = project(blocks, directions["train"])
    agreement = cosines(directions["half0"].vectors, directions["half1"].vectors)
    scores = {name: np.full(len(categories), np.nan) for name in SCORES}
    for pos in dict.fromkeys(categories.pos):
        part = np.flatnonzero(np.array(categories.pos) == pos)
        for synset in part.tolist():
            members = categories.token_ids[categories.of(synset)]
            held_out = members[categories.held_out[categories.of(synset)]]
            found = of_projections(
                projections[synset], token_of(members), token_of(held_out), token_of(words)
            )
            for name, value in zip(SCORES[:3], found, strict=True):
                scores[name][synset] = value
        block = np.ix_(part, part)
        related = matrices.adjacency[block].astype(bool)
        scores["separability"][part] = rms_off_diagonal(
            matrices.cosine[block] - matrices.adjacency[block]
        )
        scores["hierarchy"][part] = rms_off_diagonal(matrices.difference[block])
        scores["held_out_cosine"][part] = relatedness(agreement[block], related)
        scores["self_agreement"][part] = agreement[block].diagonal()
    return scores


def mean_scores(scores: Mapping[str, np.ndarray]) -> dict[str, float | None]:
    """Return each score over all synsets: root mean squares of those that are such, else means.

    None where it is defined of no synset. ``scores`` may have those of shuffled labels, too, with
    names that end in ``_null``.
    """
    return {name: _mean(name.removesuffix("_null"), values) for name, values in scores.items()}


def _mean(name: str, values: np.ndarray) -> float | None:
    defined = values[np.isfinite(values)]
    if len(defined) == 0:
        return None
    if name in ("separability", "hierarchy"):
        return float(np.sqrt(np.square(defined).mean()))
    return float(defined.mean())


def project(blocks: Iterable[np.ndarray], directions: Directions) -> np.ndarray:
    """Return g·ℓ / ‖ℓ‖² of every row with every direction (S × V, float32); NaN where ℓ is zero."""
    squares = np.square(directions.vectors).sum(axis=1, keepdims=True)
    scaled = directions.vectors / np.where(squares > 0, squares, np.nan)
    scaled = scaled.astype(np.float32)
    return np.concatenate([block @ scaled.T for block in blocks]).T


def of_projections(
    projections: np.ndarray, members: np.ndarray, held_out: np.ndarray, words: np.ndarray
) -> tuple[float, float, float]:
    """Return linear, AUC and AUC among words of one synset from the projections of all rows (V)."""
    if len(held_out) == 0 or np.isnan(projections[0]):
        return np.nan, np.nan, np.nan
    others = np.ones(len(projections), bool)
    others[members] = False
    other_words = words[others[words]]
    found = projections[held_out]
    return (
        float(found.mean()),
        area_under_curve(found, projections[others]),
        area_under_curve(found, projections[other_words]),
    )


def area_under_curve(positive: np.ndarray, negative: np.ndarray) -> float:
    """Return the probability that a positive is above a negative, ties counting half."""
    if len(positive) == 0 or len(negative) == 0:
        return np.nan
    ordered = np.sort(negative)
    below = np.searchsorted(ordered, positive, "left") + np.searchsorted(ordered, positive, "right")
    return float(below.mean() / (2 * len(ordered)))


def rms_off_diagonal(matrix: np.ndarray) -> np.ndarray:
    """Return the root mean square of each row (n), without its diagonal and without NaN."""
    squares = np.square(matrix, dtype=np.float64)
    np.fill_diagonal(squares, np.nan)
    counted = np.isfinite(squares).sum(axis=1)
    total = np.nansum(squares, axis=1)
    return np.sqrt(np.divide(total, counted, out=np.full(len(total), np.nan), where=counted > 0))


def relatedness(agreement: np.ndarray, related: np.ndarray) -> float:
    """Return the AUC of related against unrelated pairs of different synsets, by their cosines.

    ``agreement`` (n × n) has the cosines of directions of one half of the families with those of
    the other half.
    """
    pairs = ~np.eye(len(agreement), dtype=bool) & np.isfinite(agreement)
    return area_under_curve(agreement[pairs & related], agreement[pairs & ~related])
