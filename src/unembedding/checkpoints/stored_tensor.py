"""A tensor as it lies in a checkpoint file: where its bytes are and what they mean."""

from __future__ import annotations

import math
from dataclasses import dataclass

from unembedding.checkpoints.dtypes import storage_dtype


@dataclass(frozen=True)
class StoredTensor:
    """A contiguous row-major tensor inside a file."""

    name: str
    file: str
    dtype: str
    """safetensors name of the type: F32, F16, BF16, …"""
    shape: tuple[int, ...]
    start: int
    """Offset of its first byte in the file, or behind the header of its zip entry."""
    zip_entry: int | None = None
    """Offset of that header, until ``torch_zip.locate`` has read how long it is."""
    contiguous: bool = True
    crc32: int | None = None
    """Checksum that the file gives for exactly these bytes, where it does."""

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * storage_dtype(self.dtype, self.name).itemsize

    @property
    def stop(self) -> int:
        return self.start + self.nbytes
