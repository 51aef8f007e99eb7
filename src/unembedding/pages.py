"""Tables and findings as pages of HTML, for a browser and for Snakemake's report."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from html import escape
from pathlib import Path

from unembedding.files import write_text

PAGE = """<!DOCTYPE html>
<html lang="en">
<meta charset="utf-8">
<title>@title</title>
<style>
  body { font: 14px sans-serif; margin: 16px; }
  table { border-collapse: collapse; }
  th, td { padding: 3px 10px; text-align: left; white-space: nowrap; }
  td.number { text-align: right; font-variant-numeric: tabular-nums; }
  th { cursor: pointer; background: #eee; position: sticky; top: 0; }
  tr:nth-child(even) td { background: #f8f8f8; }
</style>
<h3>@title</h3>
<section>
@found
</section>
@body
<script>
  document.querySelectorAll("th").forEach((head, column) => head.onclick = () => {
    const body = head.closest("table").tBodies[0], value = (row) => row.cells[column].title;
    head.descending = !head.descending;
    const order = (a, b) => value(a).localeCompare(value(b), undefined, { numeric: true });
    const numbers = (a, b) => value(a) - value(b);
    const numeric = [...body.rows].every((row) => !isNaN(value(row)));
    const rows = [...body.rows].sort(numeric ? numbers : order);
    body.append(...(head.descending ? rows.reverse() : rows));
  });
</script>
</html>
"""
MOST_CHARACTERS = 60  # of a cell; hovering shows the rest


def write_page(target: Path, title: str, found: Sequence[str], body: str) -> None:
    """Write a page of HTML: a title, what was found in sentences, and a body of HTML.

    The report's front page shows the sentences, which stand between <section> and </section>.
    """
    parts = {
        "title": escape(title),
        "found": "\n".join(f"<p>{escape(sentence)}</p>" for sentence in found),
        "body": body,
    }
    write_text(target, re.sub("@(title|found|body)", lambda place: parts[place[1]], PAGE))


def html_table(source: Path) -> str:
    """Return a table in CSV as HTML whose columns sort by a click.

    Numbers are rounded to four digits, and hovering shows them whole. A column that is empty is
    left out; one that says the same in every row is said once, above.
    """
    with source.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    columns = list(rows[0]) if rows else []
    values = {column: {row[column] for row in rows} for column in columns}
    same = [c for c in columns[1:] if len(rows) > 1 and len(values[c]) == 1 and values[c] != {""}]
    shown = [c for c in columns if c not in same and values[c] != {""}]
    head = "".join(f"<th>{escape(_words(column))}</th>" for column in shown)
    body = "\n".join(f"<tr>{''.join(_cell(row[c]) for c in shown)}</tr>" for row in rows)
    once = "; ".join(f"{_words(column)}: {_rounded(rows[0][column])}" for column in same)
    above = f"<p>In every row: {escape(once)}.</p>\n" if once else ""
    return f"{above}<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>"


def html_text(text: str) -> str:
    """Return text as HTML, line by line as it is."""
    return f"<pre>{escape(text)}</pre>"


def _words(column: str) -> str:
    return column.replace("_", " ")


def _cell(text: str) -> str:
    shown = _rounded(text)
    if len(shown) > MOST_CHARACTERS:
        shown = shown[:MOST_CHARACTERS] + "…"
    kind = ' class="number"' if _number(text) is not None else ""
    return f'<td{kind} title="{escape(text)}">{escape(shown)}</td>'


def _rounded(text: str) -> str:
    number = _number(text)
    return text if number is None or "." not in text else f"{number:.4g}"


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
