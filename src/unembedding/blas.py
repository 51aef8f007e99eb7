"""Which BLAS is loaded, and which of its kernels runs here."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CPUINFO = Path("/proc/cpuinfo")
# By what they are written with, the most capable first: what a CPU must have, and OpenBLAS's names.
KERNELS = (
    ({"avx512f", "avx512bw", "avx512dq", "avx512vl"}, {"SkylakeX", "Cooperlake", "SapphireRapids"}),
    ({"avx2", "fma"}, {"Haswell", "Zen", "Excavator"}),
)


def loaded() -> list[dict[str, Any]]:
    """Return library, version, threads and kernel of each BLAS that this process has loaded.

    PyTorch brings one that is not seen from outside, and is asked itself, if it has been imported.
    """
    from threadpoolctl import threadpool_info

    found = [
        {
            "library": Path(pool["filepath"]).name,
            "version": pool["version"],
            "threads": pool["num_threads"],
            "kernel": pool.get("architecture"),
        }
        for pool in threadpool_info()
        if pool["user_api"] == "blas"
    ]
    if (torch := sys.modules.get("torch")) is not None:
        capability = torch.backends.cpu.get_cpu_capability()
        used = {"threads": torch.get_num_threads(), "kernel": capability}
        found.append({"library": "torch", "version": torch.__version__, **used})
    return found


@contextmanager
def one_thread_each() -> Iterator[Executor]:
    """Yield a pool of as many threads as BLAS has, and hold it to one in each of them.

    For many small problems, of which BLAS would divide each.
    """
    from threadpoolctl import threadpool_info, threadpool_limits

    pools = (pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas")
    with ThreadPoolExecutor(max(pools, default=1)) as executor, threadpool_limits(1, "blas"):
        yield executor


def lesser_kernels(libraries: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return a warning where the environment holds OpenBLAS to less than the CPU can run.

    An OpenBLAS that is too old for its CPU is no mistake of the environment, and not told.
    """
    forced, flags = os.environ.get("OPENBLAS_CORETYPE"), _cpu_flags()
    if not forced:
        return []
    level = next((i for i, (needed, _) in enumerate(KERNELS) if needed <= flags), len(KERNELS))
    as_good = {name for _, names in KERNELS[: level + 1] for name in names}
    named = {e["kernel"] for e in libraries if "openblas" in e["library"] and e["kernel"]}
    if level == len(KERNELS) or not named - as_good:
        return []
    return [
        f"OPENBLAS_CORETYPE={forced} in the environment holds OpenBLAS to its kernel "
        f"{', '.join(sorted(named - as_good))}, and this CPU runs faster ones "
        f"({', '.join(sorted(KERNELS[level][1]))}). Unset it for full speed."
    ]


def _cpu_flags() -> set[str]:
    if not CPUINFO.is_file():
        return set()
    lines = CPUINFO.read_text(encoding="utf-8").splitlines()
    return set(next((line for line in lines if line.startswith("flags")), "").split())
