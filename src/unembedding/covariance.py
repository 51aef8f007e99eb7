"""The eigendecomposition of the unembedding's covariance, streamed over blocks of rows.

With V rows γᵢ of width d: μ = Σ γᵢ / V and C = Σ (γᵢ − μ)ᵀ(γᵢ − μ) / V = Q Λ Qᵀ
(Park et al. 2024, "The Geometry of Categorical and Hierarchical Concepts in LLMs", section 2).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from unembedding.backends import Backend
from unembedding.backends.interface import DeviceMatrix
from unembedding.errors import GeometryError
from unembedding.extraction import UNEMBEDDING
from unembedding.files import replacing
from unembedding.records.stages import Decomposition
from unembedding.stopwatch import Stopwatch
from unembedding.tensors.files import SAFETENSORS, TensorFile, TensorWriter, block_rows

UNEMBEDDING_DIGEST = "unembedding_digest"
"""Metadata key of what is computed from γ: the digest of the γ that it was computed from."""
DECOMPOSITION_DIGEST = "decomposition_digest"
"""The same of what is computed from a decomposition."""


def decompose(
    unembedding: Path,
    target: Path,
    backend: Backend,
    precision: str,
    rows: int | None = None,
    clock: Stopwatch | None = None,
) -> Decomposition:
    """Write mean (d), eigenvalues (d, ascending) and eigenvectors (d × d, columns) of γ.

    ``rows`` uses the first rows only. Means and sums over rows are float64 whatever ``precision``
    is; covariance products and the decomposition are done in ``precision``. γ is read once, and
    memory is a small multiple of d², independent of V. Raises GeometryError for a matrix that is
    damaged, not finite or too small.
    """
    clock = clock or Stopwatch()
    gamma = TensorFile(unembedding)
    height, width = gamma.tensor(UNEMBEDDING, 2).shape
    used = rows_used(height, rows, unembedding)
    dtype = np.dtype(precision)
    with clock("covariance"):
        mean, covariance = mean_and_covariance(gamma, used, backend, dtype, clock)
        backend.synchronize()  # or the next step would wait for what this one began
    with clock("eigh"):
        try:
            eigenvalues, eigenvectors = backend.eigh(covariance, dtype)
        except np.linalg.LinAlgError:
            raise _no_decomposition(unembedding, dtype) from None
    del covariance
    if not (np.isfinite(eigenvalues).all() and np.isfinite(eigenvectors.sum())):
        raise _no_decomposition(unembedding, dtype)
    of_gamma = gamma.digest
    with clock("write"):
        metadata = {"rows": str(used), UNEMBEDDING_DIGEST: of_gamma}
        digest = _write(target, mean, eigenvalues, eigenvectors, metadata)
    return Decomposition(used, height, width, precision, of_gamma, digest)


def mean_and_covariance(
    gamma: TensorFile, rows: int, backend: Backend, dtype: np.dtype, clock: Stopwatch
) -> tuple[np.ndarray, DeviceMatrix]:
    """Return μ (d, float64) and C (as ``gram`` returns it), of one pass over verified rows.

    Rows are shifted by a mean of a few of them, near: with δ = μ − near,
    C = Σ (γᵢ − near)ᵀ(γᵢ − near) / V − δᵀδ, where δ is a sixteenth of a standard deviation, so what
    is subtracted is small. Raises GeometryError where γ is damaged or not finite.
    """
    gamma.verify_header()
    near = _mean_of_some(gamma, rows)
    sums = _Sums(gamma, near)
    blocks = clock.each("verify and mean", sums.over(gamma.verified_blocks(UNEMBEDDING, rows)))
    covariance = backend.gram(blocks, near, dtype)
    mean = sums.finite_mean(rows)
    covariance /= rows
    off = mean - near
    covariance -= backend.on_device(np.outer(off, off))
    return mean, covariance


def rows_used(height: int, rows: int | None, where: Path) -> int:
    """Return how many rows to use; raise GeometryError where more are asked for than there are."""
    if rows is not None and rows > height:
        raise GeometryError(
            f"`rows: {rows}` asks for more than the {height} rows of {where}. "
            "Lower it, or remove it to use them all."
        )
    return height if rows is None else rows


def _mean_of_some(gamma: TensorFile, rows: int) -> np.ndarray:
    """Return the mean (d, float64) of up to 256 rows, spread evenly."""
    count = min(rows, 256)
    sample = gamma.rows(UNEMBEDDING, np.arange(count) * rows // count).astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is told of later
        return sample[0] + (sample - sample[0]).mean(axis=0)


class _Sums:
    """The sum of the rows that pass.

    A float64 sum of finite float32 numbers cannot overflow, so it shows any NaN or infinity. Rows
    in float64 are summed as differences from ``near``, or a sum of many rows far from zero would
    lose what tells them apart.
    """

    def __init__(self, gamma: TensorFile, near: np.ndarray) -> None:
        self.gamma = gamma
        self.wide = gamma.tensor(UNEMBEDDING, 2).dtype == "F64"
        self.origin = near if self.wide else np.zeros(len(near))
        self.total = np.zeros(len(near))

    def over(self, blocks: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
        for block in blocks:
            differences = block - self.origin if self.wide else block
            self.total += differences.sum(axis=0, dtype=np.float64)
            yield block

    def finite_mean(self, rows: int) -> np.ndarray:
        """Return the mean row (d, float64); raise GeometryError where γ is not finite."""
        if not np.isfinite(self.total).all():
            raise GeometryError(_where_not_finite(self.gamma, rows))
        return self.origin + self.total / rows


def _where_not_finite(gamma: TensorFile, rows: int) -> str:
    count, position, value = 0, None, None
    step = block_rows(gamma.tensor(UNEMBEDDING, 2).shape[1])
    for index, block in enumerate(gamma.blocks(UNEMBEDDING, rows)):
        bad = np.argwhere(~np.isfinite(block))
        if len(bad) and position is None:
            row, column = bad[0]
            position, value = (int(row) + index * step, int(column)), block[row, column]
        count += len(bad)
    tensor = gamma.metadata.get("tensor", UNEMBEDDING)
    found = "values whose sum leaves the range of float64"
    if position is not None:
        row, column = position
        found = f"{count} values that are not finite; the first is {value} "
        found += f"at row {row}, column {column}"
    return (
        f"{gamma.path}: tensor {tensor!r} holds {found}. No covariance can be computed; check the "
        "checkpoint."
    )


def _no_decomposition(where: Path, dtype: np.dtype) -> GeometryError:
    return GeometryError(
        f"The covariance of {where} has no finite eigendecomposition in {dtype}: its values are "
        "too large, or too far apart, for this precision."
    )


def _write(
    target: Path,
    mean: np.ndarray,
    eigenvalues: np.ndarray,
    eigenvectors: np.ndarray,
    metadata: dict[str, str],
) -> str:
    """Write the decomposition, and return the digest of its data."""
    arrays = {"mean": mean, "eigenvalues": eigenvalues, "eigenvectors": eigenvectors}
    tensors = {name: (SAFETENSORS[a.dtype.name], a.shape) for name, a in arrays.items()}
    with replacing(target) as file:
        writer = TensorWriter(file, tensors, metadata)
        writer.write(mean)
        writer.write(eigenvalues)
        step = block_rows(len(mean))
        for first in range(0, len(mean), step):
            writer.write(eigenvectors[first : first + step])
        writer.close()
        return writer.digest
