"""Directions, matrices and scores, against the straightforward way and closed forms."""

import numpy as np
import pytest

from unembedding.concepts.categories import Categories
from unembedding.concepts.directions import find_directions, gram_float32, gram_float64
from unembedding.concepts.matrices import three_matrices
from unembedding.concepts.scores import (
    area_under_curve,
    mean_scores,
    relatedness,
    rms_off_diagonal,
    score,
)


def straightforward(rows):
    """ℓ of n × d rows by the formulas, with every matrix formed."""
    rows = rows.astype(np.float64)
    mean = rows.mean(axis=0)
    x = rows - mean
    n, d = x.shape
    s = x.T @ x / n
    mu = np.trace(s) / d
    distance = ((s - mu * np.eye(d)) ** 2).sum()
    error = ((x**2).sum(axis=1) ** 2).mean() - (s**2).sum()
    delta = min(error / n, distance) / distance
    sigma = (1 - delta) * s + delta * mu * np.eye(d)
    v = np.linalg.pinv(sigma, hermitian=True) @ mean
    return mean @ v / (v @ v) * v, delta


def categories(members, parent=None, seed=0):
    """Categories of lists of token ids, of which a third is held out; roots by default."""
    rng = np.random.default_rng(seed)
    tokens = np.concatenate(members)
    parent = np.array([-1] * len(members) if parent is None else parent)
    held_out = [np.arange(len(m)) % 3 == 2 for m in members]
    halves = rng.integers(0, 2, tokens.max() + 1)
    edges = np.array([(p, i) for i, p in enumerate(parent) if p >= 0], int).reshape(-1, 2)
    depth = []
    for p in parent:  # parents come first
        depth.append(0 if p < 0 else depth[p] + 1)
    return Categories(
        ids=[f"n{i:08}" for i in range(len(members))],
        names=[f"c.n.{i:02}" for i in range(len(members))],
        pos=["noun"] * len(members),
        depth=np.array(depth),
        parent=parent,
        edges=edges,
        token_ids=tokens,
        offsets=np.cumsum([0, *map(len, members)]),
        held_out=np.concatenate(held_out),
        half=halves[tokens],
        words=tokens,
        permutations=np.empty((0, 0), np.int32),
    )


@pytest.mark.parametrize("n", [8, 15, 31, 32, 33, 70])
@pytest.mark.parametrize(("gram", "rtol"), [(gram_float64, 1e-9), (gram_float32, 1e-4)])
def test_directions_are_those_of_the_formulas(n, gram, rtol):
    rng = np.random.default_rng(n)
    g = rng.standard_normal((100, 32)) * np.geomspace(0.3, 3, 32) + 0.4
    g = g if gram is gram_float64 else g.astype(np.float32)
    concept = categories([np.sort(rng.choice(100, n, replace=False)), np.arange(n)])
    found = find_directions(g[concept.tokens], concept, gram)
    for synset in range(2):
        members = concept.token_ids[concept.of(synset)]
        train = members[~concept.held_out[concept.of(synset)]]
        for name, chosen in (("all", members), ("train", train)):
            vector, delta = straightforward(g[chosen])
            assert found[name].shrinkage[synset] == pytest.approx(delta, rel=1e-4)
            np.testing.assert_allclose(
                found[name].vectors[synset], vector, atol=rtol * np.abs(vector).max()
            )


@pytest.mark.parametrize("width", [16, 50, 200])
def test_directions_of_nested_synsets_are_those_of_the_formulas(width):
    """At 16 all have more members than the width, at 50 some, at 200 none."""
    rng = np.random.default_rng(width)
    g = rng.standard_normal((100, width)) * np.geomspace(0.5, 2, width) + 0.4
    sets = [np.arange(100), np.arange(90), np.arange(5, 60), np.arange(7, 40), np.arange(50, 95)]
    concept = categories(sets, parent=[-1, 0, 1, 2, 0])
    found = find_directions(g, concept, gram_float64)
    for synset, members in enumerate(sets):
        place = concept.of(synset)
        subsets = {
            "all": members,
            "train": members[~concept.held_out[place]],
            "half0": members[concept.half[place] == 0],
            "half1": members[concept.half[place] == 1],
        }
        for name, chosen in subsets.items():
            vector, delta = straightforward(g[chosen])
            assert found[name].shrinkage[synset] == pytest.approx(delta, rel=1e-6)
            np.testing.assert_allclose(
                found[name].vectors[synset], vector, atol=1e-6 * np.abs(vector).max()
            )


