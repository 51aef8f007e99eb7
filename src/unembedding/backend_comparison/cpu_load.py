"""Processes that compete for the CPU: each multiplies matrices until its standard input ends.

The pipe to their standard input closes when this process ends, however it ends, so that none can
be left behind; run as a script, this file is such a process.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

ONE_THREAD = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL")}
SIZE = 512  # of the matrices: a product takes milliseconds, and does not fit the smaller caches


@contextmanager
def competing(count: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Run ``count`` competitors of one thread each, all at work before the block begins."""
    processes: list[subprocess.Popen[bytes]] = []
    try:
        processes += (_start() for _ in range(count))
        for process in processes:
            if process.stdout is None or not process.stdout.readline():
                raise RuntimeError(f"a competing process ended with {process.wait()}")
        yield processes
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.communicate()


def _start() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, __file__],
        env={**os.environ, **ONE_THREAD},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


def _end_with_input() -> None:
    os.read(0, 1)
    os._exit(0)


def _compete() -> None:
    threading.Thread(target=_end_with_input, daemon=True).start()
    import numpy as np

    matrix, product = np.ones((SIZE, SIZE)), np.empty((SIZE, SIZE))
    np.matmul(matrix, matrix, out=product)
    print("at work", flush=True)
    while True:
        np.matmul(matrix, matrix, out=product)


if __name__ == "__main__":
    _compete()
