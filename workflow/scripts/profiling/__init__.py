"""Where the time of a stage went: cProfile's table, a flame graph of real stacks, a stopwatch."""

from profiling.session import profiled
from profiling.stopwatch import Stopwatch

__all__ = ["Stopwatch", "profiled"]
