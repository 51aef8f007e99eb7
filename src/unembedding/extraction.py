"""Fetching γ: the bytes of one tensor out of a checkpoint, copied as they are."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from unembedding.checkpoints.checkpoint import Checkpoint
from unembedding.checkpoints.dtypes import storage_dtype
from unembedding.checkpoints.formats.torch_zip import damaged
from unembedding.checkpoints.revisions import local_checkpoint
from unembedding.checkpoints.sources import LocalFolder, Source
from unembedding.checkpoints.stored_tensor import StoredTensor
from unembedding.errors import GeometryError, printable
from unembedding.files import replacing
from unembedding.records.stages import Extraction
from unembedding.tensors.digests import ALGORITHMS, CURRENT, named
from unembedding.tensors.files import TensorFile, TensorWriter

UNEMBEDDING = "unembedding"


def open_source(
    path: Path | None,
    repo: str | None,
    revision: str,
    commit: str | None,
    download: str,
    subfolder: str | None = None,
) -> Source:
    """Return where a revision's files are: a local folder, the Hub, or the Hub's cache.

    ``download`` is ``tensor`` (byte ranges) or ``checkpoint`` (the whole snapshot, cached).
    ``commit`` is None for a revision that is not pinned, which raises GeometryError. ``subfolder``
    is the checkpoint's place in a repository.
    """
    if commit is None:
        raise GeometryError(
            f"{path or repo}: the configuration asks for no revision {revision!r}. "
            "Add it to `revisions:`."
        )
    if path is not None:
        return LocalFolder(local_checkpoint(path, revision))
    from unembedding.hub.ranges import HubRepository
    from unembedding.hub.snapshot import download_snapshot

    assert repo is not None
    repository = HubRepository(repo, revision, commit, subfolder)
    return download_snapshot(repository) if download == "checkpoint" else repository


def extract_unembedding(
    source: Source, target: Path, provenance: dict[str, str], exact: str | None = None
) -> Extraction:
    """Copy the unembedding of a checkpoint, bit for bit, into ``target``.

    ``provenance`` (repo, revision, commit) joins the file's metadata. Returns the facts about
    the extraction. Raises GeometryError where there is no unembedding or it cannot be read.
    """
    checkpoint = Checkpoint(source)
    choice = checkpoint.choose(exact)
    tensor = checkpoint.find(choice.tensor)
    _require_matrix(tensor, source)
    tied, warnings = choice.tied, [choice.warning] if choice.warning else []
    with replacing(target) as file:
        metadata = {**provenance, "tensor": tensor.name, "file": tensor.file}
        writer = TensorWriter(file, {UNEMBEDDING: (tensor.dtype, tensor.shape)}, metadata)
        for chunk in _stream(source, tensor):
            writer.write(chunk)
        if choice.twin is not None:
            twin = checkpoint.find(choice.twin)
            tied = _same_bytes(source, tensor, writer.digest, twin)
            if not tied:
                warnings.append(
                    f"config.json ties the embeddings, yet {tensor.name!r} and {twin.name!r} "
                    "differ; the head was taken."
                )
        verified = tensor.file in source.verified
        writer.close({"tied": str(tied).lower()})
    return Extraction(
        **metadata,
        tied=tied,
        dtype=tensor.dtype,
        shape=list(tensor.shape),
        digest=writer.digest,
        verified=verified,
        vocabulary=_vocabulary(checkpoint.config),
        bytes_fetched=source.bytes_fetched,
        warnings=warnings + source.warnings,
    )


def read_unembedding(file: Path | str) -> np.ndarray:
    """Return γ (V × d) of an ``unembedding.safetensors``, bfloat16 and float16 widened to float32.

    Every value is the stored one: NumPy, and so ``safetensors.numpy``, has no bfloat16. float64
    stays. Raises GeometryError for a file that is none.
    """
    return TensorFile(Path(file)).read(UNEMBEDDING, 2)


def matrix_shape(unembedding: Path) -> tuple[int, ...]:
    """Return rows and width of an extracted γ, from its header alone."""
    return TensorFile(unembedding).tensor(UNEMBEDDING, 2).shape


def _require_matrix(tensor: StoredTensor, source: Source) -> None:
    where = f"{source.where(tensor.file)}: tensor {tensor.name!r}"
    storage_dtype(tensor.dtype, f"{source.where(tensor.file)}: {tensor.name}")
    if len(tensor.shape) != 2 or 0 in tensor.shape:
        raise GeometryError(
            f"{where} has the shape {list(tensor.shape)}; an unembedding is a matrix of tokens × "
            "width. Name the right one with `unembedding:` in the configuration."
        )
    if not tensor.contiguous:
        raise GeometryError(
            f"{where} is stored transposed or with gaps. Load it once with torch, and save it "
            "again after `.contiguous()`."
        )
    size = source.sizes()[tensor.file]
    if tensor.stop > size:
        raise GeometryError(
            f"{where} ends at byte {tensor.stop}, and the file has {size} bytes: it is truncated."
        )


def _stream(source: Source, tensor: StoredTensor) -> Iterator[bytes]:
    """Yield the bytes of a tensor, with a progress bar where someone watches.

    Raises GeometryError behind the last one, where the file has a checksum and they do not fit it.
    """
    found = 0
    bar = tqdm(
        total=tensor.nbytes,
        desc=printable(source.where(tensor.file)),
        unit="B",
        unit_scale=True,
        delay=1,
        disable=None,  # off unless on a terminal
        file=sys.__stderr__,  # the terminal, also where sys.stderr is a log
    )
    with bar:
        for chunk in source.stream(tensor.file, tensor.start, tensor.stop):
            yield chunk
            bar.update(len(chunk))
            if tensor.crc32 is not None:
                found = zlib.crc32(chunk, found)
    if tensor.crc32 not in (None, found):
        raise GeometryError(damaged(source.where(tensor.file), f"tensor {tensor.name!r}"))


def _same_bytes(source: Source, tensor: StoredTensor, written: str, twin: StoredTensor) -> bool:
    if (twin.dtype, twin.shape) != (tensor.dtype, tensor.shape):
        return False
    if (twin.file, twin.start) == (tensor.file, tensor.start):  # one storage under two names
        return True
    hashed = ALGORITHMS[CURRENT]()
    for chunk in _stream(source, twin):
        hashed.update(chunk)
    return named(hashed) == written


def _vocabulary(config: dict[str, Any]) -> int | None:
    """Return how many tokens config.json says there are: fewer than rows where rows are padded."""
    size = config.get("vocab_size")
    return size if type(size) is int and 0 < size < 2**63 else None
