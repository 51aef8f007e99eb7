"""How far the covariance of g is from the identity.

With E = gᵀg / V − P, where P is the identity, or the projector on the part that has full rank, the
whitening residual is max ‖Eᵢ‖₂ over the rows of E. No entry of E is larger. It is estimated from 32
random directions, or measured.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from unembedding.backends import Backend
from unembedding.errors import GeometryError
from unembedding.tensors.files import block_rows

G = "g"
INVERSE_SQRT, SQRT = "inverse_sqrt_covariance", "sqrt_covariance"
DIRECTIONS = 32


class Probes:
    """Estimates the residual from the blocks of g while they are at hand.

    For Ω of independent standard normal numbers the entries of row i of EΩ are normal with variance
    ‖Eᵢ‖², so √m of the mean m of their squares is ‖Eᵢ‖ to 12.5 % (one standard deviation), and less
    than half of it once in 200,000. Where many rows are equally poor the largest estimate is up to
    a half above the truth. Ω is the same each time. Costs 64 / d of forming gᵀg whole.
    Products are float32 and summed over blocks in float64, and so is the sum of the rows.
    """

    def __init__(self, width: int) -> None:
        self.directions = np.random.default_rng(0).standard_normal((width, DIRECTIONS), np.float32)
        self.rows = 0
        self.moments = np.zeros((DIRECTIONS, width))
        self.total = np.zeros(width)

    def add(self, block: np.ndarray) -> None:
        """Take in a block (n × d, float32) of g."""
        projected = np.ones((len(block), DIRECTIONS + 1), np.float32)
        np.matmul(block, self.directions, out=projected[:, :DIRECTIONS])
        sums = projected.T @ block
        self.moments += sums[:DIRECTIONS]
        self.total += sums[DIRECTIONS]
        self.rows += len(block)

    def residual(self, kept: np.ndarray | None = None) -> float:
        """Return the estimate; ``kept`` (d × r) are the directions of P where it is no identity."""
        expected = self.directions.astype(np.float64)
        if kept is not None:
            expected = kept @ (kept.T @ expected)
        errors = self.moments.T / self.rows - expected
        return float(np.sqrt((errors**2).mean(axis=1).max()))


def whitening_residual(
    blocks: Iterable[np.ndarray],
    rows: int,
    width: int,
    backend: Backend,
    kept: np.ndarray | None = None,
) -> float:
    """Return max ‖Eᵢ‖₂ of a g given in blocks, measured; ``kept`` is as in ``Probes.residual``.

    Products are formed in float32, which measures down to about 1e-8 √d, and summed in float64.
    Raises GeometryError where they are not finite.
    """
    moments = backend.host(backend.gram(blocks, np.zeros(width), np.dtype(np.float32)))
    worst = 0.0
    step = block_rows(width)
    for first in range(0, width, step):
        stop = min(first + step, width)
        expected = np.eye(stop - first, width, first) if kept is None else kept[first:stop] @ kept.T
        norms = np.linalg.norm(moments[first:stop] / rows - expected, axis=1)
        # Not `max`, for which a number that is no number is never the larger one.
        worst = float(np.maximum(worst, norms.max()))
    if not np.isfinite(worst):
        raise GeometryError("The products of g are not finite.")
    return worst
