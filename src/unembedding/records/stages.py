"""What each stage of a checkpoint records: what was asked, what was found, and how it was made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Asked:
    """What the configuration asks of one checkpoint: all that its numbers depend on."""

    model: str
    revision: str
    repo: str
    """Repository of the Hub, or folder."""
    commit: str | None
    """None of a revision that is not pinned."""
    tensor: str | None
    """Name of the unembedding tensor, where it is given."""
    state: str | None
    """Digest of the names, sizes and dates of a local checkpoint's files."""
    precision: str
    rows: int | None
    """None: all."""
    on_rank_deficient: str
    step: str | None
    """Regular expression that finds the training step in the revision's name."""
    subfolder: str | None
    """Where in the repository the checkpoint is."""
    residual: str
    """Whether the whitening residual is an ``estimate`` or ``exact``."""
    write: list[str]
    """``g``, ``factors``, or both."""

    def of(self, stage: str) -> dict[str, Any]:
        """Return what is asked of one stage."""
        return {name: getattr(self, name) for name in ASKED_OF[stage]}


ASKED_OF = {
    "extract": ("model", "revision", "repo", "commit", "subfolder", "tensor", "state"),
    "decompose": ("precision", "rows"),
    "transform": ("on_rank_deficient", "step", "residual", "write"),
}


@dataclass(frozen=True)
class Run:
    """How a stage was made."""

    asked: dict[str, Any]
    made_with: dict[str, Any]
    """Code, configuration and software."""
    job: dict[str, Any]
    """Node and what was asked of it, beside what was given."""
    seconds: float
    steps: dict[str, float]
    warnings: list[str]
    compute: Compute | None
    """None of a stage without arithmetic."""


@dataclass(frozen=True)
class Compute:
    """What the arithmetic of a stage ran on."""

    backend: str
    device: str
    reason: str
    """Why this backend."""
    threads: int
    cpus_allowed: int
    blas: list[dict[str, Any]]


@dataclass(frozen=True)
class Extraction:
    """What was fetched."""

    repo: str
    revision: str
    commit: str
    tensor: str
    file: str
    tied: bool
    dtype: str
    """safetensors name of the type: F32, F16, BF16, …"""
    shape: list[int]
    digest: str
    verified: bool
    """Whether all bytes were compared with a digest that their origin gives."""
    vocabulary: int | None
    """Tokens that config.json says there are."""
    bytes_fetched: int
    warnings: list[str]


@dataclass(frozen=True)
class Decomposition:
    """What was decomposed."""

    rows: int
    height: int
    """Rows of the whole matrix."""
    width: int
    precision: str
    unembedding_digest: str
    decomposition_digest: str


@dataclass(frozen=True)
class Spectrum:
    """What eigenvalues say of a geometry."""

    rank: int
    condition_number: float | None
    effective_rank: float


@dataclass(frozen=True)
class Transformation:
    """What was transformed."""

    rows: int
    spectrum: Spectrum
    whitening_residual: float
    """The largest row norm of gᵀg / V − P (``unembedding.whitening``)."""
    mean_of_g: float
    """max |E[g]|"""
    unembedding_digest: str
    decomposition_digest: str
    causal_digest: str | None
    """None where g is not written; so, too, of its factors."""
    factors_digest: str | None


@dataclass(frozen=True)
class Extracted:
    """Content of profiles/extract.json."""

    facts: Extraction
    run: Run


@dataclass(frozen=True)
class Decomposed:
    """Content of profiles/decompose.json."""

    facts: Decomposition
    run: Run


@dataclass(frozen=True)
class Transformed:
    """What geometry.json adds to these."""

    facts: Transformation
    run: Run
