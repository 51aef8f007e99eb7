"""The backends and their eigensolvers: a new one is a row here, and a file beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from unembedding.backends.interface import Backend


@dataclass(frozen=True)
class Solver:
    """How tables and plots show an eigensolver."""

    name: str
    grey: str
    marker: str
    line: str


@dataclass(frozen=True)
class Entry:
    """A backend."""

    make: Callable[[str | None], Backend]
    """Return it with a driver, None for its default; raises GeometryError where it cannot work."""
    environment: str
    """The file of envs/ that has what it imports."""
    drivers: Mapping[str | None, Solver]
    """What decomposes, or on which kind of device."""
    on_gpu: bool = False
    """Whether it may compute on one."""


def _numpy(driver: str | None) -> Backend:
    from unembedding.backends.numpy_backend import NumpyBackend

    return NumpyBackend(driver or "evd")


def _torch(driver: str | None) -> Backend:
    from unembedding.backends.torch_backend import TorchBackend

    return TorchBackend(driver)


def _cupy(_driver: str | None) -> Backend:
    from unembedding.backends.cupy_backend import CupyBackend

    return CupyBackend()


BACKENDS: dict[str, Entry] = {
    "numpy": Entry(
        _numpy,
        "geometry",
        {
            "numpy": Solver("numpy", "0.55", "x", "-"),
            "evd": Solver("scipy evd", "0", "o", "-"),
            "evr": Solver("scipy evr", "0.3", "s", "--"),
            "evx": Solver("scipy evx", "0.7", "^", ":"),
        },
    ),
    "torch": Entry(
        _torch,
        "torch",
        {
            "cpu": Solver("torch cpu", "0.45", "D", "-."),
            "cuda": Solver("torch cuda", "0.15", "v", "--"),
        },
        on_gpu=True,
    ),
    "cupy": Entry(_cupy, "cupy", {None: Solver("cupy", "0", "*", ":")}, on_gpu=True),
}
