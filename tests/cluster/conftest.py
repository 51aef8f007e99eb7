"""A Slurm of one node for the whole session, started and stopped here."""

import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("slurm.sh")


@pytest.fixture(scope="session", autouse=True)
def slurm():
    for step in ("install", "start"):
        subprocess.run(["bash", SCRIPT, step], check=True)
    yield
    subprocess.run(["bash", SCRIPT, "stop"], check=True)
