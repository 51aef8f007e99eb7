"""The eigensolvers that compete. A new one is a row."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from unembedding.backends import BACKENDS, Backend
from unembedding.errors import GeometryError

# Name: the backend that would use it, and the driver that it is made with.
SOLVERS: dict[str, tuple[str, str | None]] = {
    "numpy": ("numpy", "numpy"),
    "scipy evd": ("numpy", "evd"),
    "scipy evr": ("numpy", "evr"),
    "scipy evx": ("numpy", "evx"),
    "torch cpu": ("torch", "cpu"),
    "torch cuda": ("torch", "cuda"),
    "cupy": ("cupy", None),
}


@dataclass(frozen=True)
class Solver:
    """One that works here."""

    name: str
    family: tuple[str, str]
    """Backend and device: solvers of one family differ in nothing but eigh."""
    driver: str | None
    backend: Backend


def solvers_here(names: Iterable[str] = SOLVERS) -> tuple[list[Solver], dict[str, str]]:
    """Return the solvers that work here, and of each of the others why it does not."""
    present, absent = [], {}
    for name in names:
        family, driver = SOLVERS[name]
        try:
            backend = BACKENDS[family](driver)
        except (GeometryError, ImportError) as error:
            absent[name] = str(error)
        else:
            present.append(Solver(name, (family, backend.device), driver, backend))
    return present, absent
