"""Which kernel of BLAS runs, and the warning where it is a lesser one than the CPU has."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from unembedding import blas

SOURCES = str(Path(blas.__file__).parents[1])
HERE = (
    "import json, scipy.linalg; from unembedding.machine import using_threads\n"
    "with using_threads(1) as used: print(json.dumps(used))"
)


def used(**environment):
    """Return what a process of its own is given: OpenBLAS reads the environment when it starts."""
    kept = {key: value for key, value in os.environ.items() if key != "OPENBLAS_CORETYPE"}
    done = subprocess.run(
        [sys.executable, "-c", HERE],
        env={**kept, "PYTHONPATH": SOURCES, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def test_the_kernel_that_the_environment_forces_is_recorded_and_warned_of():
    given = used(OPENBLAS_CORETYPE="Nehalem")
    kernels = {e["kernel"] for e in given["blas"] if "openblas" in e["library"]}
    assert kernels == {"Nehalem"}
    (warning,) = [line for line in given["warnings"] if "OPENBLAS" in line]
    assert "OPENBLAS_CORETYPE=Nehalem" in warning and "Unset it" in warning


def test_the_kernel_that_openblas_chooses_is_recorded_and_not_warned_of():
    given = used()
    assert all(entry["kernel"] for entry in given["blas"])
    assert not [line for line in given["warnings"] if "OPENBLAS" in line]


@pytest.mark.parametrize(
    ("kernel", "flags", "warned"),
    [
        ("Haswell", "avx2 fma avx512f avx512bw avx512dq avx512vl", True),
        ("SkylakeX", "avx2 fma avx512f avx512bw avx512dq avx512vl", False),
        ("Cooperlake", "avx2 fma avx512f avx512bw avx512dq avx512vl", False),
        ("Haswell", "avx2 fma", False),
        ("Sandybridge", "avx avx2 fma", True),
        ("Nehalem", "sse4_2", False),
    ],
)
def test_a_kernel_is_lesser_where_the_cpu_has_wider_vectors(
    tmp_path, monkeypatch, kernel, flags, warned
):
    (tmp_path / "cpuinfo").write_text(f"model name\t: one\nflags\t\t: {flags}\n")
    monkeypatch.setattr(blas, "CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setenv("OPENBLAS_CORETYPE", kernel)
    library = {"library": "libscipy_openblas.so", "kernel": kernel}
    assert bool(blas.lesser_kernels([library])) == warned
