"""The safetensors header: eight bytes of length, then JSON; read by range, without the weights.

The format is described at https://github.com/huggingface/safetensors#format. The library itself
opens only local files and, for NumPy, no bfloat16, which is why the header is read here.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

from unembedding.checkpoints.sources import LFS_POINTER, Source, read, require_no_lfs_pointer
from unembedding.checkpoints.stored_tensor import StoredTensor
from unembedding.errors import GeometryError

MAX_HEADER = 16 * 2**20  # bytes, of 200,000 tensors, and up to 350 MB once parsed
MOST_DIMENSIONS = 64  # as many as PyTorch has
LONGEST = 2**63  # no file has more bytes
ITEM_BITS = {
    "F64": 64,
    "F32": 32,
    "F16": 16,
    "BF16": 16,
    "I64": 64,
    "I32": 32,
    "I16": 16,
    "I8": 8,
    "U64": 64,
    "U32": 32,
    "U16": 16,
    "U8": 8,
    "BOOL": 8,
    "F8_E4M3": 8,
    "F8_E5M2": 8,
    "C64": 64,
}


def read_header(source: Source, file: str) -> tuple[dict[str, StoredTensor], dict[str, str]]:
    """Return the tensors of a safetensors file, and its metadata, from its header alone.

    Raises GeometryError, naming the file and the expected and actual bytes, for anything that is
    not a well-formed header.
    """
    where, size = source.where(file), source.sizes()[file]
    prefix = read(source, file, 0, min(size, len(LFS_POINTER)))
    require_no_lfs_pointer(prefix, where, size)
    if size < 8:
        raise GeometryError(f"{where} has {size} bytes; a safetensors file has at least 8.")
    length = int.from_bytes(prefix[:8], "little")
    if length > size - 8:
        raise GeometryError(
            f"{where} is truncated or no safetensors file: it announces a header of {length} bytes "
            f"and has {size} bytes in all."
        )
    if length > MAX_HEADER:
        raise GeometryError(
            f"{where} has a header of {length} bytes; up to {MAX_HEADER} are read, which list "
            "200,000 tensors. Split the file, or ask for a larger limit."
        )
    try:
        header = json.loads(read(source, file, 8, 8 + length), object_pairs_hook=_unique)
        metadata = dict((header.pop("__metadata__", None) or {}).items())
        tensors = {n: _tensor(n, entry, file, 8 + length) for n, entry in header.items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise GeometryError(f"{where} has a broken safetensors header: {error}") from None
    for name, entry in header.items():
        _check(tensors[name], entry, size - 8 - length, where)
    _check_complete(header, size - 8 - length, where)
    return tensors, {str(k): str(v) for k, v in metadata.items()}


def _unique(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    for key, value in pairs:
        if key in content:
            raise ValueError(f"{key!r} stands twice")
        content[key] = value
    return content


def _tensor(name: str, entry: Mapping[str, Any], file: str, data_start: int) -> StoredTensor:
    shape = tuple(entry["shape"])
    if not is_shape(shape):
        raise ValueError(f"tensor {name!r} has the shape {str(list(shape))[:200]}")
    start, stop = entry["data_offsets"]
    if type(start) is not int or type(stop) is not int:
        raise ValueError(f"tensor {name!r} has the offsets {entry['data_offsets']}")
    return StoredTensor(name, file, str(entry["dtype"]), shape, data_start + start)


def is_shape(shape: tuple[Any, ...]) -> bool:
    """Return whether these can be lengths, whose product is then quickly formed."""
    return len(shape) <= MOST_DIMENSIONS and all(type(n) is int and 0 <= n < LONGEST for n in shape)


def _check(tensor: StoredTensor, entry: Mapping[str, Any], data_size: int, where: str) -> None:
    start, stop = entry["data_offsets"]
    if not 0 <= start <= stop:
        raise GeometryError(
            f"{where} is broken: tensor {tensor.name!r} lies from byte {start} to {stop}."
        )
    if stop > data_size:
        raise GeometryError(
            f"{where} is truncated: tensor {tensor.name!r} ends at byte {stop} of the data, and "
            f"the file holds {data_size} bytes of data. Fetch it again."
        )
    bits = ITEM_BITS.get(tensor.dtype)
    if bits and math.prod(tensor.shape) * bits != 8 * (stop - start):
        raise GeometryError(
            f"{where} is broken: tensor {tensor.name!r} of shape {list(tensor.shape)} and type "
            f"{tensor.dtype} cannot have {stop - start} bytes."
        )


def _check_complete(header: Mapping[str, Any], data_size: int, where: str) -> None:
    """Raise unless the tensors cover the data, each byte once, as the format demands."""
    position, before = 0, "the header"
    for start, stop, name in sorted((*entry["data_offsets"], n) for n, entry in header.items()):
        if start < position:
            raise GeometryError(f"{where} is broken: tensors {before!r} and {name!r} overlap.")
        if start > position:
            raise GeometryError(
                f"{where} is broken: {start - position} bytes before {name!r} are no tensor's."
            )
        position, before = stop, name
    if position < data_size:
        raise GeometryError(
            f"{where} is broken: its last {data_size - position} bytes are no tensor's."
        )
