"""How alike two checkpoints of one model are.

Two questions that the eigendecomposition and g answer: whether the leading directions of γ's
covariance have turned (principal angles, Björck & Golub 1973), and whether tokens lie alike among
each other (linear centred kernel alignment, Kornblith et al. 2019, equation 5 on g).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import starmap
from pathlib import Path

import numpy as np

from unembedding.errors import UserError
from unembedding.tensors.files import TensorFile
from unembedding.whitening import G

LEADING = 32  # directions, or a quarter of the width where that is less


@dataclass(frozen=True)
class Row:
    """A row of agreement.csv."""

    revision: str
    last: str
    alignment: float
    """Linear CKA of their g."""
    leading: int
    """Dimensions of the eigenspaces that are compared."""
    eigenspaces: float
    """Mean square of the cosines of their principal angles."""
    chance: float
    """What that is of two random subspaces."""


def principal_cosines(first: np.ndarray, second: np.ndarray, count: int) -> np.ndarray:
    """Return the cosines of the angles between two leading eigenspaces (count, descending).

    first, second: eigenvectors (d × d, columns) in ascending order of the eigenvalues, as
    decomposition.safetensors has them; the last ``count`` columns span the spaces. 1: the spaces
    share a direction; 0: one is orthogonal to the other.
    """
    product = first[:, -count:].T @ second[:, -count:]
    return np.clip(np.linalg.svd(product, compute_uv=False), 0.0, 1.0)


def alignment(first: Iterable[np.ndarray], second: Iterable[np.ndarray]) -> float:
    """Return the linear CKA of two g, given as blocks of the same rows (n × d₁ and n × d₂).

    ‖XᵀY‖² / (‖XᵀX‖ ‖YᵀY‖), which neither a rotation nor a scale of either changes; g is centred.
    1: tokens have the same products with each other; about d/V for matrices of nothing in common.
    """
    products = _sum(starmap(_products, zip(first, second, strict=True)))
    cross, own, other = (float(np.square(product).sum()) for product in products)
    return cross / np.sqrt(own * other)


def _products(x: np.ndarray, y: np.ndarray) -> list[np.ndarray]:
    if len(x) != len(y):
        raise ValueError(f"the blocks have {len(x)} and {len(y)} rows")
    return [x.T @ y, x.T @ x, y.T @ y]


def _sum(blocks: Iterable[list[np.ndarray]]) -> list[np.ndarray]:
    total: list[np.ndarray] = []
    for products in blocks:
        wide = [product.astype(np.float64) for product in products]
        total = [a + b for a, b in zip(total, wide, strict=True)] if total else wide
    return total


def compare_with_last(
    revisions: Sequence[str], causal: Sequence[Path], decompositions: Sequence[Path]
) -> list[Row]:
    """Return a row for each checkpoint, compared with the last of them."""
    last, last_vectors = TensorFile(causal[-1]), _eigenvectors(decompositions[-1])
    leading = min(LEADING, max(1, len(last_vectors) // 4))
    rows = []
    for revision, path, decomposition in zip(revisions, causal, decompositions, strict=True):
        own, vectors = TensorFile(path), _eigenvectors(decomposition)
        if own.tensor(G, 2).shape != last.tensor(G, 2).shape:
            raise UserError(
                f"{revision} has the shape {list(own.tensor(G, 2).shape)}, and {revisions[-1]} "
                f"{list(last.tensor(G, 2).shape)}: they cannot be compared. Make them two models."
            )
        cosines = principal_cosines(vectors, last_vectors, leading)
        rows.append(
            Row(
                revision,
                revisions[-1],
                alignment(own.blocks(G), last.blocks(G)),
                leading,
                float(np.square(cosines).mean()),
                leading / len(vectors),
            )
        )
    return rows


def _eigenvectors(decomposition: Path) -> np.ndarray:
    return TensorFile(decomposition).read("eigenvectors", 2)
