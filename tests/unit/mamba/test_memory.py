"""What the scan allocates beside its inputs and its output, in a process of its own."""

import subprocess
import sys

import pytest

from mamba_cpu import build

PACKAGE = build.SOURCES.parents[1]
SHORT, LONG, DIM, STATE = 4096, 131072, 16, 16
TENSOR = LONG * DIM * 4  # bytes of u; an intermediate with a state is as many times larger

# How much a scan of the whole length raises the peak that one of its beginning has left behind.
GROWTH = """
import sys
from pathlib import Path
import torch
from mamba_cpu import load_kernel, selective_scan_fn

def peak():
    status = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) * 1024

folder, layout, threads, out, short, length, dim, state = sys.argv[1:]
short, length, dim, state = map(int, (short, length, dim, state))
torch.set_num_threads(int(threads))
load_kernel(folder)

def made(rows):
    shape = (1, length, rows) if layout == "dim" else (1, rows, length)
    x = torch.empty(shape).fill_(0.5)
    return x.mT if layout == "dim" else x

u, delta, y = made(dim), made(dim), made(dim)
A, B, C = -torch.ones(dim, state), made(state), made(state)

def scan(end):
    u_, delta_, B_, C_, y_ = (x[..., :end] for x in (u, delta, B, C, y))
    selective_scan_fn(u_, delta_, A, B_, C_, out=y_ if out == "given" else None)

scan(short)
before = peak()
scan(length)
print(peak() - before)
"""


def growth(folder, layout, threads, out):
    arguments = [folder, layout, threads, out, SHORT, LONG, DIM, STATE]
    done = subprocess.run(
        [sys.executable, "-c", GROWTH, *map(str, arguments)],
        env={"PYTHONPATH": str(PACKAGE), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout)


# On two threads these few channels are split over time, which keeps states for every slice.
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("layout", ["dim", "length"])
def test_memory_beside_the_tensors_does_not_grow_with_the_length(
    kernel, scan_builds, layout, threads
):
    assert growth(scan_builds, layout, threads, "given") < TENSOR / 8


def test_a_new_output_is_seen_by_the_same_measurement(kernel, scan_builds):
    assert TENSOR * 0.9 < growth(scan_builds, "dim", 1, "new") < TENSOR * 1.25
