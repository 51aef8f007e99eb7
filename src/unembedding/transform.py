"""The causal transformation g = (γ − μ) C^(−1/2), and what the spectrum says of the geometry.

C^(−1/2) = Q Λ^(−1/2) Qᵀ, so gᵀg / V = I (Park et al. 2024, section 2).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from unembedding.backends import Backend
from unembedding.covariance import DECOMPOSITION_SHA256, UNEMBEDDING_SHA256
from unembedding.errors import GeometryError
from unembedding.extraction import UNEMBEDDING
from unembedding.files import replacing
from unembedding.stopwatch import Stopwatch
from unembedding.tensors.files import SAFETENSORS, SHA256, TensorFile, TensorWriter, block_rows

G = "g"
INVERSE_SQRT = "inverse_sqrt_covariance"
CAUSAL_SHA256 = "causal_sha256"
"""Key of facts: the digest of g and C^(−1/2) in the file that they are about."""


def transform(
    unembedding: Path,
    decomposition: Path,
    target: Path,
    backend: Backend,
    on_rank_deficient: str = "error",
    clock: Stopwatch | None = None,
) -> dict[str, Any]:
    """Write g (V × d, float32) and C^(−1/2) (d × d) for the rows that were decomposed.

    A covariance without full rank raises GeometryError, or with ``pseudo_inverse`` is inverted on
    the r eigenvectors it has, so that gᵀg / V is the projector on them. Returns rank, condition
    number, effective rank and the whitening residual, which is measured on the file written.
    """
    clock = clock or Stopwatch()
    with clock("verify and read"):
        gamma, decomposed = TensorFile(unembedding), TensorFile(decomposition)
        gamma.verify_header()
        decomposed.verify()
        _require_made_from(decomposed, gamma)
        rows = int(decomposed.metadata["rows"])
        mean, eigenvalues, eigenvectors = _read_decomposition(decomposed, gamma)
    facts = spectrum_facts(eigenvalues)
    kept = _kept(eigenvalues, facts["rank"], rows, on_rank_deficient, unembedding)
    with clock("inverse square root"):
        scale = np.zeros(len(mean))
        scale[kept] = eigenvalues[kept].astype(np.float64) ** -0.25
        dtype = eigenvalues.dtype
        inverse_sqrt = backend.scaled_outer(eigenvectors, scale)
        del eigenvectors
    with replacing(target) as file:
        tensors = {
            G: ("F32", (rows, len(mean))),
            INVERSE_SQRT: (SAFETENSORS[dtype.name], inverse_sqrt.shape),
        }
        made_from = {
            UNEMBEDDING_SHA256: gamma.metadata[SHA256],
            DECOMPOSITION_SHA256: decomposed.metadata[SHA256],
        }
        writer = TensorWriter(file, tensors, {"rows": str(rows), **made_from})
        with clock("write"):
            matrix = inverse_sqrt.astype(np.float32)
            blocks = gamma.verified_blocks(UNEMBEDDING, rows)
            finite = True
            for block in clock.each("transform", backend.products(blocks, mean, matrix)):
                writer.write(block)
                finite = finite and bool(np.isfinite(block.sum()))
            _require_finite(finite, unembedding)
            step = block_rows(len(mean))
            for first in range(0, len(mean), step):
                writer.write(inverse_sqrt[first : first + step].astype(dtype))
            writer.close()
            made_from[CAUSAL_SHA256] = writer.sha256
    del inverse_sqrt, matrix
    with clock("whitening residual"):
        projector = None
        if facts["rank"] < len(mean):
            vectors = decomposed.read("eigenvectors", 2)
            projector = backend.scaled_outer(vectors, kept.astype(np.float64))
        facts["whitening_residual"] = whitening_residual(target, backend, projector)
    return {"rows": rows, **facts, **made_from}


def spectrum_facts(eigenvalues: np.ndarray) -> dict[str, Any]:
    """Return rank, condition number and effective rank of a covariance from its eigenvalues.

    The rank counts eigenvalues above 8 ε λmax, where ε is that of their precision: rounding left
    eigenvalues that should be zero at up to 3.6 ε λmax, whatever the width (docs/benchmarks.md).
    The condition number is that of the part counted. The effective rank is
    exp(entropy(Λ / ΣΛ)) (Roy & Vetterli 2007).
    """
    largest = float(eigenvalues[-1])
    floor = 8 * np.finfo(eigenvalues.dtype).eps * largest
    kept = eigenvalues[eigenvalues > max(floor, 0.0)].astype(np.float64)
    if not len(kept):
        return {"rank": 0, "condition_number": None, "effective_rank": 0.0}
    share = kept / kept.sum()
    return {
        "rank": len(kept),
        "condition_number": float(kept[-1] / kept[0]),
        "effective_rank": float(np.exp(-(share * np.log(share)).sum())),
    }


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
    used, found = decomposed.metadata.get(UNEMBEDDING_SHA256), gamma.metadata[SHA256]
    if used != found:
        raise GeometryError(
            f"{decomposed.path} was computed from another matrix than {gamma.path}: from the "
            f"sha256 {used}, not {found}. Delete {decomposed.path} and run again."
        )


def _require_finite(finite: bool, where: Path) -> None:
    if not finite:
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


def whitening_residual(causal: Path, backend: Backend, projector: np.ndarray | None) -> float:
    """Return max |gᵀg / V − P| of the g in a file, where P is the identity unless given.

    Products are formed in float32, which measures down to about 5e-7, and summed in float64.
    """
    file = TensorFile(causal)
    rows, width = file.tensor(G, 2).shape
    moments = backend.host(backend.gram(file.blocks(G), np.zeros(width), np.dtype(np.float32)))
    worst = 0.0
    step = block_rows(width)
    for first in range(0, width, step):
        stop = min(first + step, width)
        expected = (
            np.eye(stop - first, width, first) if projector is None else projector[first:stop]
        )
        # Not `max`, for which a number that is no number is never the larger one.
        worst = float(np.maximum(worst, np.abs(moments[first:stop] / rows - expected).max()))
    if not np.isfinite(worst):
        raise GeometryError(f"{causal} holds a g whose products are not finite.")
    return worst
