"""The description of one checkpoint, geometry.json: put together, and checked when it is read."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from unembedding.checkpoints.revisions import Progress, parse_progress
from unembedding.errors import GeometryError
from unembedding.records.pins import read_pins
from unembedding.records.serialization import read_record
from unembedding.records.stages import Asked, Decomposed, Extracted, Transformed
from unembedding.results import RevisionResults

REDO = "Delete the revision's folder and run again."


@dataclass(frozen=True)
class Unembedding:
    """Which tensor γ is."""

    tensor: str
    file: str
    tied: bool
    dtype: str
    digest: str
    verified: bool


@dataclass(frozen=True)
class Geometry:
    """Content of geometry.json."""

    model: str
    repo: str
    revision: str
    commit: str
    training: Progress | None
    unembedding: Unembedding
    rows: int
    matrix_rows: int
    vocabulary: int | None
    width: int
    rank: int
    condition_number: float | None
    effective_rank: float
    whitening_residual: float
    mean_of_g: float
    reproducibility: float | None
    """How far g may differ between machines and numbers of threads, about."""
    precision: str
    decomposition_digest: str
    causal_digest: str | None
    factors_digest: str | None
    backend: str
    device: str
    backend_reason: str
    threads: int
    cpus_allowed: int
    blas: list[dict[str, Any]]
    jobs: dict[str, dict[str, Any]]
    seconds: dict[str, float]
    steps: dict[str, dict[str, float]]
    bytes_fetched: int
    made_with: dict[str, dict[str, Any]]
    asked: Asked
    """What the three stages were asked; not what is asked now."""
    warnings: list[str]

    @property
    def name(self) -> str:
        return f"{self.model}/{self.revision}"

    @property
    def digest_of_g(self) -> str | None:
        """The digest of g, or of its factors where it is not written."""
        return self.causal_digest or self.factors_digest


def describe(
    asked: Asked, extract: Extracted, decompose: Decomposed, transform: Transformed
) -> Geometry:
    """Return the description of a checkpoint from what its three stages recorded.

    Raises GeometryError where they are of different matrices, or were asked for something else than
    ``asked``: a job may outlive its driver, and write into a later run.
    """
    runs = {"extract": extract.run, "decompose": decompose.run, "transform": transform.run}
    name = f"{asked.model}/{asked.revision}"
    found, used, facts = extract.facts, decompose.facts, transform.facts
    if {used.unembedding_digest, facts.unembedding_digest} != {found.digest}:
        raise GeometryError(
            f"The stages of {name} are not of the same matrix: {found.digest} was fetched, and "
            f"{used.unembedding_digest} and {facts.unembedding_digest} were used. {REDO}"
        )
    if used.decomposition_digest != facts.decomposition_digest:
        raise GeometryError(
            f"profiles/decompose.json of {name} is about another decomposition than the one there. "
            f"{REDO}"
        )
    compute = decompose.run.compute
    assert compute is not None
    geometry = Geometry(
        model=asked.model,
        repo=found.repo,
        revision=found.revision,
        commit=found.commit,
        training=parse_progress(found.revision, asked.step),
        unembedding=Unembedding(
            found.tensor, found.file, found.tied, found.dtype, found.digest, found.verified
        ),
        rows=facts.rows,
        matrix_rows=used.height,
        vocabulary=found.vocabulary,
        width=used.width,
        **asdict(facts.spectrum),
        whitening_residual=facts.whitening_residual,
        mean_of_g=facts.mean_of_g,
        reproducibility=reproducibility(facts.spectrum.condition_number, used.precision),
        precision=used.precision,
        decomposition_digest=facts.decomposition_digest,
        causal_digest=facts.causal_digest,
        factors_digest=facts.factors_digest,
        backend=compute.backend,
        device=compute.device,
        backend_reason=compute.reason,
        threads=compute.threads,
        cpus_allowed=compute.cpus_allowed,
        blas=compute.blas,
        jobs={stage: run.job for stage, run in runs.items()},
        seconds={stage: run.seconds for stage, run in runs.items()},
        steps={stage: run.steps for stage, run in runs.items()},
        bytes_fetched=found.bytes_fetched,
        made_with={stage: run.made_with for stage, run in runs.items()},
        asked=Asked(**{key: value for run in runs.values() for key, value in run.asked.items()}),
        warnings=list(
            dict.fromkeys([*found.warnings, *(w for run in runs.values() for w in run.warnings)])
        ),
    )
    geometry.warnings.extend(doubts(geometry))
    require_asked(geometry, asked, "A job of an earlier run may have written it. ")
    return geometry


EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23}
DOUBTFUL = 1e-3  # a deviation that a person should know of


def reproducibility(condition_number: float | None, precision: str) -> float | None:
    """Return ε · κ: rounding moves the smallest eigenvalue by ε λmax, and g with it."""
    return condition_number and EPSILON[precision] * condition_number


def doubts(geometry: Geometry) -> list[str]:
    """Return what makes the g of a checkpoint poor, in words; nothing where it is sound."""
    told = {
        "gᵀg / V is the identity to {:.1e} only": geometry.whitening_residual,
        "E[g] is zero to {:.1e} only: γ lies far from zero": geometry.mean_of_g,
        "g may differ by about {:.1e} between machines": geometry.reproducibility or 0.0,
    }
    kappa, precision = geometry.condition_number, geometry.precision
    better = "" if precision == "float64" else "; `precision: float64` is better"
    where = f" (condition number {kappa:.1e} in {precision}{better})" if kappa else ""
    return [words.format(value) + where for words, value in told.items() if value > DOUBTFUL]


def require_asked(geometry: Geometry, asked: Asked, perhaps: str = "") -> None:
    """Raise GeometryError where a checkpoint was made with something else than is asked for."""
    for key, value in vars(asked).items():
        if (made := getattr(geometry.asked, key)) != value:
            raise GeometryError(
                f"{asked.model}/{asked.revision} was made with {key} {made!r}, and {value!r} is "
                f"asked for. {perhaps}{REDO}"
            )


def read_geometry(path: Path, asked: Asked | None = None) -> Geometry:
    """Return the description of a checkpoint, where it is of this place and of what lies there.

    Raises UserError for one that is damaged, lies in the folder of another model or revision, is of
    another commit than the revision is pinned to, of other files than those beside it, or of
    something else than is ``asked``.
    """
    results = RevisionResults(path.parent)
    geometry = read_record(path, Geometry)
    model = results.model
    if (geometry.model, results.folder) != (
        model.folder.name,
        model.revision(geometry.revision).folder,
    ):
        raise GeometryError(
            f"{path} describes another checkpoint, {geometry.name}. Delete it and run again."
        )
    if asked is not None:
        require_asked(geometry, asked)
    pinned = read_pins(model.pinned).get(geometry.revision, geometry.commit)
    if pinned != geometry.commit:
        raise GeometryError(
            f"{path} is of the commit {geometry.commit}, and revisions.tsv pins {pinned}. {REDO}"
        )
    for what in ("unembedding", "decomposition", "causal", "factors"):
        require_described(geometry, what, getattr(results, what))
    return geometry


def require_described(geometry: Geometry, what: str, path: Path) -> None:
    """Raise GeometryError where a file is there, and is not the one that a geometry.json is of.

    Such as one by a job that went on after its driver had been killed, beside a run that was
    started meanwhile.
    """
    from unembedding.tensors.files import TensorFile  # NumPy: the rest needs none

    described = {
        "unembedding": geometry.unembedding.digest,
        "decomposition": geometry.decomposition_digest,
        "causal": geometry.causal_digest,
        "factors": geometry.factors_digest,
    }
    if path.exists() and TensorFile(path).digest != described[what]:
        raise GeometryError(
            f"{path} is not what {geometry.name} was described from (geometry.json). {REDO}"
        )
