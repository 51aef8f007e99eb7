"""Whether results are as they were written: ``python -m unembedding.records.verification FOLDER``.

Each stage verifies what it reads. Nothing else reads g again, or results that were copied.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from tqdm import tqdm

from unembedding.errors import UserError
from unembedding.files import read_facts
from unembedding.records.geometry import finished, gather
from unembedding.tensors.files import TensorFile


def verify(geometry: Path) -> None:
    """Read all results of a checkpoint; raise UserError where they are not what was written.

    That is one of them has changed, or is of another checkpoint. What is absent is not missed.
    """
    gather([geometry])
    for facts in geometry.parent.glob("profiles/*.json"):
        read_facts(facts)
    for file in geometry.parent.glob("*.safetensors"):
        TensorFile(file).verify()


def damages(geometries: list[Path]) -> Iterator[str]:
    """Yield what ``verify`` says of each checkpoint that it refuses."""
    for path in tqdm(geometries, unit=" checkpoints", disable=None):
        try:
            verify(path)
        except UserError as error:
            yield str(error)


def main(results: Path) -> str:
    """Return what to say of a folder of results that is whole; raise UserError for another."""
    geometries = finished(results)
    if not geometries:
        raise UserError(f"{results} holds no finished checkpoint. Give the folder of the models.")
    if found := list(damages(geometries)):
        raise UserError("\n".join(found))
    return f"All {len(geometries)} finished checkpoints are as they were written."


if __name__ == "__main__":
    try:
        print(main(Path(sys.argv[1])))
    except UserError as error:
        sys.exit(f"Error: {error}")
