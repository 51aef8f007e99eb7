"""The causal transformation of γ, and the figures of its spectrum."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matrices import load_file, straightforward, with_spectrum, write_gamma

from unembedding.backends.numpy_backend import NumpyBackend
from unembedding.covariance import decompose
from unembedding.errors import GeometryError
from unembedding.spectrum import spectrum
from unembedding.transform import transform
from unembedding.whitening import Probes


@pytest.fixture
def transformed(tmp_path):
    """Decompose and transform a matrix; return the tensors written and the facts."""

    def run(gamma, precision="float64", on_rank_deficient="error", rows=None, residual="estimate"):
        source = write_gamma(tmp_path / "gamma.safetensors", gamma)
        middle, target = tmp_path / "decomposition.safetensors", tmp_path / "causal.safetensors"
        decompose(source, middle, NumpyBackend(), precision, rows)
        facts = transform(
            source, middle, target, NumpyBackend(), on_rank_deficient, residual=residual
        )
        return load_file(target), facts

    return run


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_g_is_what_the_definition_gives(transformed, dtype):
    gamma = with_spectrum(400, np.geomspace(1e-2, 1, 20)).astype(dtype)
    result, _ = transformed(gamma)
    _, inverse_sqrt, g = straightforward(gamma)
    np.testing.assert_allclose(result["g"], g, atol=2e-5)
    np.testing.assert_allclose(result["inverse_sqrt_covariance"], inverse_sqrt, rtol=1e-9)
    assert result["g"].dtype == np.float32


def test_a_transformation_known_in_closed_form(transformed):
    gamma = np.array([[1, 2], [1, -2], [-1, 2], [-1, -2]], np.float32) + 7
    result, _ = transformed(gamma)
    np.testing.assert_allclose(result["g"], [[1, 1], [1, -1], [-1, 1], [-1, -1]], atol=1e-7)
    np.testing.assert_allclose(result["inverse_sqrt_covariance"], [[1, 0], [0, 0.5]], atol=1e-15)


def test_g_is_white_at_condition_number_a_million(transformed):
    gamma = with_spectrum(5000, np.geomspace(1e-6, 1, 256)).astype(np.float32)
    result, facts = transformed(gamma)
    g = result["g"].astype(np.float64)
    assert np.abs(g.T @ g / len(g) - np.eye(256)).max() <= 1e-5
    assert facts.whitening_residual <= 1e-5
    assert facts.spectrum.condition_number == pytest.approx(1e6, rel=0.05)


def row_norms(g, expected):
    g = g.astype(np.float64)
    return np.linalg.norm(g.T @ g / len(g) - expected, axis=1)


@pytest.mark.parametrize("kind", ["full rank", "a duplicated column"])
def test_the_residual_is_the_largest_row_norm_of_what_g_lacks(transformed, kind):
    gamma = with_spectrum(2000, np.geomspace(1e-4, 1, 32)).astype(np.float32)
    expected = np.eye(32)
    if kind != "full rank":
        gamma[:, 31] = gamma[:, 0]
        _, _, rows = np.linalg.svd(gamma.astype(np.float64) - gamma.mean(0, dtype=np.float64))
        expected -= np.outer(rows[-1], rows[-1])
    run = {"precision": "float32", "on_rank_deficient": "pseudo_inverse"}
    result, exact = transformed(gamma, residual="exact", **run)
    measured = row_norms(result["g"], expected).max()
    # The projector of the part with full rank is known as well as float32 knows its eigenvectors.
    within = {"abs": 1e-6} if kind == "full rank" else {"rel": 0.1}
    assert exact.whitening_residual == pytest.approx(measured, **within)
    assert measured > 1e-6  # float32 does not whiten perfectly, and the figure has to show it
    _, estimate = transformed(gamma, **run)
    assert estimate.whitening_residual == pytest.approx(measured, rel=0.5, abs=1e-6)


def test_one_poor_direction_among_many_is_seen():
    g = with_spectrum(3000, np.array([1.0] * 63 + [1.2])).astype(np.float32)
    g -= g.mean(0, dtype=np.float64).astype(np.float32)
    probes = Probes(64)
    for block in np.array_split(g, 7):
        probes.add(block)
    assert probes.residual() == pytest.approx(row_norms(g, np.eye(64)).max(), rel=0.4)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    rows=st.integers(30, 90),
    width=st.integers(1, 24),
    decades=st.floats(0, 4),
    seed=st.integers(0, 2**16),
)
def test_any_full_rank_matrix_is_whitened(tmp_path_factory, rows, width, decades, seed):
    folder = tmp_path_factory.mktemp("white")
    gamma = with_spectrum(rows, np.logspace(-decades, 0, width), seed).astype(np.float32)
    source = write_gamma(folder / "gamma.safetensors", gamma)
    decompose(source, folder / "d.safetensors", NumpyBackend(), "float64")
    transform(source, folder / "d.safetensors", folder / "c.safetensors", NumpyBackend())
    g = load_file(folder / "c.safetensors")["g"].astype(np.float64)
    np.testing.assert_allclose(g.T @ g / rows, np.eye(width), atol=2e-5)


DEFICIENT = {
    "a constant column": lambda x: np.c_[np.ones(len(x)), x],
    "a column of zeros": lambda x: np.c_[x, np.zeros(len(x))],
    "a duplicated column": lambda x: np.c_[x, x[:, :1]],
    "fewer rows than columns": lambda x: x[:6],
}


@pytest.mark.parametrize("precision", ["float64", "float32"])
@pytest.mark.parametrize("kind", DEFICIENT)
def test_a_rank_deficient_covariance_is_an_error_that_gives_the_rank(transformed, kind, precision):
    gamma = DEFICIENT[kind](np.random.default_rng(0).standard_normal((80, 8))).astype(np.float32)
    rank = np.linalg.matrix_rank(np.cov(gamma.astype(np.float64).T))
    with pytest.raises(GeometryError, match=rf"rank {rank} of {gamma.shape[1]}.*pseudo_inverse"):
        transformed(gamma, precision)


@pytest.mark.parametrize("kind", DEFICIENT)
def test_the_pseudo_inverse_gives_the_projector_of_that_rank(transformed, kind):
    gamma = DEFICIENT[kind](np.random.default_rng(0).standard_normal((80, 8))).astype(np.float32)
    covariance = np.cov(gamma.astype(np.float64).T, bias=True)
    rank = np.linalg.matrix_rank(covariance)
    result, facts = transformed(gamma, on_rank_deficient="pseudo_inverse")
    g = result["g"].astype(np.float64)
    projector = covariance @ np.linalg.pinv(covariance, rcond=1e-12, hermitian=True)
    np.testing.assert_allclose(g.T @ g / len(g), projector, atol=1e-5)
    assert facts.spectrum.rank == rank
    assert facts.whitening_residual <= 1e-5


@pytest.mark.parametrize("on_rank_deficient", ["error", "pseudo_inverse"])
@pytest.mark.parametrize("rows", [2, 9])
@pytest.mark.parametrize("value", [0, 1])
def test_equal_rows_have_nothing_to_transform(transformed, value, rows, on_rank_deficient):
    with pytest.raises(
        GeometryError, match=rf"rank 0 of 3 \(all {rows} rows are equal to within rounding, "
    ) as told:
        transformed(np.full((rows, 3), value, np.float32), on_rank_deficient=on_rank_deficient)
    assert "There is nothing to transform" in str(told.value)
    assert "depend on each" not in str(told.value) and "pseudo_inverse" not in str(told.value)


def test_rows_cut_g_and_not_the_matrix(transformed):
    gamma = np.random.default_rng(0).standard_normal((64, 8)).astype(np.float32)
    cut, _ = transformed(gamma, rows=60)
    alone, _ = transformed(gamma[:60])
    np.testing.assert_array_equal(cut["g"], alone["g"])
    assert cut["g"].shape == (60, 8)


def test_effective_rank_of_equal_eigenvalues_is_their_number():
    assert spectrum(np.full(7, 0.3)).effective_rank == pytest.approx(7)


def test_effective_rank_is_the_exponential_of_the_entropy():
    # Shares 1/2, 1/4, 1/4: entropy 1.5 ln 2.
    found = spectrum(np.array([1.0, 1.0, 2.0]))
    assert found.effective_rank == pytest.approx(math.exp(1.5 * math.log(2)))


@pytest.mark.parametrize("zero", [0.0, -1e-16, 1e-16])
def test_an_eigenvalue_at_rounding_level_does_not_count(zero):
    found = spectrum(np.array([zero, 0.5, 2.0]))
    assert (found.rank, found.condition_number) == (2, 4.0)


def test_a_decomposition_of_another_width_is_refused_by_name(tmp_path):
    gamma = np.random.default_rng(0).random((9, 2))
    narrow = write_gamma(tmp_path / "narrow", gamma)
    wide = write_gamma(tmp_path / "wide", gamma.reshape(6, 3))
    decompose(narrow, tmp_path / "decomposition", NumpyBackend(), "float64")
    with pytest.raises(GeometryError, match=r"decomposition was made for a width of 2"):
        transform(wide, tmp_path / "decomposition", tmp_path / "causal", NumpyBackend())


def test_a_decomposition_of_another_matrix_is_refused_by_name(tmp_path):
    one, other = (
        write_gamma(tmp_path / name, np.random.default_rng(seed).random((9, 3)))
        for seed, name in enumerate(("one", "other"))
    )
    decompose(one, tmp_path / "decomposition", NumpyBackend(), "float64")
    with pytest.raises(GeometryError, match=r"decomposition was computed from another matrix"):
        transform(other, tmp_path / "decomposition", tmp_path / "causal", NumpyBackend())


@pytest.mark.parametrize("name", ["gamma", "decomposition"])
def test_every_flipped_byte_of_an_input_is_noticed(tmp_path, name):
    gamma = write_gamma(tmp_path / "gamma", np.random.default_rng(0).random((5, 2)))
    decompose(gamma, tmp_path / "decomposition", NumpyBackend(), "float64")
    sound = (tmp_path / name).read_bytes()
    for position in (i for i, byte in enumerate(sound) if byte != ord(" ")):  # the header's padding
        flipped = bytes([sound[position] ^ 1])
        (tmp_path / name).write_bytes(sound[:position] + flipped + sound[position + 1 :])
        with pytest.raises(GeometryError, match=str(tmp_path / name)):
            transform(gamma, tmp_path / "decomposition", tmp_path / "causal", NumpyBackend())
        assert not (tmp_path / "causal").exists()


def test_a_g_that_float32_cannot_hold_is_an_error_and_not_a_result(tmp_path):
    gamma = np.random.default_rng(0).random((9, 2)) * np.array([1e-160, 1.0])
    source = write_gamma(tmp_path / "gamma", gamma * 1e-60)
    decompose(source, tmp_path / "decomposition", NumpyBackend(), "float64")
    with pytest.raises(GeometryError):
        transform(source, tmp_path / "decomposition", tmp_path / "causal", NumpyBackend())
    assert not (tmp_path / "causal").exists()
