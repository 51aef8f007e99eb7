"""The factors of g, and rows of g from its file or by product."""

import resource

import numpy as np
import pytest
from matrices import straightforward, with_spectrum, write_gamma
from safetensors.numpy import load_file

import unembedding
from unembedding.backends.numpy_backend import NumpyBackend
from unembedding.covariance import decompose
from unembedding.errors import GeometryError, UserError
from unembedding.results import GeometryResults
from unembedding.transform import transform

GAMMA = with_spectrum(500, np.geomspace(1e-3, 1, 20))


@pytest.fixture(params=["float64", "float32"])
def precision(request):
    return request.param


@pytest.fixture
def place(tmp_path):
    return GeometryResults(tmp_path).model("m").revision("step1")


def write(place, precision="float64", g=True, factors=True, residual="estimate", gamma=GAMMA):
    place.folder.mkdir(parents=True, exist_ok=True)
    write_gamma(place.unembedding, gamma)
    decompose(place.unembedding, place.decomposition, NumpyBackend(), precision)
    return transform(
        place.unembedding,
        place.decomposition,
        place.causal if g else None,
        NumpyBackend(),
        "pseudo_inverse",
        residual=residual,
        factors=place.factors if factors else None,
    )


def test_the_factors_are_the_mean_and_both_roots_of_the_covariance(place, precision):
    write(place, precision)
    found = load_file(place.factors)
    _, inverse_sqrt, _ = straightforward(GAMMA)
    tolerance = 1e-10 if precision == "float64" else 1e-3
    assert found["inverse_sqrt_covariance"].dtype == precision
    np.testing.assert_allclose(found["mean"], GAMMA.mean(axis=0), atol=1e-12)
    np.testing.assert_allclose(found["inverse_sqrt_covariance"], inverse_sqrt, atol=tolerance)
    sqrt = found["sqrt_covariance"].astype(float)
    np.testing.assert_allclose(sqrt @ sqrt, np.cov(GAMMA.T, bias=True), atol=tolerance)


def test_without_full_rank_the_roots_are_each_others_inverse_on_the_part_there_is(place):
    gamma = GAMMA.copy()
    gamma[:, 5] = gamma[:, 2]
    write(place, gamma=gamma)
    revision = unembedding.open("m", "step1", place.model.of_all.folder)
    projector = np.eye(20)
    projector[np.ix_([2, 5], [2, 5])] = 0.5
    np.testing.assert_allclose(revision.sqrt @ revision.inverse_sqrt, projector, atol=1e-8)


def test_rows_by_product_are_those_that_would_be_written(place, precision):
    write(place, precision)
    rows = [499, 0, 7, 7]
    revision = unembedding.open("m", "step1", place.model.of_all.folder)
    written, whole = revision.g(rows), np.array(revision.g())
    np.testing.assert_array_equal(written, load_file(place.causal)["g"][rows])
    place.causal.unlink()
    revision = unembedding.open("m", "step1", place.model.of_all.folder)
    assert revision.shape == (500, 20)
    np.testing.assert_allclose(revision.g(rows), written, atol=1e-6 * np.abs(written).max())
    np.testing.assert_allclose(revision.g(), whole, atol=1e-6 * np.abs(whole).max())


@pytest.mark.parametrize("residual", ["estimate", "exact"])
def test_a_g_that_is_not_written_is_measured_all_the_same(place, residual):
    with_file = write(place, residual=residual)
    place.causal.unlink()
    without = write(place, residual=residual, g=False)
    assert without.whitening_residual == with_file.whitening_residual
    assert (without.mean_of_g, without.causal_digest) == (with_file.mean_of_g, None)
    assert not place.causal.exists()


def test_only_g_is_written_where_only_g_is_asked_for(place):
    facts = write(place, factors=False)
    assert facts.factors_digest is None and not place.factors.exists()


def test_factors_of_another_matrix_are_refused_by_name(place):
    write(place, g=False)
    write_gamma(place.unembedding, GAMMA * 2)
    revision = unembedding.open("m", "step1", place.model.of_all.folder)
    with pytest.raises(GeometryError, match=r"factors.safetensors was made of another matrix"):
        revision.g([0])


def test_a_matrix_that_is_not_kept_is_named_with_how_to_fetch_it(place):
    write(place, g=False)
    place.unembedding.unlink()
    revision = unembedding.open("m", "step1", place.model.of_all.folder)
    assert revision.sqrt.shape == (20, 20)
    with pytest.raises(GeometryError, match=rf"`snakemake {place.unembedding}` fetches it again"):
        revision.g([0])


@pytest.mark.parametrize("g", [True, False])
def test_a_row_that_there_is_not_is_an_error(place, g):
    write(place, g=g)
    revision = unembedding.open("m", "step1", place.model.of_all.folder)
    for row in (500, -1):
        with pytest.raises(GeometryError, match="500 rows"):
            revision.g([row])


def test_a_revision_that_there_is_not_is_named(tmp_path):
    with pytest.raises(UserError, match=r"m/step9 has neither causal.safetensors nor factors"):
        unembedding.open("m", "step9", tmp_path)


def test_a_full_disk_leaves_no_factors(place):
    place.folder.mkdir(parents=True)
    write_gamma(place.unembedding, GAMMA)
    decompose(place.unembedding, place.decomposition, NumpyBackend(), "float64")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4000, before[1]))
    try:
        with pytest.raises(UserError, match=f"Could not write {place.factors}"):
            transform(
                place.unembedding, place.decomposition, None, NumpyBackend(), factors=place.factors
            )
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert sorted(p.name for p in place.folder.iterdir()) == [
        "decomposition.safetensors",
        "unembedding.safetensors",
    ]
