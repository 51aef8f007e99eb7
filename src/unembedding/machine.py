"""What this machine is, and what this job was given of it."""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from unembedding import blas

CGROUPS = Path("/sys/fs/cgroup")
OWN_GROUPS = Path("/proc/self/cgroup")
LIMITS = ("memory.max", "memory.limit_in_bytes")  # of cgroups 2 and 1


def cpu_model() -> str:
    """Return the processor's name, or its architecture where the system does not tell."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def gpu_models() -> list[str]:
    """Return the NVIDIA cards by name, as the driver lists them; none where it lists nothing."""
    folders = sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))
    lines = [line for file in folders for line in file.read_text(encoding="utf-8").splitlines()]
    return [line.partition(":")[2].strip() for line in lines if line.startswith("Model")]


def fingerprint() -> dict[str, Any]:
    """Return what makes a time measured on one machine hold on another.

    Not the host's name: it changes with every container, and the nodes of a cluster that are
    equal in all else can share what was measured on one.
    """
    return {"cpu": cpu_model(), "cores": os.cpu_count(), "gpus": gpu_models()}


def end_with_parent() -> None:
    """Have the kernel end this process when its parent ends, however that ends; Linux only."""
    if sys.platform == "linux":
        set_parent_death_signal = 1  # PR_SET_PDEATHSIG of prctl(2)
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)


def cpus_allowed() -> int:
    """Return on how many CPUs this process may run."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory_mb() -> int:
    """Return how much memory this process may use: what is there, or its limit where it has one."""
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20
    return min(there, memory_limit_mb() or there)


def memory_limit_mb() -> int | None:
    """Return the least of the limits on this process's memory, or None where there is none."""
    # Slurm sets RLIMIT_RSS to what the job asked for, also where it uses no control groups.
    kinds = (resource.RLIMIT_AS, resource.RLIMIT_DATA, resource.RLIMIT_RSS)
    limits = [*_cgroup_limits(), *(resource.getrlimit(kind)[0] for kind in kinds)]
    # No limit is a huge number in cgroups 1, and -1 in getrlimit.
    return min((limit // 2**20 for limit in limits if 0 < limit < 2**60), default=None)


def _cgroup_limits() -> Iterator[int]:
    """Yield the limits of this process's control group and of every one above it."""
    for line in _lines(OWN_GROUPS):
        _, controllers, group = line.split(":", 2)
        root = CGROUPS / "memory" if "memory" in controllers.split(",") else CGROUPS
        folder = root / group.lstrip("/")
        for place in (folder, *folder.parents):
            for name in LIMITS:
                yield from (int(limit) for limit in _lines(place / name) if limit.isdigit())


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []


def allotment(threads: int, mem_mb: int | None) -> dict[str, Any]:
    """Return what a job asked for beside what it was given, with a warning where that is less.

    More is no reason for one: a submission of several jobs is given what the largest asked for. Nor
    are fewer CPUs than were asked for where the machine has no more.
    Slurm's own number counts where it is larger, since Snakemake lowers ``threads`` to the CPUs it
    finds.
    """
    cpus, memory = cpus_allowed(), memory_limit_mb()
    threads = max(threads, int(os.environ.get("SLURM_CPUS_PER_TASK", 0)))
    warnings = []
    if cpus < min(threads, os.cpu_count() or threads):
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
    threads and kernels that the libraries loaded really use.
    """
    from threadpoolctl import threadpool_limits

    torch = sys.modules.get("torch")

    with threadpool_limits(threads), _torch_threads(torch, threads):
        libraries, given = blas.loaded(), allotment(threads, mem_mb)
        given["warnings"] += blas.lesser_kernels(libraries)
        yield {
            "threads": threads,
            "cpus_allowed": cpus_allowed(),
            "blas": libraries,
            **given,
        }


@contextmanager
def _torch_threads(torch: Any, threads: int) -> Iterator[None]:
    if torch is None:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
