"""The eigensolvers that compete: all that the registry of backends lists."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from unembedding.backends import BACKENDS, Backend
from unembedding.errors import GeometryError

# By name: the backend that would use it, and the driver that it is made with.
SOLVERS: dict[str, tuple[str, str | None]] = {
    solver.name: (backend, driver)
    for backend, entry in BACKENDS.items()
    for driver, solver in entry.drivers.items()
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
            backend = BACKENDS[family].make(driver)
        except (GeometryError, ImportError) as error:
            absent[name] = str(error)
        else:
            present.append(Solver(name, (family, backend.device), driver, backend))
    return present, absent
