"""The tokens nearest to a token under the causal inner product (Park et al. 2023).

That product of γ is the Euclidean one of g, so what is near is found by cosines of rows of g.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from unembedding.errors import UserError

ROWS = 512  # queries at a time: their cosines with 50,000 tokens take 100 MB


def neighbours(
    g: np.ndarray, tokens: Mapping[int, str], word: str, count: int = 10
) -> list[tuple[str, float]]:
    """Return the tokens nearest to ``word`` with their cosines, nearest first.

    g: (V × d). tokens: the text of each row, as ``read_tokens(…).texts`` has them. ``word`` is a
    token's text; where there is none, the one with a space in front is meant.
    Raises UserError where there is neither.
    """
    if count < 1:
        raise UserError(f"The number of neighbours is at least 1, not {count}.")
    g = np.asarray(g, np.float32)
    ids: dict[str, int] = {}
    for number, text in tokens.items():
        if number < len(g):
            ids.setdefault(text, number)
    found = ids.get(word, ids.get(f" {word}"))
    if found is None:
        raise UserError(f"No token is {word!r}, with a space in front or without.")
    near, cosines = next(nearest(g, np.array([found]), count))
    pairs = zip(near[0].tolist(), cosines[0].tolist(), strict=True)
    return [(tokens.get(number, ""), cosine) for number, cosine in pairs]


def nearest(
    g: np.ndarray, queries: np.ndarray, count: int, among: np.ndarray | None = None
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield, for blocks of queries, the ids (n × count) of the nearest rows, and their cosines.

    g: (V × d, float32). queries: ids (n). among: ids to choose from, by default all; a query is not
    its own neighbour. Fewer than ``count`` where there are no more.
    """
    candidates = np.arange(len(g)) if among is None else among
    norms = np.sqrt(np.einsum("ij,ij->i", g, g))
    norms[norms == 0] = 1
    unit = g[candidates]
    unit /= norms[candidates, None]
    count = min(count, len(candidates) - 1)
    for first in range(0, len(queries), ROWS):
        ids = queries[first : first + ROWS]
        cosines = (g[ids] / norms[ids, None]) @ unit.T
        cosines[ids[:, None] == candidates] = -np.inf
        top = np.argpartition(-cosines, count - 1, axis=1)[:, :count]
        values = np.take_along_axis(cosines, top, axis=1)
        order = np.argsort(-values, axis=1, kind="stable")
        yield (
            candidates[np.take_along_axis(top, order, axis=1)],
            np.take_along_axis(values, order, axis=1),
        )
