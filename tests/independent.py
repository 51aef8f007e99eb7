"""The geometry in a few lines of NumPy, with nothing of the product in it."""

from pathlib import Path

import numpy as np
from safetensors.numpy import load_file


def causal(gamma: np.ndarray) -> np.ndarray:
    """Return g = (γ − μ) Q Λ^(−1/2) Qᵀ in float64."""
    centered = gamma.astype(np.float64) - gamma.mean(axis=0, dtype=np.float64)
    eigenvalues, q = np.linalg.eigh(centered.T @ centered / len(centered))
    return centered @ (q * eigenvalues**-0.5) @ q.T


def assert_geometry(results: Path, gamma: np.ndarray, atol: float = 1e-5) -> None:
    """Check the files of one revision against γ: the copy of it, its decomposition, and g."""
    mean, covariance = gamma.mean(0, dtype=np.float64), np.cov(gamma.T.astype(float), bias=True)
    decomposition = load_file(results / "decomposition.safetensors")
    q, eigenvalues = decomposition["eigenvectors"], decomposition["eigenvalues"]
    np.testing.assert_allclose(decomposition["mean"], mean, rtol=0, atol=1e-12)
    np.testing.assert_allclose(q * eigenvalues @ q.T, covariance, atol=1e-9 * eigenvalues[-1])
    assert (np.diff(eigenvalues) >= 0).all()
    written = load_file(results / "causal.safetensors")
    g, root = written["g"], written["inverse_sqrt_covariance"]
    assert g.dtype == np.float32
    expected = causal(gamma)
    np.testing.assert_allclose(g, expected, rtol=1e-4, atol=atol)
    moments = np.dot(g.T.astype(float), g) / len(g)
    np.testing.assert_allclose(moments, np.eye(gamma.shape[1]), atol=1e-5)
    np.testing.assert_allclose((gamma - mean) @ root, expected, rtol=1e-6, atol=1e-8)
