"""Where the arithmetic on matrices runs. A new backend is one new file and one row in the table.

A backend works on blocks of rows and keeps one d × d matrix at a time, so its memory depends on
the width d and not on the number of tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from unembedding.backends.choice import measured_choice
from unembedding.errors import GeometryError

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


def _numpy(driver: str | None = None) -> Backend:
    from unembedding.backends.numpy_backend import NumpyBackend

    return NumpyBackend(driver or "evd")


def _torch(driver: str | None = None) -> Backend:
    from unembedding.backends.torch_backend import TorchBackend

    return TorchBackend(driver)


def _cupy(driver: str | None = None) -> Backend:
    from unembedding.backends.cupy_backend import CupyBackend

    return CupyBackend()


# By name, each a function of its driver: what decomposes, or on which kind of device.
BACKENDS: dict[str, Callable[[str | None], Backend]] = {
    "numpy": _numpy,
    "torch": _torch,
    "cupy": _cupy,
}


def select_backend(
    name: str,
    choice: Path | None = None,
    width: int | None = None,
    precision: str = "float64",
) -> tuple[Backend, str]:
    """Return a backend and why it was chosen.

    ``auto`` takes what the comparison in ``choice`` found fastest for matrices of this width and
    precision on this machine. Without one it takes CuPy where a GPU answers, and otherwise NumPy
    with the driver that the repository's own benchmark found fastest.
    Raises GeometryError where a backend that was asked for by name cannot work here.
    """
    if name != "auto":
        return BACKENDS[name](None), f"{name} was asked for"
    reasons = []
    if choice is not None and width is not None:
        measured, reason = measured_choice(choice, width, precision)
        reasons.append(reason)
        if measured is not None:
            try:
                return BACKENDS[measured["backend"]](measured["driver"]), f"auto: {reason}"
            except GeometryError as error:
                reasons.append(f"but {error}")
    try:
        backend, rule = _cupy(), "a GPU answers through CuPy"
    except GeometryError as error:
        backend, rule = _numpy(), f"NumPy on the CPU, because {error}"
    return backend, "auto: " + "; ".join([*reasons, rule])
