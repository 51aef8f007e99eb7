"""Same input, same bytes; with other threads, the same g up to a stated tolerance."""

import shutil

import numpy as np
import pytest
from checkpoints import matrix, random_matrix
from promises import SOAK
from running import succeed
from safetensors.numpy import load_file

FILES = ("unembedding", "decomposition", "causal", "factors")
TOLERANCE = 1e-5  # of the largest |g|, across thread counts
CONFIG = {"models": {"m": {"path": "models/m"}}}
TARGET = "results/geometry/m/local/geometry.json"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A matrix large enough that BLAS divides the work between threads."""
    folder = tmp_path_factory.mktemp("reproducible")
    matrix(folder / "models/m", random_matrix(1, *((6000, 1000) if SOAK else (3000, 400))))
    return folder


@pytest.fixture(scope="module")
def results(folder):
    def results(threads):
        shutil.rmtree(folder / "results", ignore_errors=True)
        rules = ("decompose_covariance", "transform_unembedding")
        succeed(folder, CONFIG, TARGET, "--set-threads", *(f"{rule}={threads}" for rule in rules))
        place = (folder / TARGET).parent
        return {name: (place / f"{name}.safetensors").read_bytes() for name in FILES}, load_file(
            place / "causal.safetensors"
        )["g"]

    return results


def test_a_rerun_is_bit_identical_and_threads_change_g_by_rounding(results, report):
    first, g = results(2)
    again, _ = results(2)
    assert again == first
    _, alone = results(1)
    difference = np.abs(alone - g).max() / np.abs(g).max()
    report(f"g with 1 and with 2 threads differs by {difference:.1e} of its largest value")
    assert difference < TOLERANCE
