"""What to ask a cluster for: the memory and time of a job, from the width of its matrix.

Snakemake evaluates these while it plans, so nothing here imports more than the standard library.
"""

from __future__ import annotations

import json
from pathlib import Path

DEFAULT_WIDTH = 4096  # OLMo-7B's; for a model of which nothing has been fetched yet
WIDTH_KEYS = ("hidden_size", "d_model", "n_embd")  # in config.json: most; OLMo, Mamba; GPT-2
MATRICES = 6  # d × d in float64, held at once: LAPACK's workspace and its input and output
BASE_MB = 1000  # Snakemake 265, imports 100, blocks of γ 200, and room
GPU_BASE_MB = 4000  # the CUDA libraries take 1 to 3 GB of the host's memory
FETCH_MB = 500
FETCH_MINUTES = 10


def memory_mb(width: int, on_gpu: bool = False) -> int:
    """Return the memory to ask for, which depends on the width and not on the number of tokens."""
    return (GPU_BASE_MB if on_gpu else BASE_MB) + MATRICES * 8 * width**2 // 2**20


def runtime_minutes(width: int) -> int:
    """Return the minutes to ask for; the eigendecomposition grows with the cube of the width."""
    return 5 + round(5 * (width / DEFAULT_WIDTH) ** 3)


def matrix_width(revision: Path, checkpoint: Path | None = None) -> int:
    """Return the width of the matrix behind a revision's folder of results, as far as it is known.

    It stands in the header of γ, or of the decomposition of another revision of the model, or in
    the config.json of a local checkpoint. Before any of these is there, it is DEFAULT_WIDTH.
    """
    gamma = _shape(revision / "unembedding.safetensors", "unembedding")
    if gamma:
        return gamma[1]
    for other in revision.parent.glob("*/decomposition.safetensors"):
        eigenvalues = _shape(other, "eigenvalues")
        if eigenvalues:
            return eigenvalues[0]
    return (_configured_width(checkpoint) if checkpoint else None) or DEFAULT_WIDTH


def _shape(file: Path, tensor: str) -> list[int]:
    """Return a tensor's shape from a safetensors header; empty where there is none to read."""
    try:
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            return json.loads(stream.read(length))[tensor]["shape"]
    except (OSError, ValueError, KeyError, MemoryError):
        return []  # the job that needs the file says what is wrong


def _configured_width(checkpoint: Path) -> int | None:
    try:
        config = json.loads((checkpoint / "config.json").read_text())
        return next(config[key] for key in WIDTH_KEYS if isinstance(config.get(key), int))
    except (OSError, ValueError, AttributeError, StopIteration):
        return None
