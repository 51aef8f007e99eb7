"""Where the arithmetic on matrices runs: ``registry`` lists the backends, ``choice`` takes one.

A backend works on blocks of rows and keeps one d × d matrix at a time, so its memory depends on
the width d and not on the number of tokens.
"""

from unembedding.backends.choice import select_backend
from unembedding.backends.interface import Backend
from unembedding.backends.registry import BACKENDS

__all__ = ["BACKENDS", "Backend", "select_backend"]
