"""Make docs/api.md from the docstrings: run with PYTHONPATH=src:packages/mamba-cpu/src."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from typing import Any

# In the order in which a notebook would use them.
MODULES = {
    "unembedding.extraction": ("open_source", "extract_unembedding", "read_unembedding"),
    "unembedding.backends": ("select_backend",),
    "unembedding.covariance": ("decompose",),
    "unembedding.spectrum": ("spectrum",),
    "unembedding.transform": ("transform",),
    "unembedding.whitening": ("Probes", "whitening_residual"),
    "unembedding.revision": ("open", "Revision"),
    "unembedding.agreement": ("principal_cosines", "alignment"),
    "unembedding.concepts.vocabulary": ("read_vocabulary", "read_tokens"),
    "unembedding.concepts.neighbours": ("neighbours", "nearest"),
    "unembedding.concepts.categories": ("find_categories",),
    "unembedding.concepts.directions": ("find_directions",),
    "unembedding.concepts.matrices": ("three_matrices",),
    "unembedding.concepts.measuring": ("measure",),
    "unembedding.records.stages": ("Extraction", "Decomposition", "Spectrum", "Transformation"),
    "unembedding.records.geometry": ("read_geometry", "Geometry"),
    "unembedding.tensors.files": ("TensorFile",),
    "mamba_cpu": ("accelerate", "selective_scan_fn", "load_kernel"),
    "mamba_cpu.ops": (
        "causal_conv1d",
        "ssd_scan",
        "selective_state_update",
        "causal_conv1d_update",
    ),
}


def _signature(name: str, found: Any) -> str:
    quoted = str(inspect.signature(found))  # annotations, as `from __future__` leaves them
    plain = re.sub(r"<function (\w+) at \w+>", r"\1", quoted)
    return name + re.sub(r"(: |-> )'([^']*)'", r"\1\2", plain)


def page() -> str:
    """Return the page, as Markdown."""
    lines = ["# API", "", "Made from the docstrings by `docs/api.py`.", ""]
    for name, members in MODULES.items():
        module = importlib.import_module(name)
        lines += [f"## {name}", "", inspect.getdoc(module) or "", ""]
        for member in members:
            found = getattr(module, member)
            lines += [f"### {member}", "", "```python", _signature(member, found), "```"]
            lines += ["", inspect.getdoc(found) or "", ""]
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    Path(__file__).with_suffix(".md").write_text(page(), encoding="utf-8")
