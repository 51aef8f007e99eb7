"""CuPy on an NVIDIA GPU."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from unembedding.backends.limits import require_memory
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
            raise GeometryError(
                "CuPy is not installed (`pip install cupy-cuda12x`, or cupy-cuda13x for CUDA 13)."
            ) from None
        try:
            found = cupy.cuda.runtime.getDeviceCount()
        except Exception as error:  # CuPy raises its own type, and others where no driver is found
            raise GeometryError(f"CuPy finds no GPU here ({error}).") from None
        if not found:
            raise GeometryError("CuPy finds no GPU here.")
        self.cupy = cupy
        name = cupy.cuda.runtime.getDeviceProperties(0)["name"]
        driver = cupy.cuda.runtime.driverGetVersion()  # 12040 is 12.4
        self.device = (
            f"{name.decode() if isinstance(name, bytes) else name} "
            f"(CUDA driver {driver // 1000}.{driver % 1000 // 10})"
        )

    def gram(
        self, blocks: Iterable[np.ndarray], shift: np.ndarray, precision: np.dtype
    ) -> cupy.ndarray:
        self._require("gram", len(shift), precision)
        total = self.cupy.zeros((len(shift), len(shift)))
        for centered in self._centered(blocks, shift, precision):
            total += centered.T @ centered
        return total

    def eigh(self, symmetric: cupy.ndarray, precision: np.dtype) -> tuple[np.ndarray, np.ndarray]:
        self._require("eigh", len(symmetric), precision)
        values, vectors = self.cupy.linalg.eigh(symmetric.astype(precision, copy=False))
        return self.cupy.asnumpy(values), self.cupy.asnumpy(vectors)

    def on_device(self, symmetric: np.ndarray) -> cupy.ndarray:
        return self.cupy.asarray(symmetric, dtype=np.float64)

    def synchronize(self) -> None:
        self.cupy.cuda.runtime.deviceSynchronize()

    def host(self, symmetric: cupy.ndarray) -> np.ndarray:
        return self.cupy.asnumpy(symmetric)

    def scaled_outer(self, vectors: np.ndarray, scale: np.ndarray) -> np.ndarray:
        self._require("scaled_outer", len(vectors))
        scaled = self.cupy.asarray(vectors, dtype=np.float64) * self.cupy.asarray(scale)
        return self.cupy.asnumpy(scaled @ scaled.T)

    def products(
        self, blocks: Iterable[np.ndarray], shift: np.ndarray, matrix: np.ndarray
    ) -> Iterator[np.ndarray]:
        self._require("products", len(matrix))
        right = self.cupy.asarray(matrix)
        for centered in self._centered(blocks, shift, np.dtype(np.float32)):
            yield self.cupy.asnumpy(centered @ right)

    def _centered(
        self, blocks: Iterable[np.ndarray], shift: np.ndarray, precision: np.dtype
    ) -> Iterator[cupy.ndarray]:
        origin = self.cupy.asarray(shift)
        for block in blocks:
            yield (self.cupy.asarray(block) - origin).astype(precision, copy=False)

    def _require(self, step: str, width: int, precision: np.dtype | None = None) -> None:
        """Raise GeometryError where a step would not fit, before anything is allocated."""
        cached = self.cupy.get_default_memory_pool().free_bytes()
        free = self.cupy.cuda.runtime.memGetInfo()[0] + cached
        require_memory(step, width, precision.itemsize if precision else 8, free, self.device)
