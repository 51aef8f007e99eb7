"""Where the arithmetic on matrices runs. A new backend is one new file and one row in the table.

A backend works on blocks of rows and keeps one d × d matrix at a time, so its memory depends on
the width d and not on the number of tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import numpy as np

from unembedding.errors import GeometryError

DeviceMatrix = Any  # a matrix where the backend computes; passed from gram to eigh or host


class Backend(Protocol):
    """Matrix arithmetic on one device."""

    name: str
    device: str
    """Processor or graphics card, as it calls itself."""

    def gram(
        self, blocks: Iterable[np.ndarray], shift: np.ndarray, precision: np.dtype
    ) -> DeviceMatrix:
        """Return Σ (x − shift)ᵀ(x − shift) over all rows x of ``blocks`` (d × d, float64).

        Products are formed in ``precision`` within a block and summed in float64 over blocks.
        Only the upper triangle is meaningful.
        """
        ...

    def eigh(self, symmetric: DeviceMatrix, precision: np.dtype) -> tuple[np.ndarray, np.ndarray]:
        """Return eigenvalues (d, ascending) and eigenvectors (d × d, columns) in ``precision``.

        Reads the upper triangle, and overwrites its argument.
        """
        ...

    def host(self, symmetric: DeviceMatrix) -> np.ndarray:
        """Return a result of ``gram`` as a NumPy array with both triangles; may overwrite it."""
        ...

    def scaled_outer(self, vectors: np.ndarray, scale: np.ndarray) -> np.ndarray:
        """Return S Sᵀ (d × d, float64) of S = vectors · diag(scale); overwrites ``vectors``."""
        ...

    def products(
        self, blocks: Iterable[np.ndarray], shift: np.ndarray, matrix: np.ndarray
    ) -> Iterator[np.ndarray]:
        """Yield (x − shift) · matrix (float32) for each block x; ``matrix`` is d × d float32."""
        ...


def _numpy() -> Backend:
    from unembedding.backends.numpy_backend import NumpyBackend

    return NumpyBackend()


def _torch() -> Backend:
    from unembedding.backends.torch_backend import TorchBackend

    return TorchBackend()


def _cupy() -> Backend:
    from unembedding.backends.cupy_backend import CupyBackend

    return CupyBackend()


BACKENDS: dict[str, Callable[[], Backend]] = {"numpy": _numpy, "torch": _torch, "cupy": _cupy}


def select_backend(name: str) -> tuple[Backend, str]:
    """Return a backend and why it was chosen; ``auto`` takes CuPy where a GPU answers.

    Raises GeometryError where a backend that was asked for by name cannot work here.
    """
    if name != "auto":
        return BACKENDS[name](), f"{name} was asked for"
    try:
        return _cupy(), "auto: a GPU answers through CuPy"
    except GeometryError as error:
        return _numpy(), f"auto: NumPy on the CPU, because {error}"
