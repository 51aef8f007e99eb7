"""A fused selective scan for the CPU, and what it is measured against. Never imports Snakemake."""

from selective_scan.build import Build, BuildError
from selective_scan.interface import load_kernel, selective_scan_fn
from selective_scan.patch import use_fused_scan

__all__ = ["Build", "BuildError", "load_kernel", "selective_scan_fn", "use_fused_scan"]
