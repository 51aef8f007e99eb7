"""The concepts of a real vocabulary: Whisper tiny.en and WordNet's nouns."""

from types import SimpleNamespace

import numpy as np
import pytest
from independent import causal
from running import REPOSITORY
from safetensors.numpy import load_file
from test_whisper import NAME, PACKAGE, ctranslate2_tensor, pytestmark  # noqa: F401

from unembedding.concepts.categories import find_categories
from unembedding.concepts.directions import find_directions
from unembedding.concepts.matrices import three_matrices
from unembedding.concepts.scores import mean_scores, score
from unembedding.concepts.vocabulary import read_vocabulary

WORDNET = REPOSITORY / "resources/wordnet"
TINY = REPOSITORY / "resources/tiny-olmo"


def scored(g, tokenizer, pos, minimum):
    categories = find_categories(read_vocabulary(tokenizer), WORDNET, [pos], minimum, rows=len(g))
    directions = find_directions(g[categories.tokens], categories)
    matrices = three_matrices(directions["all"].vectors, categories)
    scores = mean_scores(score([g], directions, matrices, categories, categories.words))
    return SimpleNamespace(categories=categories, directions=directions, scores=scores)


@pytest.fixture(scope="module")
def nouns():
    from pathlib import Path

    folder = Path(PACKAGE.submodule_search_locations[0]) / "model"
    g = causal(ctranslate2_tensor(folder / "model.bin", NAME)).astype(np.float32)
    return SimpleNamespace(g=g, **vars(scored(g, folder / "tokenizer.json", "noun", 51)))


def test_there_are_as_many_synsets_as_were_found_before(nouns):
    assert len(nouns.categories) == 416


@pytest.mark.parametrize(
    ("name", "value", "within"),
    [
        ("linear", 0.532, 0.04),
        ("auc", 0.851, 0.02),
        ("auc_words", 0.827, 0.02),
        ("held_out_cosine", 0.922, 0.015),
        ("self_agreement", 0.379, 0.04),
        ("separability", 0.225, 0.01),
        ("hierarchy", 0.078, 0.01),
    ],
)
def test_scores_are_those_that_were_found_before(nouns, name, value, within):
    assert nouns.scores[name] == pytest.approx(value, abs=within)


def test_forty_synsets_agree_with_the_formulas(nouns):
    from test_directions import straightforward

    for synset in np.linspace(0, len(nouns.categories) - 1, 40).round().astype(int).tolist():
        members = nouns.categories.token_ids[nouns.categories.of(synset)]
        expected, _ = straightforward(nouns.g[members])
        found = nouns.directions["all"].vectors[synset]
        np.testing.assert_allclose(found, expected, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize(
    ("revision", "auc"),
    [
        ("step0-tokens0M", 0.521),
        ("step20-tokens82K", 0.590),
        ("step100-tokens410K", 0.874),
        ("step500-tokens2M", 0.887),
        ("step2500-tokens10M", 0.891),
    ],
)
def test_concepts_emerge_over_the_training_of_a_small_olmo(revision, auc):
    gamma = load_file(TINY / revision / "model.safetensors")["lm_head.weight"]
    found = scored(causal(gamma).astype(np.float32), TINY / "tokenizer.json", "noun", 10)
    assert found.scores["auc"] == pytest.approx(auc, abs=0.02)