@pytest.mark.parametrize("width", [3, 64])
def test_two_members_have_their_mean_whatever_rounding_says(width):
    """Ledoit and Wolf's error of two rows is zero."""
    for seed in range(200):
        g = np.random.default_rng(seed).standard_normal((2, width)).astype(np.float32)
        found = find_directions(g, categories([np.arange(2)]))["all"]
        np.testing.assert_allclose(found.vectors[0], g.mean(axis=0), atol=1e-5)


def test_members_projections_average_one_and_the_norm_is_the_product_with_the_mean():
    g = np.random.default_rng(0).standard_normal((60, 16)) + 1
    concept = categories([np.arange(40)])
    vector = find_directions(g[:40], concept, gram_float64)["all"].vectors[0]
    assert (g[:40] @ vector / (vector @ vector)).mean() == pytest.approx(1)
    assert vector @ vector == pytest.approx(g[:40].mean(axis=0) @ vector)


def test_the_children_of_a_balanced_tree_differ_from_it_at_minus_one_half():
    rng = np.random.default_rng(0)
    root = rng.standard_normal(8)
    plane = np.linalg.qr(rng.standard_normal((8, 2)))[0]
    turns = 2 * np.pi * np.arange(3) / 3
    children = root + np.stack([np.cos(turns), np.sin(turns)], axis=1) @ plane.T
    concept = categories([np.arange(4)] * 4, parent=[-1, 0, 0, 0])
    difference = three_matrices(np.vstack([root, children]), concept).difference
    siblings = difference[1:, 1:][~np.eye(3, dtype=bool)]
    np.testing.assert_allclose(siblings, -0.5, atol=1e-6)


def test_a_difference_of_zero_counts_nowhere():
    vectors = np.array([[1.0, 0], [1.0, 0], [0, 1.0]])
    concept = categories([np.arange(3)] * 3, parent=[-1, 0, 0])
    difference = three_matrices(vectors, concept).difference
    assert np.isnan(difference[1]).all() and np.isnan(difference[:, 1]).all()
    assert np.isnan(rms_off_diagonal(difference)[1])
    assert np.isfinite(rms_off_diagonal(difference)[[0, 2]]).all()


def test_the_area_under_the_curve_counts_pairs_and_ties_half():
    positive, negative = np.array([3.0, 1.0]), np.array([2.0, 1.0, 0.0])
    pairs = [(p > n) + (p == n) / 2 for p in positive for n in negative]
    assert area_under_curve(positive, negative) == pytest.approx(np.mean(pairs))


def test_related_pairs_are_compared_with_unrelated_ones():
    agreement = np.array([[9.0, 0.8, 0.1], [0.7, 9.0, 0.2], [0.3, 0.1, 9.0]])
    related = np.array([[1, 1, 0], [1, 1, 0], [0, 0, 1]], bool)
    assert relatedness(agreement, related) == 1


def test_scores_of_noise_are_those_of_chance():
    rng = np.random.default_rng(0)
    g = rng.standard_normal((3000, 24)).astype(np.float32)
    concept = categories([np.sort(rng.choice(3000, 60, replace=False)) for _ in range(40)])
    directions = find_directions(g[concept.tokens], concept)
    matrices = three_matrices(directions["all"].vectors, concept)
    found = mean_scores(score([g], directions, matrices, concept, np.arange(3000)))
    assert found["auc"] == pytest.approx(0.5, abs=0.03)
    assert found["auc_words"] == pytest.approx(0.5, abs=0.03)
    assert found["linear"] == pytest.approx(0, abs=0.1)
    assert found["self_agreement"] == pytest.approx(0, abs=0.1)


def test_scores_of_a_planted_concept_are_high():
    rng = np.random.default_rng(0)
    g = rng.standard_normal((3000, 24)).astype(np.float32)
    g[:60, 0] += 6
    concept = categories([np.arange(60), np.arange(1000, 1060)])
    directions = find_directions(g[concept.tokens], concept)
    matrices = three_matrices(directions["all"].vectors, concept)
    found = score([g[:1500], g[1500:]], directions, matrices, concept, np.arange(3000))
    assert found["auc"][0] > 0.99 and found["linear"][0] > 0.8
    assert found["self_agreement"][0] > 0.8
