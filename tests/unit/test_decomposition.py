"""The mean, covariance and eigendecomposition of γ."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matrices import load_file, straightforward, with_spectrum, write_gamma

from unembedding.backends.numpy_backend import NumpyBackend
from unembedding.covariance import decompose
from unembedding.errors import GeometryError
from unembedding.tensors import files as tensor_file


@pytest.fixture
def decomposed(tmp_path):
    def run(gamma, precision="float64", rows=None):
        target = tmp_path / "decomposition.safetensors"
        decompose(
            write_gamma(tmp_path / "gamma.safetensors", gamma),
            target,
            NumpyBackend(),
            precision,
            rows,
        )
        return load_file(target)

    return run


@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_eigenvalues_are_those_that_the_matrix_was_made_with(decomposed, precision):
    spectrum = np.geomspace(1e-3, 10, 24)
    result = decomposed(with_spectrum(300, spectrum).astype(np.float32), precision)
    np.testing.assert_allclose(result["eigenvalues"], spectrum, rtol=1e-3)
    assert result["eigenvalues"].dtype == precision


def test_a_covariance_known_in_closed_form(decomposed):
    # Two columns of ±1 and ±2, uncorrelated: C = diag(1, 4), divided by V and not by V − 1.
    result = decomposed(np.array([[1, 2], [1, -2], [-1, 2], [-1, -2]], np.float32))
    np.testing.assert_array_equal(result["eigenvalues"], [1, 4])
    np.testing.assert_array_equal(result["mean"], [0, 0])
    np.testing.assert_array_equal(np.abs(result["eigenvectors"]), np.eye(2))


def test_eigenvectors_are_the_columns(decomposed):
    gamma = with_spectrum(200, np.geomspace(0.1, 1, 12)).astype(np.float32)
    result = decomposed(gamma)
    covariance = np.cov(gamma.astype(np.float64).T, bias=True)
    q, spectrum = result["eigenvectors"], result["eigenvalues"]
    np.testing.assert_allclose(covariance @ q, q * spectrum, atol=1e-14)
    np.testing.assert_allclose(q.T @ q, np.eye(12), atol=1e-14)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    rows=st.integers(2, 80),
    width=st.integers(1, 20),
    block=st.integers(1, 33),
    scale=st.sampled_from([1e-6, 1.0, 1e4]),
    seed=st.integers(0, 2**16),
)
def test_blocks_of_any_size_give_the_straightforward_result(
    tmp_path_factory, rows, width, block, scale, seed
):
    folder = tmp_path_factory.mktemp("blocks")
    gamma = (np.random.default_rng(seed).standard_normal((rows, width)) * scale).astype(np.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tensor_file, "BLOCK_BYTES", block * 8 * width)
        decompose(
            write_gamma(folder / "gamma.safetensors", gamma),
            folder / "decomposition.safetensors",
            NumpyBackend(),
            "float64",
        )
    result = load_file(folder / "decomposition.safetensors")
    q, spectrum = result["eigenvectors"], result["eigenvalues"]
    covariance = np.atleast_2d(np.cov(gamma.astype(np.float64).T, bias=True))
    np.testing.assert_allclose(q * spectrum @ q.T, covariance, atol=1e-13 * scale**2)


def test_first_rows_give_what_they_give_alone(decomposed):
    padded = np.random.default_rng(0).standard_normal((64, 8)).astype(np.float32)
    first, alone = decomposed(padded, rows=60), decomposed(padded[:60])
    for name in first:
        np.testing.assert_array_equal(first[name], alone[name])


def test_more_rows_than_there_are_is_an_error_with_both_numbers(decomposed):
    with pytest.raises(GeometryError, match=r"rows: 65.*64 rows"):
        decomposed(np.eye(64, 8, dtype=np.float32), rows=65)


def test_the_mean_of_twenty_million_equal_numbers_is_that_number(decomposed):
    # A float32 sum of ones stops growing at 2^24; the values beside them keep the covariance alive.
    gamma = np.ones((20_000_000, 1), np.float32)
    gamma[-2:, 0] = [0, 2]
    result = decomposed(gamma, precision="float32")
    assert result["mean"] == 1.0
    np.testing.assert_allclose(result["eigenvalues"], 2 / 20_000_000, rtol=1e-6)


def test_float16_sums_beyond_its_range_do_not_saturate(decomposed):
    gamma = np.full((100, 2), 60_000, np.float16)
    gamma[::2, 0] = 59_968
    gamma[::4, 1] = 59_968
    result = decomposed(gamma)
    np.testing.assert_allclose(result["mean"], [59_984, 59_992])


def test_bfloat16_is_used_as_the_float32_it_abbreviates(tmp_path):
    import torch

    values = torch.randn(50, 6, generator=torch.Generator().manual_seed(0)).bfloat16()
    write_gamma(tmp_path / "b.safetensors", values.view(torch.uint16).numpy(), "BF16")
    decompose(tmp_path / "b.safetensors", tmp_path / "d.safetensors", NumpyBackend(), "float64")
    expected = straightforward(values.float().numpy())[0]
    np.testing.assert_allclose(load_file(tmp_path / "d.safetensors")["eigenvalues"], expected)


def test_a_large_mean_does_not_cost_accuracy(decomposed):
    spectrum = np.geomspace(1e-4, 1, 16)
    gamma = with_spectrum(500, spectrum) + 1000.0
    result = decomposed(gamma)  # float64: float32 could not even store it
    np.testing.assert_allclose(result["eigenvalues"], spectrum, rtol=1e-6)


def test_not_a_number_is_refused_with_tensor_count_and_first_position(decomposed):
    gamma = np.random.default_rng(0).standard_normal((100, 4)).astype(np.float32)
    gamma[17, 3] = np.nan
    gamma[40, 0] = -np.inf
    with pytest.raises(GeometryError, match=r"'lm_head.weight' holds 2 .* nan at row 17, column 3"):
        decomposed(gamma)


def test_an_infinity_behind_the_rows_used_does_not_matter(decomposed):
    gamma = np.random.default_rng(0).standard_normal((64, 4)).astype(np.float32)
    gamma[60:] = np.inf
    assert np.isfinite(decomposed(gamma, rows=60)["eigenvalues"]).all()


def test_a_flipped_bit_in_the_matrix_is_noticed(tmp_path):
    path = write_gamma(tmp_path / "gamma.safetensors", np.eye(9, 3, dtype=np.float32))
    damaged = bytearray(path.read_bytes())
    damaged[-5] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(GeometryError, match=r"gamma.safetensors is damaged"):
        decompose(path, tmp_path / "d.safetensors", NumpyBackend(), "float64")
    assert not (tmp_path / "d.safetensors").exists()


def test_a_width_beyond_32_bits_is_refused_before_any_work():
    with pytest.raises(GeometryError, match=r"28001.*at most 28000"):
        NumpyBackend().gram([], np.zeros(28001), np.dtype(np.float64))


@pytest.mark.parametrize(
    ("value", "said"),
    [(1e200, "no finite eigendecomposition"), (1.7e308, "whose sum leaves the range of float64")],
)
def test_numbers_that_are_too_large_are_told_from_infinite_ones(decomposed, value, said):
    gamma = np.random.default_rng(0).uniform(-1, 1, (20, 3)) * value
    with pytest.raises(GeometryError, match=said):
        decomposed(gamma)


def test_a_width_beyond_the_32_bit_workspace_is_refused():
    with pytest.raises(GeometryError, match=r"32767.*at most 28000"):
        NumpyBackend().eigh(np.broadcast_to(0.0, (32767, 32767)), np.dtype(np.float64))


def test_the_same_input_gives_the_same_bytes(tmp_path):
    gamma = np.random.default_rng(0).standard_normal((3000, 96)).astype(np.float32)
    path = write_gamma(tmp_path / "gamma.safetensors", gamma)
    for name in ("first", "second"):
        decompose(path, tmp_path / name, NumpyBackend(), "float64")
    assert (tmp_path / "first").read_bytes() == (tmp_path / "second").read_bytes()


@pytest.mark.parametrize("far", [3e7, 1e10, 1e14])
def test_float64_rows_far_from_zero_keep_their_spectrum(tmp_path, far):
    near = with_spectrum(4000, np.geomspace(0.8, 1, 16)) * 30
    gamma = near + far
    write_gamma(tmp_path / "gamma", gamma)
    decompose(tmp_path / "gamma", tmp_path / "d", NumpyBackend(), "float64")
    exact = (gamma - far) - (gamma - far).mean(axis=0)  # the difference from far is exact
    expected = np.linalg.eigvalsh(exact.T @ exact / len(exact))
    np.testing.assert_allclose(load_file(tmp_path / "d")["eigenvalues"], expected, rtol=1e-3)


def test_a_constant_column_far_from_zero_has_no_variance(tmp_path):
    gamma = with_spectrum(4000, np.geomspace(0.8, 1, 16))
    gamma[:, 3] = 1e15 / 3
    write_gamma(tmp_path / "gamma", gamma)
    decompose(tmp_path / "gamma", tmp_path / "d", NumpyBackend(), "float64")
    assert load_file(tmp_path / "d")["eigenvalues"][0] < 1e-15


@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_rows_that_drift_give_the_covariance_about_their_common_mean(decomposed, precision):
    # Tokens are sorted by frequency, so the first rows have another mean than all.
    gamma = with_spectrum(900, np.geomspace(0.1, 1, 8)) + np.linspace(-9, 9, 900)[:, None]
    result = decomposed(gamma.astype(np.float32), precision)
    expected = np.linalg.eigvalsh(np.cov(gamma.T, bias=True))
    tolerance = 1e-5 if precision == "float64" else 1e-3
    np.testing.assert_allclose(result["eigenvalues"], expected, rtol=tolerance)
    np.testing.assert_allclose(result["mean"], gamma.mean(axis=0), atol=1e-6)
