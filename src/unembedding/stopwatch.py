"""Seconds by step."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

Item = TypeVar("Item")


class Stopwatch:
    """Adds up the wall time of named steps, and tells it as each one ends.

    A step within a step counts for itself only, so that the steps add up to the whole.
    """

    def __init__(self) -> None:
        self.started = time.perf_counter()
        self.steps: dict[str, float] = {}

    @contextmanager
    def __call__(self, step: str) -> Iterator[None]:
        before = self.steps.get(step, 0.0)
        try:
            with self.adding(step):
                yield
        finally:
            self._tell(step, self.steps[step] - before)

    def each(self, step: str, items: Iterable[Item]) -> Iterator[Item]:
        """Yield the items, none of them None; making them is the step."""
        iterator, before = iter(items), self.steps.get(step, 0.0)
        while True:
            with self.adding(step):
                item = next(iterator, None)
            if item is None:
                break
            yield item
        self._tell(step, self.steps[step] - before)

    def record(self) -> dict[str, Any]:
        """Return the seconds since the stopwatch was made, and those of each step."""
        total = time.perf_counter() - self.started
        return {
            "seconds": round(total, 4),
            "steps": {step: round(seconds, 4) for step, seconds in self.steps.items()},
        }

    @contextmanager
    def adding(self, step: str) -> Iterator[None]:
        """Add to a step without telling."""
        start, counted = time.perf_counter(), sum(self.steps.values())
        try:
            yield
        finally:
            within = sum(self.steps.values()) - counted
            own = time.perf_counter() - start - within
            self.steps[step] = self.steps.get(step, 0.0) + own

    @staticmethod
    def _tell(step: str, seconds: float) -> None:
        print(f"{step}: {seconds:.3f} s", file=sys.stderr, flush=True)
