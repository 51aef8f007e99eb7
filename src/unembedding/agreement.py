"""How alike two checkpoints of one model are.

Two questions that the eigendecomposition and g answer: whether the leading directions of γ's
covariance have turned (principal angles, Björck & Golub 1973), and whether tokens lie alike among
each other (linear centred kernel alignment, Kornblith et al. 2019, equation 5 on g).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import starmap

import numpy as np

from unembedding.errors import UserError
from unembedding.results import RevisionResults
from unembedding.revision import Revision
from unembedding.tensors.files import TensorFile

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
    if not 0 < count <= min(first.shape[1], second.shape[1]):
        raise ValueError(f"there are no {count} leading eigenvectors")
    product = first[:, -count:].T @ second[:, -count:]
    return np.clip(np.linalg.svd(product, compute_uv=False), 0.0, 1.0)


def alignment(
    first: np.ndarray | Iterable[np.ndarray], second: np.ndarray | Iterable[np.ndarray]
) -> float:
    """Return the linear CKA of two g (V × d₁ and V × d₂), each whole or as blocks of the same rows.

    ‖XᵀY‖² / (‖XᵀX‖ ‖YᵀY‖), which neither a rotation nor a scale of either changes; g is centred.
    1: tokens have the same products with each other; about d/V for matrices of nothing in common.
    """
    pairs = zip(*map(_blocks, (first, second)), strict=True)
    products = _sum(starmap(_products, pairs))
    if not products:
        raise ValueError("there are no rows to compare")
    cross, own, other = (float(np.square(product).sum()) for product in products)
    return cross / np.sqrt(own * other)


def _blocks(g: np.ndarray | Iterable[np.ndarray]) -> Iterable[np.ndarray]:
    blocks = [g] if isinstance(g, np.ndarray) else g
    return (b if b.dtype == np.float32 else b.astype(np.float64, copy=False) for b in blocks)


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


def compare_with_last(revisions: Sequence[RevisionResults]) -> list[Row]:
    """Return a row for each checkpoint, compared with the last of them."""
    last, last_vectors = Revision(revisions[-1]), _eigenvectors(revisions[-1])
    leading = min(LEADING, max(1, len(last_vectors) // 4))
    rows = []
    for results in revisions:
        own, vectors = Revision(results), _eigenvectors(results)
        if own.shape != last.shape:
            raise UserError(
                f"{results.folder.name} has the shape {list(own.shape)}, and "
                f"{revisions[-1].folder.name} {list(last.shape)}: they cannot be compared. Make "
                "them two models."
            )
        cosines = principal_cosines(vectors, last_vectors, leading)
        rows.append(
            Row(
                results.folder.name,
                revisions[-1].folder.name,
                alignment(own.blocks(), last.blocks()),
                leading,
                float(np.square(cosines).mean()),
                leading / len(vectors),
            )
        )
    return rows


def _eigenvectors(results: RevisionResults) -> np.ndarray:
    return TensorFile(results.decomposition).read("eigenvectors", 2)
