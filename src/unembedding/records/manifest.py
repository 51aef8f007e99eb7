"""The digests of all results, manifest.tsv: written when a run ends, compared by verification."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from tqdm import tqdm

from unembedding.errors import GeometryError, UserError
from unembedding.files import CHECKSUM, write_text
from unembedding.results import GeometryResults
from unembedding.tensors.files import TensorFile

HEADER = "file\tdigest"


def write_manifest(results: GeometryResults, keep_unembedding: bool) -> None:
    """Write the digest of every file below a folder of results.

    A file of tensors is known by the checksum in its header, which stands for its data: hashing
    these again would take as long as computing them.
    """
    lines = [HEADER]
    for path in sorted(results.folder.rglob("*")):
        passing = not keep_unembedding and path.name == "unembedding.safetensors"
        hidden = path.name.startswith(".") or path == results.manifest
        if path.is_file() and not (passing or hidden):
            lines.append(f"{path.relative_to(results.folder)}\t{_digest(path)}")
    write_text(results.manifest, "\n".join(lines) + "\n")


def differences(results: GeometryResults) -> Iterator[str]:
    """Yield each file that is no longer what it was when the last run ended.

    Reads all data, those of g too. Raises UserError where there is no manifest to compare with.
    """
    if not results.manifest.is_file():
        raise UserError(
            f"There is no {results.manifest}, which a run writes when it ends. Give the folder of "
            "the models, or run the workflow to its end."
        )
    lines = results.manifest.read_text(encoding="utf-8").splitlines()
    if lines[:1] != [HEADER] or not all(line.count("\t") == 1 for line in lines):
        raise UserError(f"{results.manifest} is damaged. Run the workflow again.")
    for line in tqdm(lines[1:], unit=" files", disable=None):
        name, _, digest = line.partition("\t")
        path = results.folder / name
        if not path.is_file():
            yield f"{path} is absent."
        elif _digest(path) != digest:
            yield f"{path} is not what was written: another file lies there, or it was changed."
        elif path.suffix == ".safetensors":
            try:
                TensorFile(path).verify()
            except GeometryError as error:
                yield str(error)


def _digest(path: Path) -> str:
    if path.suffix == ".safetensors":
        try:
            return TensorFile(path).metadata.get(CHECKSUM, "")
        except GeometryError:
            return "damaged"
    return hashlib.sha256(path.read_bytes()).hexdigest()
