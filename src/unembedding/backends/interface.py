"""What a backend can do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np

DeviceMatrix = Any  # a matrix where the backend computes; passed from gram to eigh or host


class Backend(Protocol):
    """Matrix arithmetic on one device."""

    name: str
    device: str
    """Processor, or graphics card with its version of CUDA, as it calls itself."""

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

    def on_device(self, symmetric: np.ndarray) -> DeviceMatrix:
        """Return a copy of a matrix (d × d, float64) as ``gram`` would return it."""
        ...

    def synchronize(self) -> None:
        """Wait until all that was begun is done, so that a clock can be read."""
        ...

    def host(self, symmetric: DeviceMatrix) -> np.ndarray:
        """Return a result of ``gram`` as a NumPy array with both triangles; may overwrite it."""
        ...

    def scaled_outer(self, vectors: np.ndarray, scale: np.ndarray) -> np.ndarray:
        """Return S Sᵀ (d × d) of S = vectors · diag(scale), in the precision of ``vectors`` or
        float64; overwrites ``vectors``.
        """
        ...

    def products(
        self, blocks: Iterable[np.ndarray], shift: np.ndarray, matrix: np.ndarray
    ) -> Iterator[np.ndarray]:
        """Yield (x − shift) · matrix (float32) for each block x; ``matrix`` is d × d float32."""
        ...
