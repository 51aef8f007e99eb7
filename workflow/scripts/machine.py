"""What this machine is, and what this job was given of it."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def cpu_model() -> str:
    """Return the processor's name, or its architecture where the system does not tell."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def cpus_allowed() -> int:
    """Return on how many CPUs this process may run."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def using_threads(threads: int) -> Iterator[dict[str, Any]]:
    """Hold BLAS and OpenMP to ``threads``, and yield what was asked for beside what was given.

    The environment usually says so already; this also holds where it does not, and records the
    threads that the libraries loaded really use.
    """
    from threadpoolctl import threadpool_info, threadpool_limits

    allowed = cpus_allowed()
    warnings = []
    if allowed < threads:
        warnings.append(f"{threads} threads were asked for, and the job may use {allowed} CPUs")
    with threadpool_limits(threads):
        pools = [pool for pool in threadpool_info() if pool["user_api"] == "blas"]
        yield {
            "threads": threads,
            "cpus_allowed": allowed,
            "blas": [
                {
                    "library": Path(pool["filepath"]).name,
                    "version": pool["version"],
                    "threads": pool["num_threads"],
                }
                for pool in pools
            ],
            "warnings": warnings,
        }
