"""The file formats of weights: a new one is a row here, and a file that reads it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unembedding.checkpoints.sources import Source
    from unembedding.checkpoints.stored_tensor import StoredTensor


@dataclass(frozen=True)
class Format:
    """A file format: its files, the index that lists its shards, and its reader."""

    single: str
    index: str
    suffix: str
    read: Callable[[Source, str], dict[str, StoredTensor]]


def _safetensors(source: Source, file: str) -> dict[str, StoredTensor]:
    from unembedding.checkpoints.formats.safetensors import read_header

    return read_header(source, file)[0]


def _torch(source: Source, file: str) -> dict[str, StoredTensor]:
    from unembedding.checkpoints.formats.torch_zip import read_archive

    return read_archive(source, file)


# In order of preference: a repository often holds the same weights in several.
FORMATS = (
    Format("model.safetensors", "model.safetensors.index.json", ".safetensors", _safetensors),
    Format("pytorch_model.bin", "pytorch_model.bin.index.json", ".bin", _torch),
    Format("model.pt", "model.pt.index.json", ".pt", _torch),
)
NO_WEIGHTS = (
    "optim",
    "scheduler",
    "scaler",
    "training_args",
    "train.",
    "rng_state",
    "random_states",
)
"""How the names of a training state's other files begin."""


def is_weights(name: str) -> bool:
    """Return whether a file of this name holds weights."""
    suffixes = tuple(fmt.suffix for fmt in FORMATS)
    return name.endswith(suffixes) and not name.startswith(NO_WEIGHTS)


def is_input(name: str) -> bool:
    """Return whether what is read of a checkpoint may depend on a file of this name."""
    return is_weights(name) or name.endswith(".json")
