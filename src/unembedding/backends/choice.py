"""Which backend computes: the one asked for, or for ``auto`` what was found fastest here."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from unembedding.backends.interface import Backend
from unembedding.backends.registry import BACKENDS
from unembedding.errors import GeometryError, UserError
from unembedding.files import read_json_file
from unembedding.machine import fingerprint

NEAR = 2  # what was measured at one width is believed up to this factor above and below it


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
        return BACKENDS[name].make(None), f"{name} was asked for"
    reasons = []
    if choice is not None and width is not None:
        measured, reason = measured_choice(choice, width, precision)
        reasons.append(reason)
        if measured is not None:
            try:
                return BACKENDS[measured["backend"]].make(measured["driver"]), f"auto: {reason}"
            except GeometryError as error:
                reasons.append(f"but {error}")
    try:
        backend, rule = BACKENDS["cupy"].make(None), "a GPU answers through CuPy"
    except GeometryError as error:
        backend, rule = BACKENDS["numpy"].make(None), f"NumPy on the CPU, because {error}"
    return backend, "auto: " + "; ".join([*reasons, rule])


def measured_choice(path: Path, width: int, precision: str) -> tuple[dict[str, Any] | None, str]:
    """Return the entry of ``choice.json`` for a width, with ``backend``, ``driver`` and ``reason``.

    Where there is none that holds here, the entry is None, and the second value says why.
    """
    if not path.is_file():
        return None, f"there is no comparison ({path})"
    try:
        content = read_json_file(path)
        if content["machine"] != fingerprint():
            return None, f"{path} was measured on another machine"
        choices = [c for c in content["choices"] if c["precision"] == precision]
        nearest = min(choices, key=lambda c: abs(math.log(c["size"] / width)), default=None)
        if nearest is None or not 1 / NEAR <= nearest["size"] / width <= NEAR:
            return None, f"{path} measured nothing near a width of {width} in {precision}"
        backend, driver = nearest["backend"], nearest["driver"]
        # A file by hand or of another version may have others.
        if backend not in BACKENDS or driver not in BACKENDS[backend].drivers:
            return None, f"{path} chose {backend!r} with {driver!r}, which is unknown here"
        return nearest, f"{nearest['reason']} ({path})"
    except (UserError, LookupError, TypeError, ValueError) as error:
        return None, f"{path} cannot be used ({error})"
