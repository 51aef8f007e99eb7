"""What to ask a cluster for: the memory and time of a job, from the width of its matrix."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from shutil import which
from typing import Any

from unembedding.backends.registry import BACKENDS
from unembedding.errors import GeometryError
from unembedding.results import RevisionResults
from unembedding.tensors.files import TensorFile

DEFAULT_WIDTH = 4096  # OLMo-7B's; for a model of which nothing has been fetched yet
WIDTH_KEYS = ("hidden_size", "d_model", "n_embd")  # in config.json: most; OLMo, Mamba; GPT-2
MATRICES = 6  # d × d in float64, held at once: LAPACK's workspace and its input and output
LEAST_MATRICES = 3  # that LAPACK does not do without, in the precision asked for
BASE_MB = 1000  # Snakemake 265, imports 100, blocks of γ 200, and room
GPU_BASE_MB = 4000  # the CUDA libraries take 1 to 3 GB of the host's memory
MAMBA_130M = {"num_hidden_layers": 24, "hidden_size": 768, "state_size": 16, "vocab_size": 50280}
"""What a Mamba is taken for whose config.json is not here."""
SCANNED = 4  # arrays of length × channels × state that transformers holds at once, and room
MIXED = 16  # arrays of length × channels, likewise
FETCH_MB = 500
FETCH_MINUTES = 10


@dataclass(frozen=True)
class Placement:
    """Where the arithmetic of a run happens."""

    environment: str
    """The file of envs/."""
    gpus: int
    """Cards that a job asks for."""


def placement(backend: str) -> Placement:
    """Return where a backend computes; ``auto`` takes CuPy where there is an NVIDIA driver."""
    if backend == "auto":
        backend = "cupy" if which("nvidia-smi") else "numpy"
    entry = BACKENDS[backend]
    return Placement(entry.environment, int(entry.on_gpu))


def memory_mb(width: int, on_gpu: bool = False) -> int:
    """Return the memory to ask for, which depends on the width and not on the number of tokens."""
    return (GPU_BASE_MB if on_gpu else BASE_MB) + MATRICES * 8 * width**2 // 2**20


def require_memory(width: int, precision: str, limit_mb: int) -> None:
    """Raise GeometryError where a job may not use the memory that its matrices take on the CPU."""
    itemsize = 8 if precision == "float64" else 4
    needed = BASE_MB // 2 + LEAST_MATRICES * itemsize * width**2 // 2**20
    if needed > limit_mb:
        raise GeometryError(
            f"A width of {width} takes {needed:,} MB of memory in {precision}, and this job may "
            f"use {limit_mb:,}. Run where there is more, or set `precision: float32`."
        )


def concepts_mb(width: int) -> int:
    """Return the memory for directions: rows of some 20,000 members, and eight d × d at once."""
    return BASE_MB + (2 * 20_000 * 4 * width + 8 * 8 * width**2) // 2**20


def tokens_mb(width: int, written: bool) -> int:
    """Return the memory for neighbours: g once more, of up to 150,000 rows, and their cosines.

    A g that is not ``written`` is in memory too.
    """
    return 2 * BASE_MB + (1 if written else 2) * 150_000 * 4 * width // 2**20


def mamba_mb(model: Mapping[str, Any], length: int) -> int:
    """Return the memory to ask for to run transformers' Mamba, ``mamba.model``, on a sequence.

    The weights of a repository are not looked at before the job; a job that was killed asks for
    more.
    """
    layers, width, state, vocabulary = (
        model[k] for k in ("layers", "width", "state", "vocabulary")
    )
    channels = 2 * width
    if model["path"]:
        shape = {**MAMBA_130M, **_config(Path(model["path"]))}
        layers, width, state, vocabulary = (shape[key] for key in MAMBA_130M)
        channels = shape.get("intermediate_size", 2 * width)
    weights = layers * 4 * width * channels + vocabulary * width
    intermediates = length * channels * (SCANNED * state + MIXED)
    # The weights also while they are loaded, and as MKL packs them for a product.
    return BASE_MB + 4 * (3 * weights + intermediates) // 2**20


def runtime_minutes(width: int) -> int:
    """Return the minutes to ask for; the eigendecomposition grows with the cube of the width."""
    return 5 + round(5 * (width / DEFAULT_WIDTH) ** 3)


def matrix_width(results: RevisionResults, checkpoint: Path | None = None) -> int:
    """Return the width of the matrix behind a revision's results, as far as it is known.

    It stands in the header of γ, or of the decomposition of another revision of the model, or in
    the config.json of a local checkpoint. Before any of these is there, it is DEFAULT_WIDTH.
    """
    if gamma := _shape(results.unembedding, "unembedding"):
        return gamma[1]
    for other in results.model.folder.glob(f"*/{results.decomposition.name}"):
        if eigenvalues := _shape(other, "eigenvalues"):
            return eigenvalues[0]
    return (_configured_width(checkpoint) if checkpoint else None) or DEFAULT_WIDTH


def _shape(file: Path, tensor: str) -> tuple[int, ...]:
    """Return a tensor's shape from a safetensors header; empty where there is none to read."""
    if not file.is_file():
        return ()
    try:
        return TensorFile(file).tensors[tensor].shape
    except (GeometryError, KeyError):
        return ()  # the job that needs the file says what is wrong


def _configured_width(checkpoint: Path) -> int | None:
    config = _config(checkpoint)
    return next((config[key] for key in WIDTH_KEYS if key in config), None)


def _config(folder: Path) -> dict[str, int]:
    """Return the whole numbers of a folder's config.json, as far as there are any."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        return {key: value for key, value in config.items() if isinstance(value, int)}
    except (OSError, ValueError, AttributeError):
        return {}
