"""Large files written past the page cache.

A new page of the cache costs the CPU more than the bytes that are copied into it, and arithmetic
beside waits for that (docs/benchmarks.md, "Writing g").
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

ALIGNMENT = 4096  # bytes; of addresses, offsets and lengths, on any file system
CHUNK = 2**24


class UncachedFile:
    """Appends to an open file by O_DIRECT; where the file system has not got that, as ever."""

    def __init__(self, file: BinaryIO, start: int) -> None:
        """``start`` is where in the file to begin, a multiple of ALIGNMENT."""
        self.file, self.position = file, start
        self.buffer = memoryview(mmap.mmap(-1, CHUNK))  # begins at a page
        self.filled = 0
        self.direct = hasattr(os, "O_DIRECT")

    def write(self, data: memoryview) -> None:
        """Append bytes; up to CHUNK of them wait for the next call, or for ``flush``."""
        while data:
            taken = min(len(data), CHUNK - self.filled)
            self.buffer[self.filled : self.filled + taken] = data[:taken]
            self.filled += taken
            data = data[taken:]
            if self.filled == CHUNK:
                self.flush()

    def flush(self) -> None:
        """Write what waits, whose last piece need not be aligned."""
        begin, aligned = self.position, self.filled - self.filled % ALIGNMENT
        if self.direct:
            try:
                with _without_cache(self.file):
                    self._put(self.buffer[:aligned])
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                self.direct = False
        self._put(self.buffer[self.position - begin : self.filled])
        self.filled = 0

    def _put(self, data: memoryview) -> None:
        while data:
            written = os.pwrite(self.file.fileno(), data, self.position)
            self.position += written
            data = data[written:]


@contextmanager
def _without_cache(file: BinaryIO) -> Iterator[None]:
    flags = fcntl.fcntl(file, fcntl.F_GETFL)
    fcntl.fcntl(file, fcntl.F_SETFL, flags | os.O_DIRECT)
    try:
        yield
    finally:
        fcntl.fcntl(file, fcntl.F_SETFL, flags)
