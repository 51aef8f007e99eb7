"""What a result was made by: code, configuration and software."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from unembedding.machine import cpu_model

HOME = Path(__file__).parents[3]
"""Of the workflow, whose code is in these folders of it."""
CODE = ("workflow", "src", "packages/mamba-cpu/src")
ROOTS = ("workflow/scripts", *CODE[1:])  # from which modules are imported
PACKAGES = ("numpy", "scipy", "torch", "cupy", "huggingface_hub")  # on which numbers depend


def share_with_jobs() -> None:
    """Let the processes that jobs start import our modules without an install.

    They inherit PYTHONPATH. On another node the Snakefile is executed again, and sets it there.
    """
    ours = [str(HOME / root) for root in ROOTS[1:]]
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([*ours, *filter(None, given)]))


def made_with(code: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a stage is being made with; ``packages`` are those that it has imported."""
    loaded = {name: sys.modules[name] for name in PACKAGES if name in sys.modules}
    return {
        "workflow": workflow_commit(),
        "code": code,
        "config": config_digest(config),
        "python": platform.python_version(),
        "packages": {name: module.__version__ for name, module in loaded.items()},
        "cpu": cpu_model(),
        "system": platform.platform(),
    }


def config_digest(config: Mapping[str, Any]) -> str:
    """Return a digest of a whole configuration, whatever the order of its keys."""
    text = json.dumps(config, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def workflow_commit() -> str | None:
    """Return the last commit that changed rules or code; None where git does not keep them."""
    command = ["git", "-C", str(HOME), "log", "-1", "--format=%H", "--", *CODE]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip() or None


@cache
def code_digest(script: str, sources: str | None = None) -> str:
    """Return a digest of a script and of every module of ours that it imports, however deep.

    ``sources`` adds a folder of sources in another language, from the workflow's on.

    As a parameter of its rule it makes Snakemake run the rule again when any of them changes,
    which Snakemake does not see by itself.
    """
    seen: dict[Path, bytes] = {}
    _collect(HOME / ROOTS[0] / script, seen)
    if sources is not None:
        files = (path for path in (HOME / sources).rglob("*") if path.is_file())
        seen |= {path: path.read_bytes() for path in files}
    digest = hashlib.sha256()
    for path in sorted(seen):
        digest.update(str(path.relative_to(HOME)).encode() + b"\0" + seen[path])
    return digest.hexdigest()[:16]


def _collect(path: Path, seen: dict[Path, bytes]) -> None:
    if path not in seen:
        seen[path], imported = _read(path)
        for file in imported:
            _collect(file, seen)


@cache
def _read(path: Path) -> tuple[bytes, list[Path]]:
    """Return a file, once for all scripts, and the files of ours that it imports."""
    content = path.read_bytes()
    modules = _imported(ast.parse(content))
    return content, [file for module in modules for file in _files(module)]


def _imported(tree: ast.AST) -> set[str]:
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


@cache
def _files(module: str) -> list[Path]:
    """Return the files that importing a module of ours executes; none for others."""
    parts = module.split(".")
    places = [HOME.joinpath(r, *parts[:n]) for r in ROOTS for n in range(1, len(parts) + 1)]
    files = [file for p in places for file in (p.with_suffix(".py"), p / "__init__.py")]
    return [file for file in files if file.is_file()]
