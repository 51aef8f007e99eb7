"""Flame graphs (Gregg 2016, "The Flame Graph", CACM 59:6), as SVG without a script and as a page.

Width is wall time, depth is the call stack. Each caller of a function has a box of its own; a box
is as wide as the boxes of what it called and its own time together. In the picture callers are
below their callees; in the page, which zooms and searches, they are above them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any
from zlib import crc32

PAGE = Path(__file__).with_name("flamegraph.html")
LIBRARY = Path(__file__).with_name("d3_flame_graph.js")

WIDTH, ROW, MARGIN, TITLE = 1200, 18, 10, 46
CHARACTER = 6.6  # width of one, in the font below
NARROWEST = 0.3  # pixels; what is thinner is not drawn


@dataclass
class Node:
    """One function in one call path, and the seconds spent in it and below it."""

    name: str
    seconds: float = 0.0
    callees: dict[str, Node] = field(default_factory=dict)


def call_tree(stacks: Mapping[tuple[str, ...], float], root: str) -> Node:
    """Merge stacks (outermost first) with their seconds into one tree."""
    tree = Node(root)
    for stack, seconds in stacks.items():
        tree.seconds += seconds
        node = tree
        for name in stack:
            node = node.callees.setdefault(name, Node(name))
            node.seconds += seconds
    return tree


def flame_graph(stacks: Mapping[tuple[str, ...], float], title: str) -> str:
    """Return the SVG of a flame graph; hovering over a box tells its function, time and share."""
    tree = call_tree(stacks, "all")
    narrowest = NARROWEST / (WIDTH - 2 * MARGIN) * tree.seconds
    height = TITLE + (depth(tree, narrowest) + 1) * ROW + MARGIN
    boxes = _boxes(tree, 0.0, 0, max(tree.seconds, 1e-9), height - MARGIN - ROW)
    caption = f"{title}: {tree.seconds:.2f} s of wall time; callers below, callees above"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            'font-family="monospace" font-size="11">',
            f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
            f'<text x="{MARGIN}" y="28" font-size="15">{escape(caption)}</text>',
            *boxes,
            "</svg>\n",
        ]
    )


def flame_page(stacks: Mapping[tuple[str, ...], float], title: str) -> str:
    """Return a page that zooms and searches, and needs no other file and no network."""
    tree = call_tree(stacks, "all")
    parts = {
        "title": escape(f"{title}: {tree.seconds:.2f} s of wall time"),
        "library": LIBRARY.read_text(encoding="utf-8"),
        "tree": json.dumps(_nested(tree), separators=(",", ":")).replace("<", r"\u003c"),
    }
    page = PAGE.read_text(encoding="utf-8")
    return re.sub("@(title|library|tree)", lambda found: parts[found[1]], page)


def _nested(node: Node) -> dict[str, Any]:
    """Return a node as d3-flame-graph reads it: seconds with those of its callees."""
    shown: dict[str, Any] = {"name": node.name, "value": round(node.seconds, 6)}
    if node.callees:
        shown["children"] = [_nested(callee) for callee in node.callees.values()]
    return shown


def depth(node: Node, least: float) -> int:
    """Return how many levels of callees a node has that took ``least`` seconds, and are drawn."""
    drawn = (callee for callee in node.callees.values() if callee.seconds >= least)
    return max((1 + depth(callee, least) for callee in drawn), default=0)


def _boxes(node: Node, x: float, level: int, total: float, bottom: int) -> list[str]:
    """Draw a node and what it called, the longest first so that the picture reads from the left."""
    width = node.seconds / total * (WIDTH - 2 * MARGIN)
    if width < NARROWEST:
        return []
    drawn = [_box(node, MARGIN + x, bottom - level * ROW, width, total)]
    for callee in sorted(node.callees.values(), key=lambda n: (-n.seconds, n.name)):
        drawn += _boxes(callee, x, level + 1, total, bottom)
        x += callee.seconds / total * (WIDTH - 2 * MARGIN)
    return drawn


def _box(node: Node, x: float, y: float, width: float, total: float) -> str:
    tip = f"{node.name}: {node.seconds:.3f} s, {100 * node.seconds / total:.1f} %"
    letters = int((width - 6) / CHARACTER)
    text = node.name if len(node.name) <= letters else node.name[: max(letters - 1, 0)] + "…"
    label = f'<text x="{x + 3:.1f}" y="{y + 13:.1f}">{escape(text)}</text>' if letters > 2 else ""
    lightness = 72 + crc32(node.name.encode()) % 17  # neighbours differ also in grey
    return (
        f'<g><title>{escape(tip)}</title><rect x="{x:.2f}" y="{y:.1f}" width="{width:.2f}" '
        f'height="{ROW - 1}" rx="1" fill="hsl(32 70% {lightness}%)"/>{label}</g>'
    )
