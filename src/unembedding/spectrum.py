"""What the eigenvalues of a covariance say of a geometry."""

from __future__ import annotations

import numpy as np

from unembedding.records.stages import Spectrum


def spectrum(eigenvalues: np.ndarray) -> Spectrum:
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
        return Spectrum(0, None, 0.0)
    share = kept / kept.sum()
    effective_rank = float(np.exp(-(share * np.log(share)).sum()))
    return Spectrum(len(kept), float(kept[-1] / kept[0]), effective_rank)
