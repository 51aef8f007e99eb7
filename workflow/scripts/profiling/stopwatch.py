"""Seconds by step."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Stopwatch:
    """Adds up the wall time of named steps, and tells it as each one ends."""

    def __init__(self) -> None:
        self.started = time.perf_counter()
        self.steps: dict[str, float] = {}

    @contextmanager
    def __call__(self, step: str) -> Iterator[None]:
        before = time.perf_counter()
        try:
            yield
        finally:
            seconds = time.perf_counter() - before
            self.steps[step] = self.steps.get(step, 0.0) + seconds
            print(f"{step}: {seconds:.3f} s", file=sys.stderr, flush=True)

    def record(self) -> dict[str, Any]:
        """Return the seconds since the stopwatch was made, and those of each step."""
        total = time.perf_counter() - self.started
        return {
            "seconds": round(total, 4),
            "steps": {step: round(seconds, 4) for step, seconds in self.steps.items()},
        }
