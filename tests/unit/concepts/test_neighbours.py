"""The tokens nearest to a token."""

import numpy as np
import pytest

from unembedding import neighbours
from unembedding.concepts.neighbours import nearest
from unembedding.errors import UserError

G = np.array([[2, 0], [3, 0.3], [0, 1], [-1, 0], [0, 0]], np.float32)
TOKENS = {0: " bird", 1: " fish", 2: "tree", 3: " stone", 4: "<pad>"}


def test_the_nearest_are_those_of_the_largest_cosine():
    found = neighbours(G, TOKENS, "bird", count=2)
    assert found[0] == (" fish", pytest.approx(3 / np.hypot(3, 0.3)))
    assert found[1] == ("tree", pytest.approx(0, abs=1e-7))


def test_a_token_without_a_space_is_found_as_it_stands():
    assert neighbours(G, TOKENS, "tree", count=1)[0][0] == " fish"


def test_a_word_that_is_no_token_is_told():
    with pytest.raises(UserError, match="No token is 'whale'"):
        neighbours(G, TOKENS, "whale")


def test_of_two_tokens_with_one_text_the_first_is_meant():
    assert neighbours(G, {**TOKENS, 3: " bird"}, "bird", count=1)[0][0] == " fish"


def test_halves_are_multiplied_as_floats():
    large = (G * 300).astype(np.float16)
    assert neighbours(large, TOKENS, "bird", count=1)[0][1] == pytest.approx(1, abs=0.01)


def test_many_queries_agree_with_a_full_sort():
    rng = np.random.default_rng(0)
    g = rng.standard_normal((1200, 12)).astype(np.float32)
    among = np.sort(rng.choice(1200, 700, replace=False))
    queries = np.arange(0, 1200, 2)
    ids, cosines = map(np.concatenate, zip(*nearest(g, queries, 5, among), strict=True))
    unit = g / np.linalg.norm(g, axis=1, keepdims=True)
    for query, found, values in zip(queries, ids, cosines, strict=True):
        others = among[among != query]
        every = unit[others] @ unit[query]
        best = np.argsort(-every, kind="stable")[:5]
        np.testing.assert_array_equal(found, others[best])
        np.testing.assert_allclose(values, every[best], atol=1e-5)
