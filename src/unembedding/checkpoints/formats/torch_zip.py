"""PyTorch's zip archives (``pytorch_model.bin``, ``model.pt``), read by range, without PyTorch.

An archive holds one pickle, which says for each tensor in which entry of the archive its numbers
are (``torch_pickle``), and one uncompressed entry per storage. This needs no import of torch
(seconds, in every job) and no private interface of it.
"""

from __future__ import annotations

import io
import math
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from unembedding.checkpoints.formats.safetensors import ITEM_BITS
from unembedding.checkpoints.formats.torch_pickle import Described, read_pickle
from unembedding.checkpoints.sources import (
    LFS_POINTER,
    SMALL_FILE,
    Source,
    read,
    require_no_lfs_pointer,
)
from unembedding.checkpoints.stored_tensor import StoredTensor
from unembedding.errors import GeometryError

READ_AHEAD = 64 * 2**10
LARGEST_DIRECTORY = 16 * 2**20  # bytes, of 200,000 tensors
LOCAL_HEADER = 30  # bytes before the name of a zip entry, APPNOTE.TXT 4.3.7
DEEPEST = 4  # levels of dicts around a state dict in a training checkpoint


def read_archive(source: Source, file: str) -> dict[str, StoredTensor]:
    """Return the tensors of a PyTorch zip archive from its directory and pickle alone.

    Raises GeometryError for an archive that is truncated, compressed, of the format before
    PyTorch 1.6, or whose pickle asks for anything but tensors.
    """
    where = source.where(file)
    reader = _Bounded(_RangeFile(source, file))
    try:
        archive = zipfile.ZipFile(reader)
    except zipfile.BadZipFile:
        raise GeometryError(_not_an_archive(source, file)) from None
    except (ValueError, OSError, NotImplementedError) as error:
        raise GeometryError(f"{where} has a broken zip directory: {error}") from None
    entries = {entry.filename: entry for entry in archive.infolist()}
    root = min(entries, default="").partition("/")[0] + "/"
    if f"{root}data.pkl" not in entries:
        raise GeometryError(f"{where} is a zip archive without data.pkl, so no PyTorch checkpoint.")
    if len(entries) < len(archive.infolist()) or not all(n.startswith(root) for n in entries):
        raise GeometryError(
            f"{where} is broken: entries of its zip directory have the same name, or lie outside "
            f"{root}, and nothing says which ones count."
        )
    if f"{root}byteorder" in entries and _entry(source, file, entries[f"{root}byteorder"]) != (
        b"little"
    ):
        raise GeometryError(f"{where} is stored in big-endian order, which is not supported.")
    state = read_pickle(_entry(source, file, entries[f"{root}data.pkl"]), where)
    tensors = {}
    for name, described in _tensors(state):
        if name in tensors:
            raise GeometryError(
                f"{where} holds {name!r} twice, in different dicts, and nothing "
                "says which one counts. Save the state dict alone."
            )
        entry = entries.get(f"{root}data/{described.storage.key}")
        if entry is None:
            raise GeometryError(f"{where} lacks the storage of tensor {name!r}.")
        tensors[name] = _stored(name, file, described, entry, where)
    return tensors


def locate(source: Source, tensor: StoredTensor) -> StoredTensor:
    """Return the tensor with its offset in the file, by reading the header of its zip entry.

    Only the entry itself says how long its header is: PyTorch pads it to align the numbers.
    """
    if tensor.zip_entry is None:
        return tensor
    stop = tensor.zip_entry + LOCAL_HEADER
    inside = LOCAL_HEADER <= stop <= source.sizes()[tensor.file]
    header = read(source, tensor.file, tensor.zip_entry, stop) if inside else b""
    if header[:4] != b"PK\x03\x04":
        raise GeometryError(
            f"{source.where(tensor.file)} is broken: its directory puts tensor {tensor.name!r} at "
            f"byte {tensor.zip_entry}, where there is no zip entry."
        )
    name_length = int.from_bytes(header[26:28], "little")
    extra_length = int.from_bytes(header[28:30], "little")
    start = tensor.zip_entry + LOCAL_HEADER + name_length + extra_length + tensor.start
    return replace(tensor, start=start, zip_entry=None)


def _not_an_archive(source: Source, file: str) -> str:
    size = source.sizes()[file]
    head = read(source, file, 0, min(size, len(LFS_POINTER)))
    where = source.where(file)
    require_no_lfs_pointer(head, where, size)
    if head[:4] == b"PK\x03\x04":
        return f"{where} is truncated: a zip archive whose directory is missing after {size} bytes."
    return (
        f"{where} is no zip archive. Checkpoints from before PyTorch 1.6 are not read in place; "
        "load it once with torch and save it again, best as safetensors."
    )


