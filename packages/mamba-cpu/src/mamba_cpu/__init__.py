"""Mamba on the CPU: a fused selective scan, and models of transformers that use it."""

from mamba_cpu.build import Build, BuildError
from mamba_cpu.compat.transformers import accelerate, use_fused_scan
from mamba_cpu.ops import load_kernel, selective_scan_fn
from mamba_cpu.provide import provide

__all__ = [
    "Build",
    "BuildError",
    "accelerate",
    "load_kernel",
    "provide",
    "selective_scan_fn",
    "use_fused_scan",
]
