"""The results of one revision, to read: γ's factors and any rows of g.

g is read from its file. Where only its factors are written, it is one product away from γ:
g = (γ − μ) C^(−1/2).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path

import numpy as np

from unembedding.backends.numpy_backend import NumpyBackend
from unembedding.covariance import UNEMBEDDING_DIGEST
from unembedding.errors import GeometryError, UserError
from unembedding.extraction import UNEMBEDDING
from unembedding.results import GEOMETRY, GeometryResults, RevisionResults
from unembedding.tensors.files import TensorFile
from unembedding.whitening import INVERSE_SQRT, SQRT, G


class Revision:
    """g of one revision, and what it is made with."""

    def __init__(self, results: RevisionResults) -> None:
        """Raises UserError where there is neither g nor its factors."""
        self.results = results
        self.written = results.causal.is_file()
        if not self.written and not results.factors.is_file():
            raise UserError(
                f"{results.folder} has neither {results.causal.name} nor {results.factors.name}. "
                "`snakemake geometry` makes what the configuration asks for."
            )
        self.file = TensorFile(results.causal if self.written else results.factors)

    @property
    def path(self) -> Path:
        """The file that g is read from or made with."""
        return self.file.path

    @property
    def digest(self) -> str:
        """The digest of that file."""
        return self.file.digest

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of g."""
        if self.written:
            height, width = self.file.tensor(G, 2).shape
            return height, width
        return int(self.file.metadata["rows"]), self.file.tensor(INVERSE_SQRT, 2).shape[1]

    @cached_property
    def mean(self) -> np.ndarray:
        """μ, the mean of γ's rows (d, float64)."""
        return self._factors.read("mean", 1)

    @property
    def inverse_sqrt(self) -> np.ndarray:
        """C^(−1/2) (d × d, in the precision it was computed in)."""
        return self.file.read(INVERSE_SQRT, 2)

    @property
    def sqrt(self) -> np.ndarray:
        """C^(1/2) (d × d, in the precision it was computed in)."""
        return self._factors.read(SQRT, 2)

    def g(self, rows: Iterable[int] | None = None) -> np.ndarray:
        """Return rows of g (n × d, float32), by default all.

        All rows of a g that is written are a map of its file, which takes no memory. Products
        agree with what would be written to 1e-6.
        Raises GeometryError where there is no such row, and where γ is not there to multiply.
        """
        if not self.written:
            if rows is None:
                return np.concatenate(list(self.blocks()))
            height, chosen = self.shape[0], np.asarray(list(rows), np.int64)
            if len(chosen) and chosen.max() >= height:
                raise GeometryError(f"{self.path} is of {height} rows, from 0 on.")
            return next(self._products([self._gamma.rows(UNEMBEDDING, chosen)]))
        if rows is not None:
            return self.file.rows(G, rows)
        tensor = self.file.tensor(G, 2)
        return np.memmap(self.path, np.float32, "r", tensor.start, tensor.shape)

    def blocks(self) -> Iterator[np.ndarray]:
        """Yield all rows of g, in blocks (n × d, float32)."""
        if self.written:
            yield from self.file.blocks(G)
        else:
            yield from self._products(self._gamma.blocks(UNEMBEDDING, self.shape[0]))

    def _products(self, blocks: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
        return NumpyBackend().products(blocks, self.mean, self._matrix)

    @cached_property
    def _factors(self) -> TensorFile:
        return TensorFile(self.results.factors)

    @cached_property
    def _matrix(self) -> np.ndarray:
        return self.inverse_sqrt.astype(np.float32)

    @cached_property
    def _gamma(self) -> TensorFile:
        path = self.results.unembedding
        if not path.is_file():
            raise GeometryError(
                f"g of {self.results.folder} is not written, and γ, of which it is made, is not "
                f"kept. `snakemake {path}` fetches it again."
            )
        gamma = TensorFile(path)
        if gamma.digest != self.file.metadata.get(UNEMBEDDING_DIGEST):
            raise GeometryError(
                f"{self.path} was made of another matrix than {path}. Delete the revision's folder "
                "and run again."
            )
        return gamma


def open(model: str, revision: str, results: str | Path = GEOMETRY.folder) -> Revision:
    """Return the results of a revision, by its name, in a folder of results.

    Raises UserError where there are none.
    """
    return Revision(GeometryResults(Path(results)).model(model).revision(revision))
