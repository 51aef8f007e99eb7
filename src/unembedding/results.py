"""Where results lie: every path below results/, once.

The same properties give the paths of a run and, of the names ``{model}`` and ``{revision}``, the
patterns of the rules.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from unembedding.checkpoints.revisions import folder_name

STAGES = ("extract", "decompose", "transform")
PLOTS = {  # and their titles
    "spectrum": "Spectrum",
    "effective_rank": "Effective rank",
    "condition_number": "Condition number",
    "seconds": "Seconds of each stage",
}


@dataclass(frozen=True)
class RevisionResults:
    """The folder of one revision."""

    folder: Path

    @property
    def model(self) -> ModelResults:
        return ModelResults(self.folder.parent)

    @property
    def unembedding(self) -> Path:
        return self.folder / "unembedding.safetensors"

    @property
    def decomposition(self) -> Path:
        return self.folder / "decomposition.safetensors"

    @property
    def causal(self) -> Path:
        return self.folder / "causal.safetensors"

    @property
    def geometry(self) -> Path:
        return self.folder / "geometry.json"

    def facts(self, stage: str) -> Path:
        """What a stage found out, for the description of the revision."""
        return self.folder / "profiles" / f"{stage}.json"

    def profile(self, stage: str) -> list[Path]:
        """cProfile's statistics, their table, and the flame graph, as a picture and as a page."""
        suffixes = (".prof", ".txt", ".svg", ".html")
        return [self.folder / "profiles" / f"{stage}{suffix}" for suffix in suffixes]

    def made_after(self, stage: str) -> list[Path]:
        """What is made of the results of a stage, and no longer true once they change."""
        files = [self.geometry, self.causal]
        if stage == "extract":
            files += [self.decomposition, self.facts("decompose")]
        of_all = self.model.of_all
        return [*files, *map(self.model.plot, PLOTS), of_all.summary, of_all.summary_page]


@dataclass(frozen=True)
class ModelResults:
    """The folder of one model."""

    folder: Path

    @property
    def of_all(self) -> GeometryResults:
        return GeometryResults(self.folder.parent)

    @property
    def pinned(self) -> Path:
        """The commits of the revisions."""
        return self.folder / "revisions.tsv"

    def plot(self, name: str) -> Path:
        return self.folder / "plots" / f"{name}.svg"

    def revision(self, revision: str) -> RevisionResults:
        return RevisionResults(self.folder / folder_name(revision))


@dataclass(frozen=True)
class GeometryResults:
    """The folder of all models."""

    folder: Path

    @property
    def summary(self) -> Path:
        return self.folder / "summary.csv"

    @property
    def summary_page(self) -> Path:
        """The same as a page, which begins with what was found."""
        return self.folder / "summary.html"

    @property
    def manifest(self) -> Path:
        """The digests of everything here."""
        return self.folder / "manifest.tsv"

    def model(self, name: str) -> ModelResults:
        return ModelResults(self.folder / name)


GEOMETRY = GeometryResults(Path("results/geometry"))
MODEL = GEOMETRY.model("{model}")
REVISION = RevisionResults(MODEL.folder / "{revision}")
BACKENDS = Path("results/backends")
CHOICE = BACKENDS / "choice.json"
"""What ``backend: auto`` takes, once backends have been compared."""
