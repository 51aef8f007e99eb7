"""The backend that this machine's comparison found fastest, as ``auto`` reads it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from unembedding.errors import UserError
from unembedding.files import read_json_file
from unembedding.machine import fingerprint

# Of each backend the drivers it knows; a file by hand or of another version may have others.
KNOWN: dict[str, tuple[str | None, ...]] = {
    "numpy": ("numpy", "evd", "evr", "evx"),
    "torch": ("cpu", "cuda"),
    "cupy": (None,),
}
NEAR = 2  # what was measured at one width is believed up to this factor above and below it


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
        if driver not in KNOWN.get(backend, ()):
            return None, f"{path} chose {backend!r} with {driver!r}, which is unknown here"
        return nearest, f"{nearest['reason']} ({path})"
    except (UserError, LookupError, TypeError, ValueError) as error:
        return None, f"{path} cannot be used ({error})"
