"""Matrices for the tests, and the straightforward version of the geometry to compare with."""

from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from unembedding.files import replacing
from unembedding.tensors.files import SAFETENSORS, TensorWriter

DTYPES = SAFETENSORS | {"float16": "F16"}


def write_gamma(path: Path, gamma: np.ndarray, dtype: str | None = None) -> Path:
    """Write γ as extraction does; ``dtype`` is its safetensors type where NumPy has none."""
    with replacing(path) as file:
        tensors = {"unembedding": (dtype or DTYPES[gamma.dtype.name], gamma.shape)}
        writer = TensorWriter(file, tensors, {"tensor": "lm_head.weight"})
        writer.write(gamma)
        writer.close()
    return path


def digest(*arrays: np.ndarray) -> str:
    import hashlib

    return hashlib.sha256(b"".join(np.ascontiguousarray(a).tobytes() for a in arrays)).hexdigest()


def with_spectrum(rows: int, eigenvalues: np.ndarray, seed: int = 0) -> np.ndarray:
    """Return a matrix (float64) whose covariance has exactly these eigenvalues.

    Columns of an orthonormal basis orthogonal to the vector of ones have mean 0 and covariance
    I / V; scaling and rotating them gives the spectrum.
    """
    rng = np.random.default_rng(seed)
    width = len(eigenvalues)
    basis = np.linalg.qr(np.c_[np.ones(rows), rng.standard_normal((rows, width))])[0][:, 1:]
    rotation = np.linalg.qr(rng.standard_normal((width, width)))[0]
    return np.sqrt(rows) * basis * np.sqrt(eigenvalues) @ rotation + rng.standard_normal(width)


def straightforward(gamma: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return eigenvalues, C^(−1/2) and g, from the definition, in float64."""
    centered = gamma.astype(np.float64) - gamma.astype(np.float64).mean(axis=0)
    eigenvalues, vectors = np.linalg.eigh(centered.T @ centered / len(gamma))
    inverse_sqrt = vectors @ np.diag(eigenvalues**-0.5) @ vectors.T
    return eigenvalues, inverse_sqrt, centered @ inverse_sqrt


__all__ = ["digest", "load_file", "straightforward", "with_spectrum", "write_gamma"]
