"""PyTorch, on a CUDA device where there is one and on the CPU otherwise."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from machine import cpu_model
from unembedding.errors import GeometryError

if TYPE_CHECKING:
    import torch


class TorchBackend:
    """torch.linalg on one device."""

    name = "torch"

    def __init__(self) -> None:
        try:
            import torch
        except ImportError as error:
            raise GeometryError(
                f"`backend: torch` needs PyTorch, which cannot be imported here ({error})."
            ) from None
        self.torch = torch
        self.target = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        on_gpu = self.target.type == "cuda"
        self.device = torch.cuda.get_device_name(self.target) if on_gpu else cpu_model()

    def gram(
        self, blocks: Iterable[np.ndarray], shift: np.ndarray, precision: np.dtype
    ) -> torch.Tensor:
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
        values, vectors = self.torch.linalg.eigh(symmetric.to(self._dtype(precision)))
        return values.cpu().numpy(), vectors.cpu().numpy()

    def host(self, symmetric: torch.Tensor) -> np.ndarray:
        return symmetric.cpu().numpy()

    def scaled_outer(self, vectors: np.ndarray, scale: np.ndarray) -> np.ndarray:
        scaled = self._to_device(vectors).to(self.torch.float64) * self._to_device(scale)
        return (scaled @ scaled.T).cpu().numpy()

    def products(
        self, blocks: Iterable[np.ndarray], shift: np.ndarray, matrix: np.ndarray
    ) -> Iterator[np.ndarray]:
        right = self._to_device(matrix)
        for centered in self._centered(blocks, shift, np.dtype(np.float32)):
            yield (centered @ right).cpu().numpy()

    def _centered(
        self, blocks: Iterable[np.ndarray], shift: np.ndarray, precision: np.dtype
    ) -> Iterator[torch.Tensor]:
        origin = self._to_device(shift)
        for block in blocks:
            yield (self._to_device(block) - origin).to(self._dtype(precision))

    def _to_device(self, array: np.ndarray) -> torch.Tensor:
        return self.torch.from_numpy(np.ascontiguousarray(array)).to(self.target)

    def _dtype(self, precision: np.dtype) -> torch.dtype:
        return self.torch.float64 if precision == np.float64 else self.torch.float32
