"""Sampling the stack of the main thread, for the flame graph.

cProfile keeps only pairs of caller and callee, from which no stack can be rebuilt; so a thread
looks every millisecond at the stack of the main thread. It takes no signal: others may need it.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import defaultdict
from pathlib import Path
from types import CodeType, FrameType

INTERVAL = 0.001  # seconds
Stack = tuple[str, ...]


class StackSampler:
    """Wall time by stack, outermost function first.

    Each sample weighs the time since the one before. During a long call that keeps the interpreter
    to itself (BLAS through SciPy) the sampler waits; it is let in when the call returns, while the
    main thread is still in the function that made it. So the call's whole time counts there, and
    the weights add up to the time between ``start`` and ``stop``.
    """

    def __init__(self) -> None:
        # By identity, since hashing a code object hashes all that is in it.
        self._seconds: defaultdict[tuple[int, ...], float] = defaultdict(float)
        self._codes: dict[int, CodeType] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._sample_until_stopped, daemon=True)
        self._base: FrameType | None = None
        self._main = 0
        self._last = 0.0

    def start(self, base: FrameType | None) -> None:
        """Begin with the calling thread; frames from ``base`` outward are left out."""
        self._base, self._main = base, threading.get_ident()
        self._last = time.perf_counter()
        self._thread.start()

    def stop(self) -> None:
        """End; the time since the last sample counts as spent outside all functions."""
        self._stopped.set()
        self._thread.join()
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

    def _sample_until_stopped(self) -> None:
        while not self._stopped.wait(INTERVAL):
            frame, stack = sys._current_frames().get(self._main), []
            while frame is not None and frame is not self._base:
                code = frame.f_code
                self._codes[id(code)] = code
                stack.append(id(code))
                frame = frame.f_back
            self._add(tuple(reversed(stack)))

    def _add(self, stack: tuple[int, ...]) -> None:
        now = time.perf_counter()
        self._seconds[stack] += now - self._last
        self._last = now


def _label(code: CodeType) -> str:
    """Return a function with its module and line, or the module alone where that is imported."""
    module = module_of(code.co_filename)
    if code.co_name == "<module>":
        return f"import {module}"
    return f"{code.co_qualname} ({module}:{code.co_firstlineno})"


def module_of(file: str) -> str:
    """Return a file as it is imported, ``package.module``; a path where nothing imports it."""
    inside = from_root(file)
    if inside == file:
        return "/".join(Path(file).parts[-2:])
    return inside.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def from_root(file: str) -> str:
    """Return a file's path from the folder on, from which it is imported."""
    roots = (f"{root}/" for root in sorted(sys.path, key=len, reverse=True) if root)
    return next((file.removeprefix(root) for root in roots if file.startswith(root)), file)
