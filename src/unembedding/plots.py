"""Plots of one model's geometry over its training, readable without colour."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from unembedding.plot_style import save, shown
from unembedding.records.geometry import Geometry, require_described
from unembedding.records.summary import identical
from unembedding.tensors.files import TensorFile

MOST_SPECTRA = 8  # lines that can still be told apart
MOST_LEVELS = 2  # labels at one edge that do not lie on each other
TITLES = {
    "spectrum": "eigenvalues of the unembedding's covariance",
    "effective_rank": "effective rank of the covariance",
    "condition_number": "condition number of the covariance",
    "seconds": "wall time of each stage",
}
HATCHES = {"extract": "", "decompose": "//", "transform": ".."}


@dataclass(frozen=True)
class Point:
    """One checkpoint of the plots."""

    geometry: Geometry
    decomposition: Path
    twin: str | None = None
    """Another revision whose γ is the same byte for byte."""

    @property
    def revision(self) -> str:
        return self.geometry.revision

    @property
    def label(self) -> str:
        return shown(self.revision + (f" (= {self.twin})" if self.twin else ""))

    @property
    def training(self) -> tuple[int, int] | None:
        training = self.geometry.training
        return (training.stage, training.step) if training else None

    @property
    def run(self) -> str | None:
        """The run whose steps make one line: stage 2 of OLMo has several, of other ingredients."""
        training = self.geometry.training
        return training.run if training else None


def plot_model(
    model: str,
    geometries: Sequence[Geometry],
    decompositions: Sequence[Path],
    targets: dict[str, Path],
) -> None:
    """Draw the plots named in ``targets`` from the results of a model's revisions."""
    points = _with_twins([Point(g, d) for g, d in zip(geometries, decompositions, strict=True)])
    for point in points:
        require_described(point.geometry, "decomposition", point.decomposition)
    points.sort(key=lambda p: (p.training is None, p.training or (0, 0)))
    draw = {
        "spectrum": _spectrum,
        "effective_rank": _effective_rank,
        "condition_number": _condition_number,
        "seconds": _seconds,
    }
    for name, target in targets.items():
        figure = Figure(figsize=(7, 4.2), layout="constrained")
        axes = figure.add_subplot()
        draw[name](axes, points)
        axes.set_title(f"{shown(model)}: {TITLES[name]}", loc="left", fontsize=11)
        save(figure, target)


def _with_twins(points: list[Point]) -> list[Point]:
    """Return the points, of which those with the same γ name each other."""
    marked = list(points)
    for same in identical([point.geometry for point in points]):
        for position, other in zip(same, same[1:] + same[:1], strict=True):
            if other != position:
                marked[position] = replace(points[position], twin=points[other].revision)
    return marked


def _spectrum(axes: Axes, points: list[Point]) -> None:
    shown = points
    if len(points) > MOST_SPECTRA:
        shown = [
            points[i] for i in np.linspace(0, len(points) - 1, MOST_SPECTRA).round().astype(int)
        ]
    for index, point in enumerate(shown):
        decomposition = TensorFile(point.decomposition)
        decomposition.verify()
        eigenvalues = decomposition.read("eigenvalues", 1)[::-1]
        positive = eigenvalues[eigenvalues > 0]
        shade = 0.8 * (1 - index / max(len(shown) - 1, 1))
        axes.plot(
            np.arange(1, len(positive) + 1),
            positive,
            color=str(shade),
            marker="os^Dvx+*"[index % 8],
            markevery=0.2,
            markersize=4,
            label=point.label,
        )
    axes.set(
        xlabel="index (largest first)",
        ylabel="eigenvalue",
        xscale="log",
        yscale="log",
    )
    axes.legend(fontsize=8, title=_order(shown), title_fontsize=8)


def _order(points: list[Point]) -> str:
    """Say in which order the shades of points are, as far as it is known."""
    stepped = sum(point.training is not None for point in points)
    if stepped < 2:
        return "revision" if stepped else "revision, in the order asked for"
    last = "" if stepped == len(points) else "; those without a step are darkest"
    return f"revision, from early (pale) to late (dark){last}"


