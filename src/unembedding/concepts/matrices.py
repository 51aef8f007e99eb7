"""The three matrices of a checkpoint (Park et al. 2024, arXiv 2406.01506, section 5)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unembedding.concepts.categories import Categories


@dataclass(frozen=True)
class Matrices:
    """Three S × S matrices over the synsets in their order."""

    adjacency: np.ndarray
    """1 where one of two synsets is above the other, and on the diagonal (float32)."""
    cosine: np.ndarray
    """cos(ℓ_W, ℓ_Z) (float32)."""
    difference: np.ndarray
    """cos(ℓ_W − ℓ_parent(W), ℓ_Z − ℓ_parent(Z)) (float32); a root's row is of ℓ itself."""


def three_matrices(vectors: np.ndarray, categories: Categories) -> Matrices:
    """Return the matrices of directions ℓ (S × d); NaN in the rows of directions that are zero."""
    adjacency = categories.closure()
    np.fill_diagonal(adjacency, True)
    return Matrices(
        adjacency.astype(np.float32),
        cosines(vectors).astype(np.float32),
        cosines(differences(vectors, categories.parent)).astype(np.float32),
    )


def differences(vectors: np.ndarray, parent: np.ndarray) -> np.ndarray:
    """Return ℓ_W − ℓ_parent(W) (S × d), and ℓ_W itself of a root."""
    return vectors - np.where(parent[:, None] < 0, 0.0, vectors[parent])


def cosines(left: np.ndarray, right: np.ndarray | None = None) -> np.ndarray:
    """Return the cosines of rows (n × d) with rows (m × d, or the same ones); NaN of a zero row."""
    unit = _unit(left)
    return unit @ (unit if right is None else _unit(right)).T


def _unit(vectors: np.ndarray) -> np.ndarray:
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(norms > 0, norms, np.nan)
