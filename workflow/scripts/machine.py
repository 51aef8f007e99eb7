"""What this machine is, and what this job was given of it."""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import sys
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


def gpu_models() -> list[str]:
    """Return the NVIDIA cards by name, as the driver lists them; none where it lists nothing."""
    folders = sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))
    lines = [line for file in folders for line in file.read_text().splitlines()]
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


@contextmanager
def using_threads(threads: int) -> Iterator[dict[str, Any]]:
    """Hold BLAS and OpenMP to ``threads``, and yield what was asked for beside what was given.

    The environment usually says so already; this also holds where it does not, and records the
    threads that the libraries loaded really use. PyTorch brings a BLAS that is not seen from
    outside, and is asked itself, if it has been imported by then.
    """
    from threadpoolctl import threadpool_info, threadpool_limits

    torch = sys.modules.get("torch")

    allowed = cpus_allowed()
    warnings = []
    if allowed < threads:
        warnings.append(f"{threads} threads were asked for, and the job may use {allowed} CPUs")
    with threadpool_limits(threads), _torch_threads(torch, threads):
        blas = [
            {
                "library": Path(pool["filepath"]).name,
                "version": pool["version"],
                "threads": pool["num_threads"],
            }
            for pool in threadpool_info()
            if pool["user_api"] == "blas"
        ]
        if torch is not None:
            used = torch.get_num_threads()
            blas.append({"library": "torch", "version": torch.__version__, "threads": used})
        yield {"threads": threads, "cpus_allowed": allowed, "blas": blas, "warnings": warnings}


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
