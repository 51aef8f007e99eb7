"""What this machine is, and what this job was given of it."""

from __future__ import annotations

import os
import platform
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CGROUPS = Path("/sys/fs/cgroup")
LIMITS = ("memory.max", "memory.limit_in_bytes")  # of cgroups 2 and 1


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


def memory_limit_mb() -> int | None:
    """Return the least of the limits on this process's memory, or None where there is none."""
    # Slurm sets RLIMIT_RSS to what the job asked for, also where it uses no control groups.
    kinds = (resource.RLIMIT_AS, resource.RLIMIT_DATA, resource.RLIMIT_RSS)
    limits = [*_cgroup_limits(), *(resource.getrlimit(kind)[0] for kind in kinds)]
    # No limit is a huge number in cgroups 1, and -1 in getrlimit.
    return min((limit // 2**20 for limit in limits if 0 < limit < 2**60), default=None)


def _cgroup_limits() -> Iterator[int]:
    """Yield the limits of this process's control group and of every one above it."""
    for line in _lines(Path("/proc/self/cgroup")):
        _, controllers, group = line.split(":", 2)
        root = CGROUPS / "memory" if "memory" in controllers.split(",") else CGROUPS
        folder = root / group.lstrip("/")
        for place in (folder, *folder.parents):
            for name in LIMITS:
                yield from (int(limit) for limit in _lines(place / name) if limit.isdigit())


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except OSError:
        return []


def allotment(threads: int, mem_mb: int | None) -> dict[str, Any]:
    """Return what a job asked for beside what it was given, with a warning where that is less.

    More is no reason for one: a submission of several jobs is given what the largest asked for.
    Slurm's own number counts where it is larger, since Snakemake lowers ``threads`` to the CPUs it
    finds.
    """
    cpus, memory = cpus_allowed(), memory_limit_mb()
    threads = max(threads, int(os.environ.get("SLURM_CPUS_PER_TASK", 0)))
    warnings = []
    if cpus < threads:
        warnings.append(f"{threads} threads were asked for, and the job may use {cpus} CPUs")
    if mem_mb and memory and memory < mem_mb:
        warnings.append(f"{mem_mb} MB were asked for, and the job may use {memory} MB")
    job = {
        "node": platform.node(),
        "slurm_job": os.environ.get("SLURM_JOB_ID"),
        "asked": {"threads": threads, "mem_mb": mem_mb},
        "given": {"cpus": cpus, "mem_mb": memory},
    }
    return {"job": job, "warnings": warnings}


@contextmanager
def using_threads(threads: int, mem_mb: int | None = None) -> Iterator[dict[str, Any]]:
    """Hold BLAS and OpenMP to ``threads``, and yield what was asked for beside what was given.

    The environment usually says so already; this also holds where it does not, and records the
    threads that the libraries loaded really use.
    """
    from threadpoolctl import threadpool_info, threadpool_limits

    with threadpool_limits(threads):
        pools = [pool for pool in threadpool_info() if pool["user_api"] == "blas"]
        yield {
            "threads": threads,
            "cpus_allowed": cpus_allowed(),
            "blas": [
                {
                    "library": Path(pool["filepath"]).name,
                    "version": pool["version"],
                    "threads": pool["num_threads"],
                }
                for pool in pools
            ],
            **allotment(threads, mem_mb),
        }
