"""The compiled kernel of this process: asked for by folder, or loaded by itself at first use."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from mamba_cpu import build as _build

_kernel: Any = None  # the operators' namespace, once there is one


def load_kernel(folder: str | Path, level: str | None = None) -> _build.Build:
    """Compile the kernel into `folder` if it is not there yet, and use it from now on.

    Only needed to choose the folder or the level: otherwise the first call of an operator compiles
    the kernel into `cache_folder()`.
    level: "avx512", "avx2" or "portable"; by default the best this CPU runs.
    Raises BuildError if there is no compiler, if the CPU cannot run `level`, or if the process
    uses another build of it already.
    """
    global _kernel
    if level is not None:
        _build.require_level(level)
    built = _build.build(Path(folder), level)
    _build.load(built)
    _kernel = getattr(torch.ops, f"selective_scan_{built.level}")
    return built


def cache_folder() -> Path:
    """$MAMBA_CPU_CACHE, else `mamba-cpu` in $XDG_CACHE_HOME or ~/.cache."""
    if named := os.environ.get("MAMBA_CPU_CACHE"):
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "mamba-cpu"


def kernel() -> Any:
    """The operators of this process, compiled and loaded at the first call. Raises BuildError."""
    if _kernel is None:
        load_kernel(cache_folder())
    return _kernel
