"""Whether results are as they were written: ``python -m unembedding.records.verification FOLDER``.

Each stage verifies what it reads. Nothing else reads g again, or results that were copied.
"""

from __future__ import annotations

import sys
from pathlib import Path

from unembedding.errors import UserError
from unembedding.records.manifest import differences
from unembedding.results import GEOMETRY, GeometryResults


def main(arguments: list[str]) -> str:
    """Return what to say of a folder of results that is whole; raise UserError for another."""
    results = GeometryResults(Path(*arguments)) if len(arguments) == 1 else GEOMETRY
    if found := list(differences(results)):
        raise UserError("\n".join(found))
    return f"Everything in {results.folder} is as it was written."


if __name__ == "__main__":
    try:
        print(main(sys.argv[1:]))
    except UserError as error:
        sys.exit(f"Error: {error}")
