"""Make `mamba_ssm` and `causal_conv1d` importable, so that other people's models run unchanged."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path

NAMES = Path(__file__).parent / "names"
PACKAGES = ("mamba_ssm", "causal_conv1d")


def provide() -> list[str]:
    """Put those of the two packages on the path that are not installed; return their names.

    To be called before the model's code, or transformers' modelling files, are imported: these look
    for the packages once. Their metadata are there too, for code that asks for a version.
    """
    absent = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if absent and str(NAMES) not in sys.path:
        sys.path.append(str(NAMES))  # last, so that an installed one comes first
        importlib.invalidate_caches()
    ours = {name: importlib.util.find_spec(name) for name in PACKAGES}
    return [n for n, spec in ours.items() if spec and str(spec.origin).startswith(str(NAMES))]
