"""What is decomposed: a matrix with the spectrum of a trained unembedding, or a real one."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from unembedding.backends.numpy_backend import NumpyBackend
from unembedding.covariance import mean_and_covariance, rows_used
from unembedding.extraction import UNEMBEDDING
from unembedding.files import replacing
from unembedding.stopwatch import Stopwatch
from unembedding.tensors.files import TensorFile, TensorWriter

CONDITION = 1e4


def power_law(size: int, condition: float) -> np.ndarray:
    """Return eigenvalues i^(−α) (size, descending) whose first is ``condition`` times the last."""
    if size == 1:
        return np.ones(1)
    return np.arange(1, size + 1) ** (-np.log(condition) / np.log(size))


def covariance(size: int, condition: float = CONDITION) -> np.ndarray:
    """Return a symmetric matrix (size × size, float64) with a power-law spectrum."""
    rng = np.random.default_rng(size)
    rotation = np.linalg.qr(rng.standard_normal((size, size)))[0]
    rotation *= np.sqrt(power_law(size, condition))
    return rotation @ rotation.T


def write_unembedding(path: Path, rows: int, width: int, condition: float = CONDITION) -> None:
    """Write a random matrix (rows × width, float32) whose covariance has a power-law spectrum."""
    rng = np.random.default_rng(0)
    scale = np.sqrt(power_law(width, condition)).astype(np.float32)
    rotation = np.linalg.qr(rng.standard_normal((width, width), dtype=np.float32))[0]
    mixing = scale[:, None] * rotation
    mean = 0.1 * rng.standard_normal(width, dtype=np.float32)
    with replacing(path) as file:
        writer = TensorWriter(file, {UNEMBEDDING: ("F32", (rows, width))}, {})
        for first in range(0, rows, 4096):
            count = min(4096, rows - first)
            writer.write(rng.standard_normal((count, width), dtype=np.float32) @ mixing + mean)
        writer.close()


def covariance_of(unembedding: Path, rows: int | None) -> np.ndarray:
    """Return the covariance (d × d, float64) of the first ``rows`` rows of a real γ."""
    gamma = TensorFile(unembedding)
    used = rows_used(gamma.tensor(UNEMBEDDING, 2).shape[0], rows, unembedding)
    numpy, dtype = NumpyBackend(), np.dtype(np.float64)
    return numpy.host(mean_and_covariance(gamma, used, numpy, dtype, Stopwatch())[1])
