"""One folder of compiled kernels for the whole session: compiling takes longer than all tests.

MAMBA_CPU_CACHE names a folder that is kept from one session to the next.
"""

import os
from pathlib import Path

import pytest

from mamba_cpu import load_kernel


@pytest.fixture(scope="session")
def scan_builds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if kept := os.environ.get("MAMBA_CPU_CACHE"):
        return Path(kept)
    return tmp_path_factory.mktemp("selective-scan")


@pytest.fixture
def kernel(scan_builds: Path):
    """The kernel this CPU runs fastest, loaded."""
    return load_kernel(scan_builds)
