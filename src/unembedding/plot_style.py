"""How every plot looks: readable without colour, and the same file from the same data."""

from __future__ import annotations

import io
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from unembedding.files import write_text

matplotlib.use("svg")
matplotlib.rcParams.update(
    {
        "svg.hashsalt": "unembedding",  # the same data give the same file
        "svg.fonttype": "none",
        "font.size": 10,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.alpha": 0.3,
    }
)


def save(figure: Figure, target: Path) -> None:
    """Write a figure as SVG, whole or not at all."""
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    write_text(target, text.getvalue())
