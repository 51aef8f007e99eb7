"""Sampling the stack of the main thread, for the flame graph.

cProfile keeps only pairs of caller and callee, from which no stack can be rebuilt; so a timer
interrupts the main thread every millisecond and notes the stack it was in.
"""

from __future__ import annotations

import signal
import time
from collections import Counter
from pathlib import Path
from types import FrameType

INTERVAL = 0.001  # seconds
Stack = tuple[str, ...]


class StackSampler:
    """Wall time by stack, outermost function first.

    Each sample weighs the time since the one before: a timer that fires during a long call into
    BLAS is handled when the call returns, still in the function that made it, and the call's whole
    time counts there. So the weights add up to the time between ``start`` and ``stop``.
    """

    def __init__(self) -> None:
        self.seconds: Counter[Stack] = Counter()
        self._base: FrameType | None = None
        self._last = 0.0
        self._previous: object = None

    def start(self, base: FrameType | None) -> None:
        """Begin; frames from ``base`` outward are left out. Needs the main thread."""
        self._base = base
        self._last = time.perf_counter()
        self._previous = signal.signal(signal.SIGALRM, self._sample)
        signal.siginterrupt(signal.SIGALRM, False)
        signal.setitimer(signal.ITIMER_REAL, INTERVAL, INTERVAL)

    def stop(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self._previous)  # type: ignore[arg-type]
        self._add(())

    def _sample(self, _signum: int, frame: FrameType | None) -> None:
        stack: list[str] = []
        while frame is not None and frame is not self._base:
            stack.append(_label(frame))
            frame = frame.f_back
        self._add(tuple(reversed(stack)))

    def _add(self, stack: Stack) -> None:
        now = time.perf_counter()
        self.seconds[stack] += now - self._last
        self._last = now


def _label(frame: FrameType) -> str:
    code = frame.f_code
    return f"{code.co_qualname} ({Path(code.co_filename).name}:{code.co_firstlineno})"
