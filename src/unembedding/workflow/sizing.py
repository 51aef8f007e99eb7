"""What to ask a cluster for: the memory and time of a job, from the width of its matrix."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from shutil import which

from unembedding.backends.registry import BACKENDS
from unembedding.errors import GeometryError
from unembedding.results import RevisionResults
from unembedding.tensors.files import TensorFile

DEFAULT_WIDTH = 4096  # OLMo-7B's; for a model of which nothing has been fetched yet
WIDTH_KEYS = ("hidden_size", "d_model", "n_embd")  # in config.json: most; OLMo, Mamba; GPT-2
MATRICES = 6  # d × d in float64, held at once: LAPACK's workspace and its input and output
BASE_MB = 1000  # Snakemake 265, imports 100, blocks of γ 200, and room
GPU_BASE_MB = 4000  # the CUDA libraries take 1 to 3 GB of the host's memory
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


def concepts_mb(width: int) -> int:
    """Return the memory for directions: rows of some 20,000 members, and four d × d at once."""
    return BASE_MB + (2 * 20_000 * 4 * width + 4 * 8 * width**2) // 2**20


def tokens_mb(width: int) -> int:
    """Return the memory for neighbours: g once more, of up to 150,000 rows, and their cosines."""
    return 2 * BASE_MB + 150_000 * 4 * width // 2**20


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
    try:
        config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
        return next(config[key] for key in WIDTH_KEYS if isinstance(config.get(key), int))
    except (OSError, ValueError, AttributeError, StopIteration):
        return None