def _effective_rank(axes: Axes, points: list[Point]) -> None:
    _over_training(axes, points, "effective_rank")
    width = points[0].geometry.width
    axes.axhline(width, color="0.4", linestyle="--", linewidth=1)
    _label_level(axes, f"width {width}", width)
    axes.set_ylabel("effective rank (dimensions)")
    axes.set_ylim(bottom=0, top=1.1 * width)


def _condition_number(axes: Axes, points: list[Point]) -> None:
    _over_training(axes, points, "condition_number")
    axes.set(ylabel="λmax / λmin", yscale="log")


def _over_training(axes: Axes, points: list[Point], quantity: str) -> None:
    """Plot a quantity against the training step, or by revision where the names tell no step."""
    runs = list(dict.fromkeys(p.run for p in points if p.run is not None))
    for index, run in enumerate(runs):
        line = [p for p in points if p.run == run]
        axes.plot(
            [p.training[1] for p in line if p.training],
            [getattr(p.geometry, quantity) for p in line],
            color=str(0.5 * index / max(len(runs) - 1, 1)),
            marker="os^DvP<X>*"[index % 10],
            label=shown(run or "steps"),
        )
    _mark_twins(axes, points, quantity)
    if len(runs) > 1 or any(p.twin and p.training for p in points):
        axes.legend(fontsize=8)
    if runs:
        axes.set_xlabel("training step (logarithmic from the first step on)")
        smallest = min((p.training[1] for p in points if p.training and p.training[1]), default=1)
        axes.set_xscale("symlog", linthresh=smallest)
        levels = [p for p in points if not p.training]  # such as main: no step
        for point in levels:
            level = getattr(point.geometry, quantity)
            axes.axhline(level, color="0.4", linestyle=":", linewidth=1)
            if len(levels) <= MOST_LEVELS:
                _label_level(axes, point.label, level)
    else:
        positions = range(len(points))
        axes.plot(positions, [getattr(p.geometry, quantity) for p in points], "o", color="0")
        axes.set_xticks(positions, [p.label for p in points], rotation=30, ha="right")
        axes.set_xlabel("revision")


def _mark_twins(axes: Axes, points: list[Point], quantity: str) -> None:
    """Draw checkpoints hollow whose γ is that of another revision, so that nobody reads a trend."""
    twins = [p for p in points if p.training and p.twin]
    if twins:
        axes.plot(
            [p.training[1] for p in twins if p.training],
            [getattr(p.geometry, quantity) for p in twins],
            "o",
            color="0",
            markerfacecolor="1",
            markersize=9,
            zorder=3,
            label="the same γ as another revision",
        )


def _label_level(axes: Axes, text: str, level: float) -> None:
    place = {"xycoords": ("axes fraction", "data"), "ha": "right", "va": "bottom"}
    axes.annotate(text, (1, level), fontsize=8, **place)  # type: ignore[arg-type]


def _seconds(axes: Axes, points: list[Point]) -> None:
    positions = np.arange(len(points))
    bottom = np.zeros(len(points))
    for shade, (stage, hatch) in zip(("0.9", "0.6", "0.75"), HATCHES.items(), strict=True):
        seconds = np.array([p.geometry.seconds[stage] for p in points])
        axes.bar(
            positions,
            seconds,
            bottom=bottom,
            color=shade,
            edgecolor="0",
            hatch=hatch,
            linewidth=0.5,
            label=stage,
        )
        bottom += seconds
    step = max(1, len(points) // 12)
    labels = [p.label for p in points]
    axes.set_xticks(positions[::step], labels[::step], rotation=30, ha="right", fontsize=8)
    axes.set(ylabel="seconds", xlabel="revision", ylim=(0, 1.3 * bottom.max()))
    axes.legend(fontsize=8, ncols=3, loc="upper right")
