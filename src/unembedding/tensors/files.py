"""safetensors files written row by row and read by blocks, so that no matrix is in memory whole."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from unembedding.checkpoints.dtypes import STORAGE, widen
from unembedding.checkpoints.formats.safetensors import read_header
from unembedding.checkpoints.sources import LocalFile
from unembedding.checkpoints.stored_tensor import StoredTensor
from unembedding.errors import GeometryError
from unembedding.files import CHECKSUM, checksum, require_room
from unembedding.tensors.digests import (
    ALGORITHMS,
    CURRENT,
    DIGEST,
    LENGTH,
    Hash,
    algorithm_of,
    named,
    written,
)
from unembedding.tensors.uncached import ALIGNMENT, UncachedFile

ROOM_FOR_METADATA = 128  # bytes, for what is known only when all is written
# Of a block of rows, as float64: enough for BLAS's full speed. From 64 MB on malloc gives a float32
# block back to the system each time, and the pages of the next one cost more than reading it.
BLOCK_BYTES = 48 * 2**20
LARGE = 2**26  # bytes of a file for which the page cache is worth avoiding
SAFETENSORS = {"float64": "F64", "float32": "F32"}


class Beside:
    """Runs calls one after another in a thread, beside the caller, who is at most one call ahead.

    Hashing and writing keep one core busy; meanwhile the caller has the others.
    """

    def __init__(self) -> None:
        self.thread = ThreadPoolExecutor(1)
        self.running: Future[object] | None = None

    def run(self, call: Callable[[Any], object], argument: object) -> None:
        """Begin a call once the one before is done; raises what that one raised."""
        self.wait()
        self.running = self.thread.submit(call, argument)

    def wait(self) -> None:
        """Wait for the last call; raises what it raised."""
        if self.running is not None:
            running, self.running = self.running, None
            running.result()


class TensorWriter:
    """Writes tensors one after another into an open file, whose shapes are known beforehand."""

    def __init__(
        self,
        file: BinaryIO,
        tensors: Mapping[str, tuple[str, tuple[int, ...]]],
        metadata: Mapping[str, str],
        uncached: bool = False,
    ) -> None:
        """``tensors`` maps names to (safetensors dtype, shape), in the order of writing.

        ``uncached`` writes data that nobody reads soon past the page cache, if they are large.
        """
        self.file, self.metadata = file, dict(metadata)
        self.written = self.expected = 0
        self.entries: dict[str, object] = {}
        self.tensors = dict(tensors)
        self.hashed, self.beside = ALGORITHMS[CURRENT](), Beside()
        for name, (dtype, shape) in tensors.items():
            stop = self.expected + math.prod(shape) * STORAGE[dtype].itemsize
            offsets = [self.expected, stop]
            self.entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": offsets}
            self.expected = stop
        # The header comes first in the file and is known last, so its place is kept free.
        room = len(self._header({DIGEST: "0" * LENGTH, CHECKSUM: "0" * 64})) + ROOM_FOR_METADATA
        uncached &= self.expected >= LARGE
        start = 8 + room
        start += -start % (ALIGNMENT if uncached else 8)
        self.header_size = start - 8
        require_room(file, start + self.expected)
        file.write(b"\0" * start)
        file.flush()
        self.uncached = UncachedFile(file, start) if uncached else None

    @property
    def digest(self) -> str:
        """The digest of what has been written so far."""
        self.beside.wait()
        return named(self.hashed)

    def write(self, data: bytes | np.ndarray) -> None:
        """Append bytes, or an array's elements in row-major order.

        They must stay as they are until the next call, which also raises what went wrong here.
        """
        view = memoryview(np.ascontiguousarray(data).data if isinstance(data, np.ndarray) else data)
        view = view.cast("B")
        self.beside.run(self._append, view)
        self.written += view.nbytes

    def _append(self, view: memoryview) -> None:
        (self.uncached or self.file).write(view)
        self.hashed.update(view)

    def close(self, metadata: Mapping[str, str] | None = None) -> None:
        """Write the header, with the digest and what else is known only now."""
        if self.written != self.expected:
            raise RuntimeError(f"{self.written} bytes were written of {self.expected}")
        self.beside.wait()
        if self.uncached:
            self.uncached.flush()
        late = {**(metadata or {}), DIGEST: self.digest}
        described = [(name, *tensor) for name, tensor in self.tensors.items()]
        header = self._header({**late, CHECKSUM: _of_header(described, {**self.metadata, **late})})
        self.file.seek(0)
        self.file.write(self.header_size.to_bytes(8, "little") + header.ljust(self.header_size))

    def _header(self, metadata: Mapping[str, str]) -> bytes:
        entries = {"__metadata__": {**self.metadata, **metadata}, **self.entries}
        return json.dumps(entries, ensure_ascii=False).encode()


class TensorFile:
    """A safetensors file on this machine, read by blocks of rows."""

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise GeometryError(f"There is no file {path}.")
        self.path = path
        try:
            self.tensors, self.metadata = read_header(LocalFile(path), path.name)
        except GeometryError as error:
            raise GeometryError(f"{error} Delete it and run again.") from None

    def tensor(self, name: str, ndim: int) -> StoredTensor:
        """Return a tensor's place, or raise GeometryError where it is absent or of other rank."""
        if name not in self.tensors:
            raise GeometryError(f"{self.path} holds no tensor {name!r}.")
        tensor = self.tensors[name]
        if len(tensor.shape) != ndim:
            raise GeometryError(
                f"{self.path}: tensor {name!r} has the shape {list(tensor.shape)}; "
                f"{ndim} dimensions were expected."
            )
        return tensor

    def read(self, name: str, ndim: int) -> np.ndarray:
        """Return a whole tensor, as it is stored (bfloat16 and float16 widened)."""
        tensor = self.tensor(name, ndim)
        stored = self._stored(tensor, 0, math.prod(tensor.shape))
        return widen(stored, tensor.dtype).reshape(tensor.shape)

    def blocks(self, name: str, rows: int | None = None) -> Iterator[np.ndarray]:
        """Yield blocks of the first ``rows`` rows of a matrix, widened to float32 (or float64)."""
        tensor = self.tensor(name, 2)
        for stored in self._stored_blocks(tensor, tensor.shape[0] if rows is None else rows):
            yield widen(stored, tensor.dtype)

    def rows(self, name: str, indices: Iterable[int]) -> np.ndarray:
        """Return rows of a matrix (n × d), widened to float32 (or float64), not verified.

        Raises GeometryError where the matrix has no such row.
        """
        tensor, chosen = self.tensor(name, 2), np.asarray(list(indices), np.int64)
        height, width = tensor.shape
        if len(chosen) and not 0 <= chosen.min() <= chosen.max() < height:
            raise GeometryError(f"{self.path}: tensor {name!r} has {height} rows, from 0 on.")
        mapped = np.memmap(self.path, np.uint8, "r")
        if len(mapped) < tensor.stop:
            raise GeometryError(f"{self.path} ends in the middle of tensor {name!r}.")
        stored = mapped[tensor.start : tensor.stop].view(STORAGE[tensor.dtype])
        return widen(stored.reshape(height, width)[chosen], tensor.dtype)

    def verified_blocks(self, name: str, rows: int) -> Iterator[np.ndarray]:
        """Yield the ``blocks`` of a file's only tensor, and check the file against its digests.

        Raises GeometryError before the first block where the header is damaged, and after the last
        one where the bytes are: do not keep what was made of them.
        """
        self.verify_header()
        tensor, hashed, beside = self.tensor(name, 2), self._hash(), Beside()
        for stored in self._stored_blocks(tensor, rows):
            beside.run(hashed.update, stored)
            yield widen(stored, tensor.dtype)
        beside.wait()
        self._verify_data(hashed, tensor.start + tensor.nbytes // tensor.shape[0] * rows)

    def _stored_blocks(self, tensor: StoredTensor, rows: int) -> Iterator[np.ndarray]:
        width = tensor.shape[1]
        step = block_rows(width)
        for first in range(0, rows, step):
            stop = min(first + step, rows)
            yield self._stored(tensor, first * width, stop * width).reshape(-1, width)

    def _stored(self, tensor: StoredTensor, first: int, stop: int) -> np.ndarray:
        dtype = STORAGE[tensor.dtype]
        with self.path.open("rb") as file:
            file.seek(tensor.start + first * dtype.itemsize)
            stored = np.fromfile(file, dtype, stop - first)
        if len(stored) != stop - first:
            raise GeometryError(f"{self.path} ends in the middle of tensor {tensor.name!r}.")
        return stored

    def verify(self) -> None:
        """Check the file's bytes against its own digests; raise GeometryError where they differ."""
        self.verify_header()
        start = min((t.start for t in self.tensors.values()), default=0)
        self._verify_data(self._hash(), start)

    def verify_header(self) -> None:
        """Check shapes and metadata against the header's checksum; raise GeometryError."""
        tensors = sorted(self.tensors.values(), key=lambda t: t.start)
        described = [(t.name, t.dtype, t.shape) for t in tensors]
        metadata = {k: v for k, v in self.metadata.items() if k != CHECKSUM}
        if self.metadata.get(CHECKSUM) != _of_header(described, metadata):
            raise GeometryError(
                f"{self.path} is damaged: its header is not what was written. "
                "Delete it and run again."
            )

    @property
    def digest(self) -> str:
        """The digest of the data that stands in the header, with the name of its algorithm."""
        return written(self.metadata)

    def _hash(self) -> Hash:
        return ALGORITHMS[algorithm_of(self.digest)]()

    def _verify_data(self, hashed: Hash, start: int) -> None:
        """Check the bytes of all tensors, of which ``hashed`` holds those before ``start``."""
        with self.path.open("rb") as file:
            file.seek(start)
            while chunk := file.read(2**20):
                hashed.update(chunk)
        found = named(hashed, algorithm_of(self.digest))
        if found != self.digest:
            raise GeometryError(
                f"{self.path} is damaged: its bytes have the digest {found}, and {self.digest} was "
                "written. Delete it and run again."
            )


def _of_header(
    tensors: Iterable[tuple[str, str, tuple[int, ...]]], metadata: Mapping[str, str]
) -> str:
    """Return the checksum of a header: the tensors in their order in the file, and the metadata."""
    return checksum([list(tensors), dict(metadata)])


def block_rows(width: int) -> int:
    """Return how many rows of ``width`` numbers make a block; the last block may be smaller."""
    return max(1, BLOCK_BYTES // (8 * width))
