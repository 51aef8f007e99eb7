"""Sampling the stack of the main thread, for the flame graph.

cProfile keeps only pairs of caller and callee, from which no stack can be rebuilt; so a timer
interrupts the main thread every millisecond and notes the stack it was in.
"""

from __future__ import annotations

import signal
import time
from collections import defaultdict
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

INTERVAL = 0.001  # seconds
Stack = tuple[str, ...]


class StackSampler:
    """Wall time by stack, outermost function first.

    Each sample weighs the time since the one before: a timer that fires during a long call into
    BLAS is handled when the call returns, still in the function that made it, and the call's whole
    time counts there. So the weights add up to the time between ``start`` and ``stop``.
    """

    def __init__(self) -> None:
        # By identity, since hashing a code object hashes all that is in it.
        self._seconds: defaultdict[tuple[int, ...], float] = defaultdict(float)
        self._codes: dict[int, CodeType] = {}
        self._base: FrameType | None = None
        self._last = 0.0
        self._previous: Any = None
        self._running = False

    def start(self, base: FrameType | None) -> None:
        """Begin; frames from ``base`` outward are left out. Needs the main thread."""
        self._base = base
        self._last = time.perf_counter()
        self._running = True
        self._previous = signal.signal(signal.SIGALRM, self._sample)
        signal.siginterrupt(signal.SIGALRM, False)
        signal.setitimer(signal.ITIMER_REAL, INTERVAL)

    def stop(self) -> None:
        """End; the time since the last sample counts as spent outside all functions."""
        self._running = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self._previous)
        self._add(())

    def seconds(self) -> dict[Stack, float]:
        """Return the seconds of each stack, its functions named with file and line.

        The import system's own functions are left out, so that imports show as modules.
        """
        named: defaultdict[Stack, float] = defaultdict(float)
        for stack, seconds in self._seconds.items():
            codes = (self._codes[identity] for identity in stack)
            shown = (c for c in codes if not c.co_filename.startswith("<frozen importlib"))
            named[tuple(_label(code) for code in shown)] += seconds
        return dict(named)

    def _sample(self, _signum: int, frame: FrameType | None) -> None:
        stack = []
        while frame is not None and frame is not self._base:
            code = frame.f_code
            self._codes[id(code)] = code
            stack.append(id(code))
            frame = frame.f_back
        self._add(tuple(reversed(stack)))
        # Set anew each time, not repeating, or a slow sample would be interrupted by the next. Not
        # by a sample that was still due at the end: its timer would end the process.
        if self._running:
            signal.setitimer(signal.ITIMER_REAL, INTERVAL)

    def _add(self, stack: tuple[int, ...]) -> None:
        now = time.perf_counter()
        self._seconds[stack] += now - self._last
        self._last = now


def _label(code: CodeType) -> str:
    place = "/".join(Path(code.co_filename).parts[-2:])
    if code.co_name == "<module>":
        return f"import {place}"
    return f"{code.co_qualname} ({place}:{code.co_firstlineno})"
