"""PyTorch's zip archives (``pytorch_model.bin``, ``model.pt``), read by range, without PyTorch.

An archive holds one pickle, which says for each tensor in which entry of the archive its numbers
are, and one uncompressed entry per storage. The pickle is read with an unpickler that knows only
the handful of names from which tensors are built, as ``torch.load(weights_only=True)`` does, and
that builds descriptions instead of tensors: nothing in the file is ever called. This needs no
import of torch (seconds, in every job) and no private interface of it.
"""

from __future__ import annotations

import io
import math
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from unembedding.errors import GeometryError
from unembedding.safetensors_header import ITEM_BITS, LFS_POINTER
from unembedding.sources import SMALL_FILE, Source, read
from unembedding.stored import StoredTensor

READ_AHEAD = 64 * 2**10
LOCAL_HEADER = 30  # bytes before the name of a zip entry, APPNOTE.TXT 4.3.7
DEEPEST = 4  # levels of dicts around a state dict in a training checkpoint
STORAGES = {
    "DoubleStorage": "F64",
    "FloatStorage": "F32",
    "HalfStorage": "F16",
    "BFloat16Storage": "BF16",
    "LongStorage": "I64",
    "IntStorage": "I32",
    "ShortStorage": "I16",
    "CharStorage": "I8",
    "ByteStorage": "U8",
    "BoolStorage": "BOOL",
}


# Named tuples, since a pickle can set attributes of what it builds, and these have none to set.


class _Dtype(NamedTuple):
    name: str


class _Storage(NamedTuple):
    dtype: str
    key: str


class _Described(NamedTuple):
    """What the pickle says of a tensor."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


def read_archive(source: Source, file: str) -> dict[str, StoredTensor]:
    """Return the tensors of a PyTorch zip archive from its directory and pickle alone.

    Raises GeometryError for an archive that is truncated, compressed, of the format before
    PyTorch 1.6, or whose pickle asks for anything but tensors.
    """
    where = source.where(file)
    reader = io.BufferedReader(_RangeFile(source, file), READ_AHEAD)
    try:
        archive = zipfile.ZipFile(reader)
    except zipfile.BadZipFile:
        raise GeometryError(_not_an_archive(source, file)) from None
    except (ValueError, OSError, NotImplementedError) as error:
        raise GeometryError(f"{where} has a broken zip directory: {error}") from None
    entries = {entry.filename: entry for entry in archive.infolist()}
    root = next((name[: -len("data.pkl")] for name in entries if name.endswith("/data.pkl")), None)
    if root is None:
        raise GeometryError(f"{where} is a zip archive without data.pkl, so no PyTorch checkpoint.")
    if f"{root}byteorder" in entries and _entry(source, file, entries[f"{root}byteorder"]) != (
        b"little"
    ):
        raise GeometryError(f"{where} is stored in big-endian order, which is not supported.")
    state = _unpickle(_entry(source, file, entries[f"{root}data.pkl"]), where)
    tensors = {}
    for name, described in _tensors(state):
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
    if head == LFS_POINTER:
        return (
            f"{where} is a Git LFS pointer, not weights: {size} bytes of text. "
            "Fetch the real file with `git lfs pull`, or give the model as `repo:`."
        )
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
    return read(source, file, start, stop)


def _stored(
    name: str, file: str, described: _Described, entry: zipfile.ZipInfo, where: str
) -> StoredTensor:
    dtype, count = described.storage.dtype, math.prod(described.shape)
    size = ITEM_BITS.get(dtype, 0) // 8  # 0 for a type that is refused when its tensor is asked for
    if entry.compress_type != zipfile.ZIP_STORED:
        raise GeometryError(f"{where} is compressed (tensor {name!r}); PyTorch never does that.")
    contiguous = _is_row_major(described)
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
    )


def _is_row_major(described: _Described) -> bool:
    step = 1
    for length, stride in zip(reversed(described.shape), reversed(described.stride), strict=True):
        if length != 1 and stride != step:  # a stride along one element is never taken
            return False
        step *= length
    return True


def _tensors(state: Any) -> Iterator[tuple[str, _Described]]:
    """Yield (name, tensor) of a state dict, or of the one inside a training checkpoint."""
    for _ in range(DEEPEST):
        if not isinstance(state, dict):
            return
        for key, value in state.items():
            if isinstance(value, _Described) and isinstance(key, str):
                yield key, value
        state = state.get("state_dict", state.get("model"))


def _unpickle(data: bytes, where: str) -> Any:
    try:
        return _TensorUnpickler(io.BytesIO(data)).load()
    except GeometryError as error:
        raise GeometryError(f"{where}: {error}") from None
    except Exception as error:  # a broken pickle can raise anything
        raise GeometryError(f"{where} has a broken pickle: {error!r}") from None


class _TensorUnpickler(pickle.Unpickler):
    """Builds descriptions of tensors, and refuses every name that is not needed for that."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if module == "torch._utils" and name in _REBUILD:
            return _REBUILD[name]
        if module in ("torch", "torch.storage") and name.endswith("Storage"):
            return _Dtype(STORAGES.get(name, name.removesuffix("Storage")))
        if (module, name) == ("torch", "Size"):
            return tuple
        raise GeometryError(
            f"its pickle asks for {module}.{name}, which no weights need; refused. If you trust "
            "the file, load it once with torch and save its state dict as safetensors."
        )

    def persistent_load(self, pid: Any) -> _Storage:
        kind, dtype, key, *_ = pid
        if kind != "storage" or not isinstance(dtype, _Dtype):
            raise GeometryError("its pickle refers to something that is no storage; refused.")
        return _Storage(dtype.name, str(key))


def _rebuild_tensor(storage: Any, offset: Any, shape: Any, stride: Any, *_: Any) -> _Described:
    numbers = (offset, *shape, *stride)
    possible = all(type(n) is int and n >= 0 for n in numbers) and len(shape) == len(stride)
    if not possible or not isinstance(storage, _Storage):
        raise GeometryError("its pickle describes an impossible tensor; refused.")
    return _Described(storage, offset, tuple(shape), tuple(stride))


def _rebuild_parameter(tensor: _Described, *_: Any) -> _Described:
    return tensor


_REBUILD = {
    "_rebuild_tensor": _rebuild_tensor,
    "_rebuild_tensor_v2": _rebuild_tensor,
    "_rebuild_parameter": _rebuild_parameter,
}


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
