"""A fused selective scan for the CPU, and what it is measured against. Never imports Snakemake."""

from selective_scan.build import Build, BuildError
from selective_scan.interface import load_kernel, selective_scan_fn

__all__ = ["Build", "BuildError", "load_kernel", "selective_scan_fn"]
