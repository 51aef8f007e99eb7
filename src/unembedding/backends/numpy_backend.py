"""NumPy and SciPy on the CPU.

BLAS and LAPACK are called through SciPy where NumPy has no equal: syrk forms half of a symmetric
product, and LAPACK's drivers work in place and in the precision asked for, where numpy.linalg
computes float32 in float64 (docs/benchmarks.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from scipy.linalg import blas, eigh

from unembedding.backends.limits import require_lapack
from unembedding.machine import cpu_model

TILE = 64  # columns of a matrix that are worked on at once
SUMMED = 8  # blocks whose products are summed in float32, before they are in float64


class NumpyBackend:
    """All cores that BLAS was given."""

    name = "numpy"

    def __init__(self, driver: str = "evd") -> None:
        """``driver`` is one of LAPACK's through SciPy (evd, evr, evx), or ``numpy`` for its own."""
        self.driver = driver
        self.device = cpu_model()

    def gram(
        self, blocks: Iterable[np.ndarray], shift: np.ndarray, precision: np.dtype
    ) -> np.ndarray:
        require_lapack(len(shift))  # before the work of which nothing could come
        total = np.zeros((len(shift), len(shift)), order="F")
        if precision == np.float64:
            for centered in _centered(blocks, shift, precision):
                blas.dsyrk(1.0, centered.T, beta=1.0, c=total, overwrite_c=True)
            return total
        part = np.zeros(total.shape, precision, order="F")
        for number, centered in enumerate(_centered(blocks, shift, precision)):
            first = number % SUMMED == 0
            if first and number:
                _add_upper_triangle(part, total)
            blas.ssyrk(1.0, centered.T, beta=0.0 if first else 1.0, c=part, overwrite_c=True)
        _add_upper_triangle(part, total)
        return total

    def eigh(self, symmetric: np.ndarray, precision: np.dtype) -> tuple[np.ndarray, np.ndarray]:
        require_lapack(len(symmetric))
        if self.driver == "numpy":
            return np.linalg.eigh(symmetric.astype(precision, copy=False), UPLO="U")
        matrix = np.asfortranarray(symmetric, precision)
        return eigh(matrix, lower=False, driver=self.driver, overwrite_a=True, check_finite=False)

    def on_device(self, symmetric: np.ndarray) -> np.ndarray:
        return np.array(symmetric, np.float64, order="F")

    def synchronize(self) -> None:
        pass  # a call returns when it is done

    def host(self, symmetric: np.ndarray) -> np.ndarray:
        for first in range(0, len(symmetric), TILE):
            tile = slice(first, first + TILE)
            symmetric[tile, :first] = symmetric[:first, tile].T
            upper = np.triu(symmetric[tile, tile])
            symmetric[tile, tile] = upper + np.triu(upper, 1).T
        return symmetric

    def scaled_outer(self, vectors: np.ndarray, scale: np.ndarray) -> np.ndarray:
        vectors *= scale
        syrk = blas.dsyrk if vectors.dtype == np.float64 else blas.ssyrk
        return self.host(syrk(1.0, vectors.T, trans=1))

    def products(
        self, blocks: Iterable[np.ndarray], shift: np.ndarray, matrix: np.ndarray
    ) -> Iterator[np.ndarray]:
        for centered in _centered(blocks, shift, np.dtype(np.float32)):
            yield centered @ matrix


def _add_upper_triangle(part: np.ndarray, total: np.ndarray) -> None:
    for first in range(0, len(total), TILE):
        columns = slice(first, first + TILE)
        total[: first + TILE, columns] += part[: first + TILE, columns]


def _centered(
    blocks: Iterable[np.ndarray], shift: np.ndarray, dtype: np.dtype
) -> Iterator[np.ndarray]:
    """Yield x − shift, subtracted in float64, in one buffer that the next block reuses."""
    buffer = np.empty((0, len(shift)), dtype)
    shifted = shift.any()
    for block in blocks:
        if not shifted and block.dtype == dtype:
            yield block
            continue
        if len(buffer) < len(block):
            buffer = np.empty(block.shape, dtype)
        yield np.subtract(block, shift, out=buffer[: len(block)], casting="same_kind")
