"""Where the time of a stage went: cProfile's table, and a flame graph of real stacks."""

from unembedding.workflow.profiles.session import profiled

__all__ = ["profiled"]
