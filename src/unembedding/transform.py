"""The causal transformation g = (γ − μ) C^(−1/2).

C^(−1/2) = Q Λ^(−1/2) Qᵀ, so gᵀg / V = I (Park et al. 2024, section 2).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from unembedding.backends import Backend
from unembedding.covariance import DECOMPOSITION_DIGEST, UNEMBEDDING_DIGEST
from unembedding.errors import GeometryError
from unembedding.extraction import UNEMBEDDING
from unembedding.files import replacing
from unembedding.records.stages import Transformation
from unembedding.spectrum import spectrum
from unembedding.stopwatch import Stopwatch
from unembedding.tensors.files import SAFETENSORS, TensorFile, TensorWriter, block_rows
from unembedding.whitening import INVERSE_SQRT, SQRT, G, Probes, whitening_residual


def transform(
    unembedding: Path,
    decomposition: Path,
    causal: Path | None,
    backend: Backend,
    on_rank_deficient: str = "error",
    clock: Stopwatch | None = None,
    residual: str = "estimate",
    factors: Path | None = None,
) -> Transformation:
    """Form g (V × d, float32) and C^(−1/2) (d × d) for the rows that were decomposed.

    Both are written to ``causal``; μ, C^(−1/2) and C^(1/2), of which any rows of g can be formed
    again, to ``factors``. Either may be None, and g is measured all the same.

    A covariance without full rank raises GeometryError, or with ``pseudo_inverse`` is inverted on
    the r eigenvectors it has, so that gᵀg / V is the projector on them. Returns rank, condition
    number, effective rank and the whitening residual: an ``estimate`` from the blocks of g as they
    are formed, or ``exact``, for which g is read or formed again (``unembedding.whitening``).
    """
    clock = clock or Stopwatch()
    with clock("verify and read"):
        gamma, decomposed = TensorFile(unembedding), TensorFile(decomposition)
        gamma.verify_header()
        decomposed.verify()
        _require_made_from(decomposed, gamma)
        rows = int(decomposed.metadata["rows"])
        mean, eigenvalues, eigenvectors = _read_decomposition(decomposed, gamma)
    found = spectrum(eigenvalues)
    kept = _kept(eigenvalues, found.rank, rows, on_rank_deficient, unembedding)
    with clock("inverse square root"):
        inverse_sqrt = _power(backend, eigenvectors, eigenvalues, kept, -0.5)
        del eigenvectors
    dtype, width = SAFETENSORS[eigenvalues.dtype.name], len(mean)
    made_from = {UNEMBEDDING_DIGEST: gamma.digest, DECOMPOSITION_DIGEST: decomposed.digest}
    metadata = {"rows": str(rows), **made_from}
    of_factors = of_causal = None
    if factors is not None:
        with clock("square root"):
            vectors = decomposed.read("eigenvectors", 2)
            sqrt = _power(backend, vectors, eigenvalues, kept, 0.5)
            del vectors
        with clock("write"):
            of_factors = _write_factors(factors, mean, inverse_sqrt, sqrt, metadata)
            del sqrt
    matrix = inverse_sqrt.astype(np.float32)

    def products() -> Iterator[np.ndarray]:
        return backend.products(gamma.verified_blocks(UNEMBEDDING, rows), mean, matrix)

    probes = Probes(width)
    with clock("write"), ExitStack() as files:
        if causal is not None:
            tensors = {G: ("F32", (rows, width)), INVERSE_SQRT: (dtype, (width, width))}
            file = files.enter_context(replacing(causal))
            writer = TensorWriter(file, tensors, metadata, uncached=True)
        for block in clock.each("transform", products()):
            if causal is not None:
                writer.write(block)
            with clock.adding("whitening residual"):
                probes.add(block)
        _require_finite(probes.total, unembedding)
        if causal is not None:
            _write_rows(writer, inverse_sqrt)
            writer.close()
            of_causal = writer.digest
    del inverse_sqrt
    with clock("whitening residual"):
        directions = None
        if found.rank < width:
            directions = decomposed.read("eigenvectors", 2)[:, kept]
        if residual == "exact":
            blocks = products() if causal is None else TensorFile(causal).blocks(G)
            deviation = whitening_residual(blocks, rows, width, backend, directions)
        else:
            deviation = probes.residual(directions)
    mean_of_g = float(np.abs(probes.total).max()) / rows
    made = (gamma.digest, decomposed.digest, of_causal, of_factors)
    return Transformation(rows, found, deviation, mean_of_g, *made)


def _power(
    backend: Backend,
    eigenvectors: np.ndarray,
    eigenvalues: np.ndarray,
    kept: np.ndarray,
    exponent: float,
) -> np.ndarray:
    """Return Q Λ^exponent Qᵀ on the kept eigenvectors (d × d); Q may be overwritten."""
    scale = np.zeros(len(eigenvalues))
    scale[kept] = eigenvalues[kept].astype(np.float64) ** (exponent / 2)
    outer = backend.scaled_outer(eigenvectors, scale)
    return outer.astype(eigenvalues.dtype, copy=False)


def _write_factors(
    target: Path,
    mean: np.ndarray,
    inverse_sqrt: np.ndarray,
    sqrt: np.ndarray,
    metadata: dict[str, str],
) -> str:
    """Write factors.safetensors; return the digest of its tensors."""
    square = (SAFETENSORS[sqrt.dtype.name], sqrt.shape)
    tensors = {"mean": ("F64", mean.shape), INVERSE_SQRT: square, SQRT: square}
    with replacing(target) as file:
        writer = TensorWriter(file, tensors, metadata)
        writer.write(mean.astype(np.float64))
        _write_rows(writer, inverse_sqrt)
        _write_rows(writer, sqrt)
        writer.close()
    return writer.digest


def _write_rows(writer: TensorWriter, matrix: np.ndarray) -> None:
    step = block_rows(matrix.shape[1])
    for first in range(0, len(matrix), step):
        writer.write(matrix[first : first + step])


def _kept(
    eigenvalues: np.ndarray, rank: int, rows: int, on_rank_deficient: str, where: Path
) -> np.ndarray:
    """Return which eigenvalues are inverted (d, bool), or raise where the rank forbids it."""
    width = len(eigenvalues)
    if rank < width and (on_rank_deficient == "error" or rank == 0):
        why = f"{rows} rows give at most {rows - 1}"
        if rows > width:
            why = "columns depend on each other, to within rounding"
        advice = "`on_rank_deficient: pseudo_inverse` transforms the part that has full rank."
        if rank == 0:
            why = f"all {rows} rows are equal to within rounding, or too small to be squared"
            advice = (
                "There is nothing to transform: see whether this checkpoint was trained, or name "
                "another tensor with `unembedding:`."
            )
        if eigenvalues.dtype == np.float32:
            advice += " `precision: float64` sees smaller eigenvalues."
        raise GeometryError(
            f"The covariance of {where} has rank {rank} of {width} ({why}), so it has no inverse "
            f"square root. {advice}"
        )
    return np.arange(width) >= width - rank


def _require_made_from(decomposed: TensorFile, gamma: TensorFile) -> None:
    used, found = decomposed.metadata.get(UNEMBEDDING_DIGEST), gamma.digest
    if used != found:
        raise GeometryError(
            f"{decomposed.path} was computed from another matrix than {gamma.path}: from the "
            f"digest {used}, not {found}. Delete {decomposed.path} and run again."
        )


def _require_finite(total: np.ndarray, where: Path) -> None:
    if not np.isfinite(total).all():  # a sum with one number that is not finite is not
        raise GeometryError(
            f"g of {where} leaves the range of float32: the covariance is too close to one without "
            "full rank, or its values are too small or too large."
        )


def _read_decomposition(
    decomposed: TensorFile, gamma: TensorFile
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    mean = decomposed.read("mean", 1)
    eigenvalues = decomposed.read("eigenvalues", 1)
    eigenvectors = decomposed.read("eigenvectors", 2)
    width = gamma.tensor(UNEMBEDDING, 2).shape[1]
    if not mean.shape == eigenvalues.shape == (width,) or eigenvectors.shape != (width, width):
        raise GeometryError(
            f"{decomposed.path} was made for a width of {len(mean)}, and {gamma.path} has {width}. "
            "Delete both and run again."
        )
    if not all(np.isfinite(array).all() for array in (mean, eigenvalues, eigenvectors)):
        raise GeometryError(
            f"{decomposed.path} holds values that are not finite. Delete it and run again."
        )
    return mean, eigenvalues, eigenvectors
