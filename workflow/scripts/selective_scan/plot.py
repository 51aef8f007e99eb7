"""The log-log picture of time against length."""

from __future__ import annotations

from itertools import cycle
from pathlib import Path
from typing import Any

LIMIT, ATTENTION = "limit", "attention"


def plot_scaling(rows: list[dict[str, Any]], path: Path) -> None:
    """Median milliseconds against length as SVG, one line per variant, readable without colour:
    markers tell variants apart, dashes the limits, dots attention."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 6), layout="constrained")
    names = list(dict.fromkeys(row["variant"] for row in rows if row.get("median_ms")))
    shades = ["#000000", "#555555", "#0072b2", "#d55e00", "#009e73", "#cc79a7"]
    for name, marker, shade in zip(names, cycle("osv^D<>PX*hpd"), cycle(shades), strict=False):
        own = [row for row in rows if row["variant"] == name and row.get("median_ms")]
        lengths, times = zip(*((row["length"], row["median_ms"]) for row in own), strict=True)
        style = "--" if name.startswith(LIMIT) else ":" if name == ATTENTION else "-"
        width = 2.5 if name == "parallel" else 1.2
        axes.plot(
            lengths,
            times,
            style,
            marker=marker,
            markersize=5,
            color=shade,
            linewidth=width,
            label=name,
        )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("length of the sequence")
    axes.set_ylabel("milliseconds, median")
    axes.grid(True, which="major", linewidth=0.4)
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
