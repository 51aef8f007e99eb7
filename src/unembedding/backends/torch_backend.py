"""PyTorch, on a CUDA device where there is one and on the CPU otherwise."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from unembedding.backends.limits import require_lapack, require_memory
from unembedding.errors import GeometryError
from unembedding.machine import cpu_model

if TYPE_CHECKING:
    import torch


class TorchBackend:
    """torch.linalg on one device."""

    name = "torch"

    def __init__(self, kind: str | None = None) -> None:
        """``kind`` is ``cpu`` or ``cuda``; by default CUDA where there is a device."""
        try:
            import torch
        except ImportError as error:
            raise GeometryError(
                f"`backend: torch` needs PyTorch, which cannot be imported here ({error})."
            ) from None
        self.torch = torch
        if kind == "cuda" and not torch.cuda.is_available():
            raise GeometryError("PyTorch finds no CUDA device here.")
        self.target = torch.device(kind or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.on_gpu = self.target.type == "cuda"
        self.device = cpu_model()
        if self.on_gpu:
            name = torch.cuda.get_device_name(self.target)
            self.device = f"{name} (CUDA {torch.version.cuda})"

    def gram(
        self, blocks: Iterable[np.ndarray], shift: np.ndarray, precision: np.dtype
    ) -> torch.Tensor:
        self._require("gram", len(shift), precision)
        total = self.torch.zeros(
            (len(shift), len(shift)), dtype=self.torch.float64, device=self.target
        )
        for centered in self._centered(blocks, shift, precision):
            if centered.dtype == total.dtype:
                total.addmm_(centered.T, centered)
            else:
                total += centered.T @ centered
        return total

    def eigh(self, symmetric: torch.Tensor, precision: np.dtype) -> tuple[np.ndarray, np.ndarray]:
        self._require("eigh", len(symmetric), precision)
        values, vectors = self.torch.linalg.eigh(symmetric.to(self._dtype(precision)))
        return values.cpu().numpy(), vectors.cpu().numpy()

    def on_device(self, symmetric: np.ndarray) -> torch.Tensor:
        return self._to_device(np.array(symmetric, np.float64))

    def synchronize(self) -> None:
        if self.on_gpu:
            self.torch.cuda.synchronize(self.target)

    def host(self, symmetric: torch.Tensor) -> np.ndarray:
        return symmetric.cpu().numpy()

    def scaled_outer(self, vectors: np.ndarray, scale: np.ndarray) -> np.ndarray:
        self._require("scaled_outer", len(vectors))
        scaled = self._to_device(vectors).to(self.torch.float64) * self._to_device(scale)
        return (scaled @ scaled.T).cpu().numpy()

    def products(
        self, blocks: Iterable[np.ndarray], shift: np.ndarray, matrix: np.ndarray
    ) -> Iterator[np.ndarray]:
        self._require("products", len(matrix))
        right = self._to_device(matrix)
        for centered in self._centered(blocks, shift, np.dtype(np.float32)):
            yield (centered @ right).cpu().numpy()

    def _centered(
        self, blocks: Iterable[np.ndarray], shift: np.ndarray, precision: np.dtype
    ) -> Iterator[torch.Tensor]:
        origin = self._to_device(shift)
        for block in blocks:
            yield (self._to_device(block) - origin).to(self._dtype(precision))

    def _require(self, step: str, width: int, precision: np.dtype | None = None) -> None:
        """Raise GeometryError where a step cannot work, before anything is allocated."""
        if self.on_gpu:
            memory = self.torch.cuda
            cached = memory.memory_reserved(self.target) - memory.memory_allocated(self.target)
            free = memory.mem_get_info(self.target)[0] + cached
            require_memory(step, width, precision.itemsize if precision else 8, free, self.device)
        else:
            require_lapack(width)

    def _to_device(self, array: np.ndarray) -> torch.Tensor:
        return self.torch.from_numpy(np.ascontiguousarray(array)).to(self.target)

    def _dtype(self, precision: np.dtype) -> torch.dtype:
        return self.torch.float64 if precision == np.float64 else self.torch.float32