def _entry(source: Source, file: str, entry: zipfile.ZipInfo) -> bytes:
    """Return the content of a small uncompressed entry."""
    where = source.where(file)
    if entry.compress_type != zipfile.ZIP_STORED:
        raise GeometryError(f"{where} is compressed ({entry.filename}); PyTorch never does that.")
    if entry.file_size > SMALL_FILE:
        raise GeometryError(f"{where} claims {entry.file_size} bytes for {entry.filename}.")
    described = StoredTensor(entry.filename, file, "U8", (), 0, zip_entry=entry.header_offset)
    start = locate(source, described).start
    stop = start + entry.file_size
    if stop > source.sizes()[file]:
        raise GeometryError(f"{where} is broken: {entry.filename} ends behind the end of the file.")
    content = read(source, file, start, stop)
    if _checksum(entry) not in (None, zlib.crc32(content)):
        raise GeometryError(damaged(where, entry.filename))
    return content


def damaged(where: str, what: str) -> str:
    """Return the message for bytes that differ from the checksum that their file gives."""
    return (
        f"{where}: the bytes of {what} are not those of its checksum (CRC-32). They were damaged "
        "on the way, or are so where they come from; fetch them again."
    )


def _checksum(entry: zipfile.ZipInfo) -> int | None:
    """Return an entry's CRC-32; PyTorch writes 0 where it was told to compute none."""
    return entry.CRC or None


def _stored(
    name: str, file: str, described: Described, entry: zipfile.ZipInfo, where: str
) -> StoredTensor:
    dtype, count = described.storage.dtype, math.prod(described.shape)
    size = ITEM_BITS.get(dtype, 0) // 8  # 0 for a type that is refused when its tensor is asked for
    if entry.compress_type != zipfile.ZIP_STORED:
        raise GeometryError(f"{where} is compressed (tensor {name!r}); PyTorch never does that.")
    if size and described.storage.length * size != entry.file_size:
        raise GeometryError(
            f"{where} is broken: the storage of tensor {name!r} has {entry.file_size} bytes; "
            f"{described.storage.length * size} were expected."
        )
    contiguous = _is_row_major(described)
    whole = described.offset == 0 and count * size == entry.file_size
    if contiguous and (described.offset + count) * size > entry.file_size:
        raise GeometryError(
            f"{where} is broken: tensor {name!r} needs {(described.offset + count) * size} bytes "
            f"of a storage that has {entry.file_size}."
        )
    return StoredTensor(
        name,
        file,
        dtype,
        described.shape,
        described.offset * size,
        entry.header_offset,
        contiguous,
        _checksum(entry) if whole else None,
    )


def _is_row_major(described: Described) -> bool:
    step = 1
    for length, stride in zip(reversed(described.shape), reversed(described.stride), strict=True):
        if length != 1 and stride != step:  # a stride along one element is never taken
            return False
        step *= length
    return True


def _tensors(state: Any, depth: int = DEEPEST) -> Iterator[tuple[str, Described]]:
    """Yield (name, tensor) of a state dict, and of those inside a training checkpoint."""
    if not (depth and isinstance(state, dict)):
        return
    for key, value in state.items():
        if isinstance(value, Described) and isinstance(key, str):
            yield key, value
    for key in ("state_dict", "model"):
        yield from _tensors(state.get(key), depth - 1)


class _Bounded(io.BufferedReader):
    """A reader that sets no memory aside for a directory no real archive has."""

    def __init__(self, file: _RangeFile) -> None:
        super().__init__(file, READ_AHEAD)
        self.end = file.size

    def read(self, size: int | None = -1) -> bytes:
        if size is None or size < 0:
            size = max(0, self.end - self.tell())
        if size > LARGEST_DIRECTORY:
            raise OSError(f"it claims {size} bytes")
        return super().read(size)


class _RangeFile(io.RawIOBase):
    """A file of a source as a seekable stream, for zipfile."""

    def __init__(self, source: Source, file: str) -> None:
        self.source, self.file = source, file
        self.size, self.position = source.sizes()[file], 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self.position, io.SEEK_END: self.size}[whence]
        if base + offset < 0:
            raise OSError("seek before the start of the file")
        self.position = base + offset
        return self.position

    def readinto(self, buffer: Any) -> int:
        stop = min(self.position + len(buffer), self.size)
        data = read(self.source, self.file, self.position, stop) if stop > self.position else b""
        buffer[: len(data)] = data
        self.position += len(data)
        return len(data)
