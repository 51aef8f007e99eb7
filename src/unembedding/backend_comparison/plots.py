"""Plots of a comparison, readable without colour."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, ScalarFormatter

from unembedding.backend_comparison.measuring import Eigh
from unembedding.backend_comparison.solvers import SOLVERS
from unembedding.backend_comparison.stages import Stages, median_parts
from unembedding.backends import BACKENDS
from unembedding.plot_style import save
from unembedding.records.serialization import read_table

LOOKS = {s.name: (s.grey, s.marker, s.line) for e in BACKENDS.values() for s in e.drivers.values()}
PARTS = {
    "start": ("1", "..."),
    "read": ("0.9", ""),
    "covariance": ("0.7", "///"),
    "eigh": ("0.15", ""),
    "transform": ("0.85", "\\\\\\"),
    "write": ("0.6", ""),
    "check": ("1", "xx"),
}

# By name: the captions call the busy one dark, also where it is the only one or the first.
LOADS = {"idle": ("0.9", ""), "busy": ("0.5", "//")}


def plot_comparison(eigh: Path, stages: Path, targets: dict[str, Path]) -> None:
    """Draw time by size, idle against busy, and the parts of a job, as ``targets`` name them."""
    measured = [row for row in read_table(eigh, Eigh) if row.seconds is not None]
    draw: dict[str, Callable[[Figure], None]] = {
        "eigh": lambda figure: _by_size(figure, measured),
        "load": lambda figure: _by_load(figure, measured),
        "stages": lambda figure: _by_part(figure, read_table(stages, Stages)),
    }
    for name, target in targets.items():
        figure = Figure(figsize=(8, 4.2), layout="constrained")
        draw[name](figure)
        save(figure, target)


def _panels(
    figure: Figure, rows: Sequence[Eigh] | Sequence[Stages], title: str, share_y: bool = True
) -> list[tuple[str, Axes]]:
    """Return one axes for each precision, side by side, under a title."""
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    precisions = list(dict.fromkeys(row.precision for row in rows))
    axes = figure.subplots(1, len(precisions), sharex=True, sharey=share_y, squeeze=False)[0]
    for precision, panel in zip(precisions, axes, strict=True):
        panel.set_title(precision, loc="left", fontsize=10)
    return list(zip(precisions, axes, strict=True))


def _spread(values: Sequence[Sequence[float]]) -> tuple[np.ndarray, np.ndarray]:
    """Return medians (n), and how far the extremes lie below and above them (2 × n)."""
    medians = np.array([np.median(v) for v in values])
    low, high = np.array([min(v) for v in values]), np.array([max(v) for v in values])
    return medians, np.array([medians - low, high - medians])


def _seconds(rows: Sequence[Eigh], **wanted: object) -> list[float]:
    return [
        row.seconds
        for row in rows
        if row.seconds is not None and all(getattr(row, k) == v for k, v in wanted.items())
    ]


def _by_size(figure: Figure, rows: Sequence[Eigh]) -> None:
    load = rows[0].load
    sizes = sorted({row.size for row in rows if row.size is not None})
    title = f"eigh by size and backend, {load}: median and extremes"
    for precision, axes in _panels(figure, rows, title):
        for name, (grey, marker, line) in LOOKS.items():
            place = {"backend": name, "precision": precision, "load": load}
            values = {size: _seconds(rows, size=size, **place) for size in sizes}
            values = {size: seconds for size, seconds in values.items() if seconds}
            if values:
                medians, extremes = _spread(list(values.values()))
                axes.errorbar(
                    list(values),
                    medians,
                    extremes,
                    color=grey,
                    marker=marker,
                    linestyle=line,
                    markersize=5,
                    capsize=2,
                    linewidth=1.2,
                    label=name,
                )
        axes.set(xscale="log", yscale="log", xlabel="size n of the covariance (n × n)")
        axes.set_xticks(sizes)
        axes.xaxis.set_major_formatter(ScalarFormatter())
        axes.xaxis.set_minor_formatter(NullFormatter())
    figure.axes[0].set_ylabel("seconds")
    figure.axes[0].legend(fontsize=8)


def _by_load(figure: Figure, rows: Sequence[Eigh]) -> None:
    size = max(row.size for row in rows if row.size is not None)
    names = [name for name in SOLVERS if _seconds(rows, backend=name, size=size)]
    loads = list(dict.fromkeys(row.load for row in rows))
    height = 0.8 / len(loads)
    for precision, axes in _panels(figure, rows, f"eigh at n = {size}: median and extremes"):
        for index, load in enumerate(loads):
            values = [
                _seconds(rows, backend=n, precision=precision, load=load, size=size) for n in names
            ]
            shown = [i for i, value in enumerate(values) if value]
            medians, extremes = _spread([values[i] for i in shown])
            grey, hatch = LOADS[load]
            axes.barh(
                np.array(shown) + (index - (len(loads) - 1) / 2) * height,
                medians,
                height,
                xerr=extremes,
                color=grey,
                edgecolor="0",
                hatch=hatch,
                linewidth=0.5,
                error_kw={"capsize": 2, "linewidth": 1},
                label=load,
            )
        axes.set_yticks(range(len(names)), names)
        axes.set(xlabel="seconds")
        axes.set_xlim(left=0)
        axes.grid(visible=False, axis="y")
    figure.axes[0].invert_yaxis()
    figure.axes[-1].legend(fontsize=8)


def _by_part(figure: Figure, rows: Sequence[Stages]) -> None:
    size = max(row.size for row in rows)
    rows = [row for row in rows if row.size == size]
    title = f"a whole job on {rows[0].rows} rows of width {size}, by its parts"
    bars = median_parts(rows)
    for precision, axes in _panels(figure, rows, title, share_y=False):
        names = list(bars[precision])
        left = np.zeros(len(names))
        for part, (grey, hatch) in PARTS.items():
            seconds = np.array([bars[precision][name][part] for name in names])
            axes.barh(
                range(len(names)),
                seconds,
                0.6,
                left=left,
                color=grey,
                edgecolor="0",
                hatch=hatch,
                linewidth=0.5,
                label=part,
            )
            left += seconds
        for position, name in enumerate(names):
            share = bars[precision][name]["eigh"] / left[position]
            axes.annotate(f" eigh {share:.0%}", (left[position], position), va="center", fontsize=8)
        axes.set_yticks(range(len(names)), names)
        axes.set(xlabel="seconds")
        axes.margins(x=0.2)
        axes.grid(visible=False, axis="y")
        axes.invert_yaxis()
    parts = figure.axes[0].get_legend_handles_labels()
    figure.legend(*parts, fontsize=8, ncols=7, loc="outside lower center")
