"""The log-log picture of time against length."""

from __future__ import annotations

from itertools import cycle
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

PANELS = {  # at most eight curves in each; the table has more
    "what one could run": (
        "loops",
        "einsum",
        "torch.compile",
        "associative_scan",
        "transformers",
        "mambapy",
        "attention",
        "parallel",
    ),
    "how the kernel became fast, one step after the other": (
        "einsum",
        "fused",
        "reordered",
        "unrolled",
        "vectorized",
        "parallel",
        "limit: exponentials",
        "limit: memory",
    ),
}
COLOURS = {  # the ladder darkens from step to step
    "einsum": "#a6cee3",
    "fused": "#6baed6",
    "reordered": "#4292c6",
    "unrolled": "#2171b5",
    "vectorized": "#08519c",
    "parallel": "#08306b",
    "limit: exponentials": "#000000",
    "limit: memory": "#777777",
}
OTHERS = ("#d55e00", "#e69f00", "#b8860b", "#8c510a", "#cc79a7", "#7a0177")
MARKERS = "os^DvP<X"


def plot_scaling(rows: list[dict[str, Any]]) -> Figure:
    """Milliseconds of a scan against length, readable without colour: markers tell variants apart.

    Points are medians, bars reach from the fastest to the slowest repeat. The limits are dashed,
    attention is dotted. Variants that no panel names are in the table only.
    """
    names = list(dict.fromkeys(row["variant"] for row in rows if row.get("median_ms")))
    panels = {title: [n for n in order if n in names] for title, order in PANELS.items()}
    panels = {title: shown for title, shown in panels.items() if shown}
    figure = Figure(figsize=(10, 5.6), layout="constrained")
    figure.suptitle(_title(rows), x=0.01, ha="left", fontsize="medium")
    axes = figure.subplots(1, max(len(panels), 1), sharex=True, sharey=True, squeeze=False)[0]
    for panel, (title, shown) in zip(axes, panels.items(), strict=False):
        panel.set_title(title, loc="left", fontsize="medium")
        _draw(panel, rows, shown)
    for panel in axes:
        panel.set_xlabel("length of the sequence")
    axes[0].set(ylabel="milliseconds of one call", yscale="log")
    axes[0].set_xscale("log", base=2)
    return figure


def _draw(axes: Axes, rows: list[dict[str, Any]], names: list[str]) -> None:
    others = cycle(OTHERS)
    for name, marker in zip(names, cycle(MARKERS), strict=False):
        own = [row for row in rows if row["variant"] == name and row.get("median_ms")]
        medians = [row["median_ms"] for row in own]
        below = [row["median_ms"] - row["fastest_ms"] for row in own]
        above = [row["slowest_ms"] - row["median_ms"] for row in own]
        limit = name.startswith("limit")
        axes.errorbar(
            [row["length"] for row in own],
            medians,
            [below, above],
            linestyle="--" if limit else ":" if name == "attention" else "-",
            linewidth=2.5 if name == "parallel" else 1.2,
            elinewidth=1,
            capsize=2,
            marker=marker,
            markersize=5,
            color=COLOURS.get(name) or next(others),
            label=name,
        )
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=3, frameon=False)


def _title(rows: list[dict[str, Any]]) -> str:
    """What is timed, and what all rows have in common."""
    timed = "A selective scan on the CPU: time of one call, median and extremes"
    if not rows or "dim" not in rows[0]:
        return timed
    first, threads = rows[0], max(row["threads"] for row in rows)
    return (
        f"{timed}\nbatch {first['batch']}, dim {first['dim']}, state {first['state']}, "
        f"{first['dtype']}, at most {threads} threads"
    )
