"""The unembedding matrix γ of a language model, and its causal geometry.

Data flows one way: a checkpoint (``sources``, ``formats``, ``layouts``) gives γ (``extraction``),
γ gives the eigendecomposition of its covariance (``decomposition``), and both give the causally
transformed matrix g (``transform``). Arithmetic on matrices lives in ``backends``.

Nothing here imports Snakemake, but for ``unembedding.workflow``; the rest works in a notebook.
"""

from __future__ import annotations

import importlib
import logging
from typing import Any

_HOMES = {
    "neighbours": "unembedding.concepts.neighbours",
    "open": "unembedding.revision",
    "read_unembedding": "unembedding.extraction",
}
__all__ = sorted(_HOMES)

logging.getLogger(__name__).addHandler(logging.NullHandler())  # silent, unless someone listens


def __getattr__(name: str) -> Any:
    """Import what a notebook wants when it is asked for: the Snakefile needs none of it."""
    if name in _HOMES:
        # By its name: an import statement would be in the digest of every script's code.
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
