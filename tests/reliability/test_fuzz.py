"""Hostile and broken files: read, or refused by name; nothing else happens."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fuzzing import READERS
from promises import SOAK
from running import REPOSITORY

COUNT = 100_000 if SOAK else 1_500


@pytest.mark.parametrize("reader", READERS)
def test_a_reader_reads_or_refuses_whatever_it_is_given(reader, report):
    script = Path(__file__).with_name("fuzzing.py")
    done = subprocess.run(
        [sys.executable, str(script), reader, str(COUNT)],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY / "src")},
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    report(done.stdout.strip())
