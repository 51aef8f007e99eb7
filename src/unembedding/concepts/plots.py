"""Plots of one model's concepts: over training, and at its last checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from unembedding.agreement import Row as Agreement
from unembedding.concepts.categories import Categories
from unembedding.concepts.directions import Directions
from unembedding.concepts.scores import project
from unembedding.concepts.storage import load_categories, load_directions, load_made_with
from unembedding.concepts.summary import Scored
from unembedding.errors import UserError
from unembedding.plot_style import over_training, save, shown
from unembedding.records.serialization import read_table
from unembedding.revision import Revision

CHOSEN = 6  # synsets whose projections are drawn
PLANES = 4  # pairs of a synset and one below it
MOST_POINTS = 2000  # that are drawn as vectors
NAMED = 12  # synsets that are named beside a matrix
# What a plot of any vocabulary should show, where it is there; the largest synsets come next.
KNOWN = (
    "animal.n.01", "mammal.n.01", "bird.n.01", "plant.n.02", "food.n.01", "person.n.01",
    "artifact.n.01", "location.n.01", "body_part.n.01", "unit_of_measurement.n.01", "number.n.02",
)  # fmt: skip
PANELS = {
    "auc": "AUC, held out against all others",
    "auc_words": "AUC, held out against other words",
    "linear": "linear: projection of held-out members",
    "held_out_cosine": "AUC of related pairs, held-out halves",
    "self_agreement": "cosine of a synset's two halves",
    "hierarchy": "hierarchy: RMS cosine of differences",
}


@dataclass(frozen=True)
class Last:
    """All that is drawn of a model's last checkpoint."""

    scored: Scored
    categories: Categories
    directions: Mapping[str, Directions]
    matrices: Mapping[str, np.ndarray]
    revision: Revision

    @property
    def label(self) -> str:
        return shown(self.scored.geometry.revision)

    @cached_property
    def chosen(self) -> list[int]:
        """Synsets to look at: well-known ones first, then the largest below the roots."""
        sizes, held_out = self.categories.sizes, self._held_out
        usable = [i for i in range(len(self.categories)) if held_out[i] > 0 and sizes[i] > 0]
        known = [self.categories.names.index(n) for n in KNOWN if n in self.categories.names]
        large = sorted(usable, key=lambda i: (self.categories.depth[i] < 2, -sizes[i]))
        return list(dict.fromkeys([*(i for i in known if i in usable), *large]))[:CHOSEN]

    @property
    def _held_out(self) -> np.ndarray:
        return np.array([self.categories.held_out[self.categories.of(i)].sum()
                         for i in range(len(self.categories))])  # fmt: skip


def plot_concepts(scored: Sequence[Scored], agreement: Path, targets: Mapping[str, Path]) -> None:
    """Draw the plots named in ``targets`` from the results of a model's checkpoints, in order."""
    model = scored[-1].geometry.model
    results = scored[-1].results
    last = Last(
        scored[-1],
        load_categories(results.concepts.model).categories,
        load_directions(results.concepts)[0],
        load_made_with(results.concepts, results.concepts.matrices),
        Revision(results),
    )
    draw: dict[str, Callable[[Figure], str]] = {
        "scores": lambda figure: _scores(figure, scored),
        "matrices": lambda figure: _matrices(figure, last),
        "synsets": lambda figure: _synsets(figure, last),
        "projections": lambda figure: _projections(figure, last),
        "planes": lambda figure: _planes(figure, last),
        "agreement": lambda figure: _agreement(figure, read_table(agreement, Agreement), scored),
    }
    for name, target in targets.items():
        figure = Figure(layout="constrained")
        title = draw[name](figure)
        figure.suptitle(f"{shown(model)}: {title}", x=0.01, ha="left", fontsize=11)
        save(figure, target)


def _scores(figure: Figure, scored: Sequence[Scored]) -> str:
    """Draw the mean of each score over training, and that of shuffled labels."""
    figure.set_size_inches(9, 5.4)
    axes = figure.subplots(2, 3).flat
    geometries = [s.geometry for s in scored]
    parts = list(dict.fromkeys(row.pos for s in scored for row in s.rows))
    for panel, (name, title) in zip(axes, PANELS.items(), strict=True):
        for index, part in enumerate(parts):
            rows = [next(row for row in s.rows if row.pos == part) for s in scored]
            for suffix, style, what in (("", "o-", "labels"), ("_null", "s--", "shuffled")):
                values = [getattr(row, name + suffix) for row in rows]
                over_training(
                    panel, geometries, [np.nan if v is None else v for v in values], style,
                    color=str(0.5 * index + (0.25 if suffix else 0)), markersize=4,
                    markerfacecolor="1" if suffix else None, label=f"{part}, {what}",
                )  # fmt: skip
        panel.set_title(title, fontsize=9, loc="left")
    figure.axes[0].legend(fontsize=7)
    return "scores of concepts over training"


