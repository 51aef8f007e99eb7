"""How every plot looks: readable without colour, and the same file from the same data."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from unembedding.files import write_text
from unembedding.records.geometry import Geometry

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


def shown(name: str) -> str:
    """Return a name as matplotlib shows it: dollars are no formula, and `_` hides no line."""
    return ("\N{ZERO WIDTH SPACE}" if name.startswith("_") else "") + name.replace("$", r"\$")


def over_training(
    axes: Axes, geometries: Sequence[Geometry], values: Sequence[float], style: str, **look: Any
) -> None:
    """Draw values of the checkpoints whose step is known by step; of all by name, where none is."""
    known = [(g.training, value) for g, value in zip(geometries, values, strict=True) if g.training]
    if known:
        known.sort(key=lambda pair: (pair[0].stage, pair[0].step))
        steps = [training.step for training, _ in known]
        axes.set_xscale("symlog", linthresh=min((s for s in steps if s), default=1))
        axes.set_xlabel("training step", fontsize=8)
        axes.plot(steps, [value for _, value in known], style, **look)
        return
    axes.plot(range(len(values)), values, style, **look)
    names = [shown(g.revision) for g in geometries]
    axes.set_xticks(range(len(values)), names, rotation=30, ha="right", fontsize=7)
