"""The log-log picture of time against length."""

from __future__ import annotations

from itertools import cycle
from typing import Any

from matplotlib.figure import Figure

LADDER = {  # and its colours
    "einsum": "#a6cee3",
    "loops": "#a6cee3",
    "fused": "#6baed6",
    "reordered": "#4292c6",
    "unrolled": "#2171b5",
    "vectorized": "#08519c",
    "parallel": "#08306b",
    "parallel, new output": "#54278f",
}
MARKERS = "os^DvP<X>*hpd8H"
OTHERS = ("#d55e00", "#e69f00", "#b8860b", "#8c510a", "#cc79a7", "#7a0177")
LIMITS = ("#000000", "#777777")


def plot_scaling(rows: list[dict[str, Any]]) -> Figure:
    """Median milliseconds against length, one line per variant, readable without colour:
    markers tell variants apart. The ladder darkens from step to step, the limits are dashed,
    attention is dotted, and what else one could run is in other colours."""
    figure = Figure(figsize=(9, 6), layout="constrained")
    axes = figure.subplots()
    points: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        if row.get("median_ms"):
            points.setdefault(row["variant"], []).append((row["length"], row["median_ms"]))
    others, limits = cycle(OTHERS), cycle(LIMITS)
    for (name, own), marker in zip(points.items(), cycle(MARKERS), strict=False):
        limit = name.startswith("limit")
        axes.plot(
            *zip(*own, strict=True),
            linestyle="--" if limit else ":" if name == "attention" else "-",
            linewidth=2.5 if name == "parallel" else 1.2,
            marker=marker,
            markersize=5,
            color=LADDER.get(name) or next(limits if limit else others),
            label=name,
        )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("length of the sequence")
    axes.set_ylabel("milliseconds, median")
    axes.set_title(_size(rows), fontsize="medium")
    if points:
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    return figure


def _size(rows: list[dict[str, Any]]) -> str:
    """What all rows have in common."""
    if not rows or "dim" not in rows[0]:
        return ""
    first, threads = rows[0], max(row["threads"] for row in rows)
    return (
        f"batch {first['batch']}, dim {first['dim']}, state {first['state']}, {first['dtype']}, "
        f"at most {threads} threads"
    )
