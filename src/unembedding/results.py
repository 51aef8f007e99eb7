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
CONCEPT_PLOTS = {
    "scores": "Scores over training",
    "matrices": "Matrices",
    "synsets": "Synsets by depth and size",
    "projections": "Projections",
    "planes": "Planes",
    "agreement": "Agreement with the last checkpoint",
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
    def factors(self) -> Path:
        """What g is a product with: μ, C^(−1/2) and its inverse."""
        return self.folder / "factors.safetensors"

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
        files = [self.geometry, self.causal, self.factors]
        if stage == "extract":
            files += [self.decomposition, self.facts("decompose")]
        of_all, concepts = self.model.of_all, self.concepts
        files += [*map(self.model.plot, PLOTS), of_all.summary, of_all.summary_page]
        return [*files, *concepts.files, *concepts.made_after, concepts.model.agreement]

    @property
    def concepts(self) -> ConceptRevision:
        return self.model.concepts.beside(self.folder.name)


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

    @property
    def vocabulary(self) -> Path:
        """The text of each token, which rows of γ and g are of."""
        return self.folder / "tokens.tsv"

    @property
    def concepts(self) -> ConceptModel:
        root = self.of_all.folder.parent / CONCEPTS.folder.name
        return ConceptResults(root).model(self.folder.name)

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


@dataclass(frozen=True)
class ConceptRevision:
    """The folder of one revision's concepts."""

    folder: Path

    @property
    def model(self) -> ConceptModel:
        return ConceptModel(self.folder.parent)

    @property
    def directions(self) -> Path:
        return self.folder / "directions.safetensors"

    @property
    def matrices(self) -> Path:
        return self.folder / "matrices.safetensors"

    @property
    def scores(self) -> Path:
        return self.folder / "scores.csv"

    @property
    def tokens(self) -> Path:
        """Projections and neighbours of tokens, for the explorer."""
        return self.folder / "tokens.safetensors"

    @property
    def files(self) -> list[Path]:
        return [self.directions, self.matrices, self.scores, self.tokens]

    @property
    def made_after(self) -> list[Path]:
        """What is made of these files, and no longer true once they change."""
        model = self.model
        plots = map(model.plot, CONCEPT_PLOTS)
        return [*plots, model.of_all.summary, model.of_all.summary_page, model.of_all.explorer]


@dataclass(frozen=True)
class ConceptModel:
    """The folder of one model's concepts."""

    folder: Path

    @property
    def of_all(self) -> ConceptResults:
        return ConceptResults(self.folder.parent)

    @property
    def categories(self) -> Path:
        """Which tokens belong to which synsets, and how these lie above each other."""
        return self.folder / "categories.safetensors"

    @property
    def synsets(self) -> Path:
        """Their names."""
        return self.folder / "synsets.csv"

    @property
    def agreement(self) -> Path:
        """How much checkpoints are alike."""
        return self.folder / "agreement.csv"

    @property
    def made_after(self) -> list[Path]:
        """What is made of the categories, and no longer true once they change."""
        revisions = [ConceptRevision(scores.parent) for scores in self.folder.glob("*/scores.csv")]
        return [file for r in revisions for file in r.files] + self.beside("_").made_after

    def plot(self, name: str) -> Path:
        return self.folder / "plots" / f"{name}.svg"

    def beside(self, folder: str) -> ConceptRevision:
        """Return the results of a revision by the name of its folder."""
        return ConceptRevision(self.folder / folder)


@dataclass(frozen=True)
class ConceptResults:
    """The folder of all models' concepts."""

    folder: Path

    @property
    def summary(self) -> Path:
        return self.folder / "summary.csv"

    @property
    def summary_page(self) -> Path:
        """The same for a browser."""
        return self.folder / "summary.html"

    @property
    def explorer(self) -> Path:
        return self.folder / "explorer.html"

    def model(self, name: str) -> ConceptModel:
        return ConceptModel(self.folder / name)


GEOMETRY = GeometryResults(Path("results/geometry"))
MODEL = GEOMETRY.model("{model}")
REVISION = RevisionResults(MODEL.folder / "{revision}")
CONCEPTS = ConceptResults(Path("results/concepts"))
BACKENDS = Path("results/backends")
CHOICE = BACKENDS / "choice.json"
"""What ``backend: auto`` takes, once backends have been compared."""
