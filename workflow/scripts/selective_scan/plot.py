"""The log-log picture of time against length."""

from __future__ import annotations

from itertools import cycle
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from plotting import save

LIMIT, ATTENTION = "limit", "attention"
MARKERS = "osv^D<>PX*hpd"
COLOURS = ("#000000", "#555555", "#0072b2", "#d55e00", "#009e73", "#cc79a7")


def plot_scaling(rows: list[dict[str, Any]], path: Path) -> None:
    """Median milliseconds against length as SVG, one line per variant, readable without colour:
    markers tell variants apart, dashes the limits, dots attention."""
    figure = Figure(figsize=(9, 6), layout="constrained")
    axes = figure.subplots()
    points: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        if row.get("median_ms"):
            points.setdefault(row["variant"], []).append((row["length"], row["median_ms"]))
    for (name, own), marker, colour in zip(
        points.items(), cycle(MARKERS), cycle(COLOURS), strict=False
    ):
        axes.plot(
            *zip(*own, strict=True),
            linestyle="--" if name.startswith(LIMIT) else ":" if name == ATTENTION else "-",
            linewidth=2.5 if name == "parallel" else 1.2,
            marker=marker,
            markersize=5,
            color=colour,
            label=name,
        )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("length of the sequence")
    axes.set_ylabel("milliseconds, median")
    if points:
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    save(figure, path)
