"""CuPy on an NVIDIA GPU."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from unembedding.errors import GeometryError

if TYPE_CHECKING:
    import cupy


class CupyBackend:
    """cuBLAS and cuSOLVER on the first visible device."""

    name = "cupy"

    def __init__(self) -> None:
        try:
            import cupy
        except ImportError:
            raise GeometryError("CuPy is not installed (`pip install cupy-cuda12x`).") from None
        try:
            found = cupy.cuda.runtime.getDeviceCount()
        except Exception as error:  # CuPy raises its own type, and others where no driver is found
            raise GeometryError(f"CuPy finds no GPU here ({error}).") from None
        if not found:
            raise GeometryError("CuPy finds no GPU here.")
        self.cupy = cupy
        name = cupy.cuda.runtime.getDeviceProperties(0)["name"]
        self.device = name.decode() if isinstance(name, bytes) else str(name)

    def gram(
        self, blocks: Iterable[np.ndarray], shift: np.ndarray, precision: np.dtype
    ) -> cupy.ndarray:
        total = self.cupy.zeros((len(shift), len(shift)))
        for centered in self._centered(blocks, shift, precision):
            total += centered.T @ centered
        return total

    def eigh(self, symmetric: cupy.ndarray, precision: np.dtype) -> tuple[np.ndarray, np.ndarray]:
        values, vectors = self.cupy.linalg.eigh(symmetric.astype(precision, copy=False))
        return self.cupy.asnumpy(values), self.cupy.asnumpy(vectors)

    def host(self, symmetric: cupy.ndarray) -> np.ndarray:
        return self.cupy.asnumpy(symmetric)

    def scaled_outer(self, vectors: np.ndarray, scale: np.ndarray) -> np.ndarray:
        scaled = self.cupy.asarray(vectors, dtype=np.float64) * self.cupy.asarray(scale)
        return self.cupy.asnumpy(scaled @ scaled.T)

    def products(
        self, blocks: Iterable[np.ndarray], shift: np.ndarray, matrix: np.ndarray
    ) -> Iterator[np.ndarray]:
        right = self.cupy.asarray(matrix)
        for centered in self._centered(blocks, shift, np.dtype(np.float32)):
            yield self.cupy.asnumpy(centered @ right)

    def _centered(
        self, blocks: Iterable[np.ndarray], shift: np.ndarray, precision: np.dtype
    ) -> Iterator[cupy.ndarray]:
        origin = self.cupy.asarray(shift)
        for block in blocks:
            yield (self.cupy.asarray(block) - origin).astype(precision, copy=False)
