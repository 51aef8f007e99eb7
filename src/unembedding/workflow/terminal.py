"""What a run says on the terminal: a line for each checkpoint, a table at the end."""

from __future__ import annotations

import csv
from pathlib import Path

from unembedding.errors import printable
from unembedding.records.geometry import Geometry
from unembedding.records.pins import read_pins
from unembedding.results import RevisionResults

MOST_ROWS = 30  # of the table; a sweep has hundreds
NOISE = ("Select jobs to execute", "Execute ", "Cannot restore ", "Updating checkpoint dep")
"""How lines of Snakemake begin that tell a person nothing, even where it is told to be quiet."""
COLUMNS = {
    "checkpoint": "{model}/{revision}",
    "condition number": "{condition_number}",
    "effective rank": "{effective_rank}",
    "residual": "{whitening_residual}",
    "same γ as": "{duplicate_of}",
    "warnings": "{warnings}",
}


def is_noise(message: str) -> bool:
    """Return whether a line of Snakemake's is better left out."""
    return message.startswith(NOISE)


def finished_line(geometry: Geometry, results: RevisionResults, pinned: Path) -> str:
    """Return the line that tells of a checkpoint that has just been finished."""
    model = results.model
    revisions = read_pins(pinned)
    done = sum(model.revision(name).geometry.is_file() for name in revisions)
    seconds = sum(geometry.seconds.values())
    kappa = "none" if geometry.condition_number is None else f"{geometry.condition_number:.3g}"
    return printable(
        f"{geometry.name}: {done} of {len(revisions)}, {seconds:.1f} s, condition number {kappa}, "
        f"effective rank {geometry.effective_rank:.1f}"
    )


def table(summary: Path) -> list[str]:
    """Return the lines of a table of the checkpoints in summary.csv that were asked for."""
    with summary.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["asked"] == "true"]
    for row in rows:
        for name in ("condition_number", "effective_rank", "whitening_residual"):
            row[name] = f"{float(row[name]):.3g}" if row[name] else ""
        row["warnings"] = str(len(row["warnings"].split("; "))) if row["warnings"] else ""
    cells = [[form.format(**row) for form in COLUMNS.values()] for row in rows[:MOST_ROWS]]
    used = [i for i in range(len(COLUMNS)) if any(row[i] for row in cells)]
    lines = [[name for i, name in enumerate(COLUMNS) if i in used]]
    lines += [[row[i] for i in used] for row in cells]
    widths = [max(len(line[i]) for line in lines) for i in range(len(used))]
    shown = ["  ".join(f"{c:{w}}" for c, w in zip(line, widths, strict=True)) for line in lines]
    more = [f"… and {len(rows) - MOST_ROWS} more"] if len(rows) > MOST_ROWS else []
    return [f"  {printable(line).rstrip()}" for line in [*shown, *more]]