def _matrices(figure: Figure, last: Last) -> str:
    """Draw the three matrices side by side, in the order of the hierarchy."""
    figure.set_size_inches(11, 3.9)
    names, panels = last.categories.names, figure.subplots(1, 3)
    titles = {
        "adjacency": "one is above the other",
        "cosine": "cosine of directions",
        "difference": "cosine of differences from the parent",
    }
    named = _spread(last)
    for panel, (key, title) in zip(panels, titles.items(), strict=True):
        image = panel.imshow(
            last.matrices[key], cmap="gray_r", vmin=-0.2 if key != "adjacency" else 0, vmax=1
        )
        panel.set_title(title, fontsize=9, loc="left")
        panel.grid(visible=False)
        panel.set_xticks([])
        panel.set_yticks(named if key == "adjacency" else [])
        if key == "adjacency":
            panel.set_yticklabels([shown(names[i]) for i in named], fontsize=6)
    figure.colorbar(image, ax=list(panels), shrink=0.7, label="cosine (white: −0.2 or less)")
    return f"{len(names)} synsets at {last.label}, in depth-first order"


def _spread(last: Last) -> list[int]:
    """Return synsets to name: large ones, apart from each other."""
    count = len(last.categories)
    room = max(1, count // (2 * NAMED))
    picked: list[int] = []
    for synset in np.argsort(-last.categories.sizes, kind="stable").tolist():
        if all(abs(synset - other) >= room for other in picked) and len(picked) < NAMED:
            picked.append(synset)
    return sorted(picked)


def _synsets(figure: Figure, last: Last) -> str:
    """Draw each synset's scores against its depth and its number of members."""
    figure.set_size_inches(9, 5.4)
    categories, columns = last.categories, last.scored.columns
    panels = figure.subplots(2, 2, sharey="row")
    spread = np.random.default_rng(0).uniform(-0.2, 0.2, len(categories))
    for row, (name, label) in zip(panels, {"auc": "AUC", "linear": "linear"}.items(), strict=True):
        for panel, place, axis in zip(
            row, (categories.depth + spread, categories.sizes), ("depth", "members"), strict=True
        ):
            for suffix, marker, shade, what in (
                ("_null", "x", "0.6", "shuffled labels"), ("", "o", "0", "labels"),
            ):  # fmt: skip
                panel.plot(
                    place, columns[name + suffix], marker, color=shade, markersize=3,
                    markerfacecolor="none", label=what, linestyle="none",
                )  # fmt: skip
            panel.set(xlabel=axis, xscale="log" if axis == "members" else "linear")
        row[0].set_ylabel(label)
    panels[0][0].legend(fontsize=7)
    return f"each synset at {last.label}"


def _projections(figure: Figure, last: Last) -> str:
    """Draw histograms of the projections of members and of all other tokens."""
    figure.set_size_inches(9, 5.4)
    chosen = last.chosen
    trained = last.directions["train"]
    picked = Directions(trained.vectors[chosen], trained.shrinkage[chosen])
    projections = project(last.revision.blocks(), picked)
    panels = figure.subplots(2, 3, squeeze=False).flat
    for panel in panels[len(chosen) :]:
        panel.set_axis_off()
    for panel, synset, line in zip(panels, chosen, projections, strict=False):
        members = last.categories.of(synset)
        ids, held_out = last.categories.token_ids[members], last.categories.held_out[members]
        others = np.delete(line, ids)
        low, high = np.quantile(np.append(others, line[ids]), [0.001, 1]).tolist()
        bins = np.linspace(low, high, 40)
        panel.hist(
            others, bins, density=True, color="0.75", histtype="stepfilled",
            label="all other tokens",
        )  # fmt: skip
        panel.hist(
            line[ids[~held_out]], bins, density=True, color="0", histtype="step",
            label="members, trained on",
        )  # fmt: skip
        # A few tokens: each by itself.
        panel.plot(
            line[ids[held_out]], np.zeros(held_out.sum()), "|", color="0", markersize=18,
            markeredgewidth=1.2, clip_on=False, label="members, held out",
        )  # fmt: skip
        panel.set_title(f"{shown(last.categories.names[synset])} ({len(ids)})", fontsize=9)
        panel.set_yticks([])
    figure.axes[0].legend(fontsize=7)
    figure.supxlabel("g·ℓ / ‖ℓ‖² (a member is at 1 on average)", fontsize=9)
    figure.supylabel("density", fontsize=9)
    return f"projections of tokens on synsets, at {last.label}"


def _planes(figure: Figure, last: Last) -> str:
    """Draw tokens on the plane of a synset's direction and of its child's difference from it."""
    figure.set_size_inches(9, 7.4)
    pairs = _pairs(last)
    panels = figure.subplots(2, 2, squeeze=False).flat
    for panel in panels[len(pairs) :]:
        panel.set_axis_off()
    vectors = last.directions["all"].vectors.astype(np.float64)
    bases = [_plane(vectors[parent], vectors[child]) for parent, child in pairs]
    if bases:
        places = _placed(last.revision, np.stack(bases))
    for index, (parent, child) in enumerate(pairs):
        _draw_plane(panels[index], last.categories, parent, child, places[index])
    if pairs:
        figure.axes[0].legend(fontsize=7, loc="upper left")
    return f"tokens of a synset and of one below it, at {last.label}"


def _draw_plane(
    panel: Axes, categories: Categories, parent: int, child: int, points: np.ndarray
) -> None:
    above = categories.token_ids[categories.of(parent)]
    below = categories.token_ids[categories.of(child)]
    groups = (
        (np.delete(points, above, axis=0), ".", "0.85", "all other tokens"),
        (points[np.setdiff1d(above, below)], "x", "0.45", categories.names[parent]),
        (points[below], "o", "0", categories.names[child]),
    )
    for places, marker, shade, what in groups:
        panel.plot(
            *places.T, marker, color=shade, markersize=4, markerfacecolor="none", label=shown(what),
            rasterized=len(places) > MOST_POINTS,
        )  # fmt: skip
    panel.set_xlabel(f"along ℓ of {shown(categories.names[parent])}", fontsize=8)
    panel.set_ylabel(f"along ℓ of {shown(categories.names[child])} − that", fontsize=8)
    panel.legend(fontsize=7, loc="upper left")


def _pairs(last: Last) -> list[tuple[int, int]]:
    """Return pairs of a synset and one below it: well-known ones first, then the largest."""
    sizes, names = last.categories.sizes, last.categories.names
    usable = [(p, c) for p, c in last.categories.edges.tolist() if 5 <= sizes[c] <= 0.7 * sizes[p]]
    return sorted(
        usable,
        key=lambda pair: (
            -sum(names[i] in KNOWN for i in pair), last.categories.depth[pair[0]] < 2,
            -sizes[pair[1]],
        ),
    )[:PLANES]  # fmt: skip


def _plane(parent: np.ndarray, child: np.ndarray) -> np.ndarray:
    """Return an orthonormal basis (d × 2) of ℓ and of the difference, without what is along ℓ."""
    first = parent / np.linalg.norm(parent)
    rest = child - parent
    rest = rest - (rest @ first) * first
    return np.stack([first, rest / max(float(np.linalg.norm(rest)), 1e-30)], axis=1)


def _placed(revision: Revision, bases: np.ndarray) -> np.ndarray:
    """Return the coordinates of all tokens on each plane (P × V × 2)."""
    wide = np.concatenate(list(bases), axis=1).astype(np.float32)
    flat = np.concatenate([block @ wide for block in revision.blocks()])
    return flat.reshape(len(flat), len(bases), 2).transpose(1, 0, 2)


def _agreement(figure: Figure, rows: Sequence[Agreement], scored: Sequence[Scored]) -> str:
    """Draw how much each checkpoint is like the last one."""
    figure.set_size_inches(7, 4.2)
    axes = figure.add_subplot()
    by_folder = {s.results.folder.name: s.geometry for s in scored}
    compared = {name for row in rows for name in (row.revision, row.last)}
    if not compared or not compared <= by_folder.keys():
        table = scored[-1].results.concepts.model.agreement
        raise UserError(f"{table} is not of these checkpoints. Delete it and run again.")
    geometries = [by_folder[row.revision] for row in rows]
    last = shown(by_folder[rows[-1].last].revision)
    over_training(
        axes, geometries, [r.alignment for r in rows], "o-", color="0",
        label="products of tokens (CKA of g)",
    )  # fmt: skip
    over_training(
        axes, geometries, [r.eigenspaces for r in rows], "s--", color="0.4",
        label=f"leading {rows[0].leading} eigenvectors of the covariance (mean cos²)",
    )  # fmt: skip
    axes.axhline(rows[0].chance, color="0.6", linestyle=":")
    axes.annotate(
        "random subspaces", (1, rows[0].chance), xycoords=("axes fraction", "data"), ha="right",
        va="bottom", fontsize=8,
    )  # fmt: skip
    axes.set(ylim=(0, 1.05), ylabel=f"agreement with {last}")
    axes.legend(fontsize=8)
    return "how much checkpoints are like the last one"
