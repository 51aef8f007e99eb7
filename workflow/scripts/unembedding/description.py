"""What is recorded of one checkpoint (geometry.json), and of all (summary.csv)."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from files import read_json_file
from unembedding.revisions import parse_progress

# The columns of summary.csv: where each value stands in geometry.json.
COLUMNS: dict[str, tuple[str, ...]] = {
    "model": ("model",),
    "revision": ("revision",),
    "commit": ("commit",),
    "stage": ("training", "stage"),
    "step": ("training", "step"),
    "tokens": ("training", "tokens"),
    "rows": ("rows",),
    "matrix_rows": ("matrix_rows",),
    "width": ("width",),
    "dtype": ("unembedding", "dtype"),
    "tied": ("unembedding", "tied"),
    "rank": ("rank",),
    "condition_number": ("condition_number",),
    "effective_rank": ("effective_rank",),
    "whitening_residual": ("whitening_residual",),
    "backend": ("backend",),
    "precision": ("precision",),
    "seconds_extract": ("seconds", "extract"),
    "seconds_decompose": ("seconds", "decompose"),
    "seconds_transform": ("seconds", "transform"),
    "bytes_fetched": ("bytes_fetched",),
    "warnings": ("warnings",),
}


def describe(
    model: str,
    extract: dict[str, Any],
    decompose: dict[str, Any],
    transform: dict[str, Any],
) -> dict[str, Any]:
    """Return the content of geometry.json from the facts that the three stages recorded."""
    stages = {"extract": extract, "decompose": decompose, "transform": transform}
    progress = parse_progress(extract["revision"])
    warnings = [w for facts in stages.values() for w in facts["warnings"]]
    return {
        "model": model,
        "repo": extract["repo"],
        "revision": extract["revision"],
        "commit": extract["commit"],
        "training": vars(progress) if progress else None,
        "unembedding": {key: extract[key] for key in ("tensor", "file", "tied", "dtype")},
        "rows": transform["rows"],
        "matrix_rows": decompose["height"],
        "vocabulary": extract["vocabulary"],
        "width": decompose["width"],
        "rank": transform["rank"],
        "condition_number": transform["condition_number"],
        "effective_rank": transform["effective_rank"],
        "whitening_residual": transform["whitening_residual"],
        "precision": decompose["precision"],
        "backend": decompose["backend"],
        "device": decompose["device"],
        "backend_reason": decompose["reason"],
        "threads": decompose["threads"],
        "cpus_allowed": decompose["cpus_allowed"],
        "blas": decompose["blas"],
        "jobs": {stage: facts["job"] for stage, facts in stages.items()},
        "seconds": {stage: facts["seconds"] for stage, facts in stages.items()},
        "steps": {stage: facts["steps"] for stage, facts in stages.items()},
        "bytes_fetched": extract["bytes_fetched"],
        "warnings": list(dict.fromkeys(warnings)),
    }


def summary(descriptions: Iterable[Path]) -> str:
    """Return the content of summary.csv, one row per geometry.json, in their order."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for path in descriptions:
        geometry = read_json_file(path)
        writer.writerow([_cell(geometry, place) for place in COLUMNS.values()])
    return text.getvalue()


def _cell(geometry: Any, place: tuple[str, ...]) -> Any:
    value = geometry
    for key in place:
        value = None if value is None else value[key]
    if isinstance(value, list):
        return "; ".join(value)
    return str(value).lower() if isinstance(value, bool) else value
