"""tokens.tsv, and what is written of categories and directions: read back as it was, or refused."""

import numpy as np
import pytest
from test_directions import categories

from unembedding.concepts.directions import find_directions
from unembedding.concepts.matrices import three_matrices
from unembedding.concepts.measuring import Concepts
from unembedding.concepts.scores import SCORES
from unembedding.concepts.storage import (
    load_categories,
    load_directions,
    load_made_with,
    read_metadata,
    read_scores,
    save_categories,
    save_concepts,
)
from unembedding.concepts.vocabulary import Vocabulary, read_tokens, write_tokens
from unembedding.errors import UserError
from unembedding.results import ConceptModel


def test_tokens_of_any_text_come_back(tmp_path):
    texts = dict(enumerate([" bird", "\t", "\n\r", '"', "\\", "é", "\0", "\x85\u2028", "", "NA"]))
    write_tokens(tmp_path / "tokens.tsv", Vocabulary(texts, frozenset({3})))
    found = read_tokens(tmp_path / "tokens.tsv")
    assert (found.texts, found.special) == (texts, {3})


def test_half_of_a_surrogate_pair_is_written_as_a_question_mark(tmp_path):
    write_tokens(tmp_path / "tokens.tsv", Vocabulary({0: "\ud83d"}, frozenset()))
    assert read_tokens(tmp_path / "tokens.tsv").texts == {0: "?"}


def test_a_line_of_tokens_reads_like_the_token(tmp_path):
    write_tokens(tmp_path / "tokens.tsv", Vocabulary({7: " bird", 8: "<s>"}, frozenset({8})))
    text = (tmp_path / "tokens.tsv").read_text()
    assert text == 'id\ttext\tspecial\n7\t" bird"\t0\n8\t"<s>"\t1\n'


HEADER = "id\ttext\tspecial\n"


@pytest.mark.parametrize(
    "text", ["", "id\n", f'{HEADER}1\t" a', f"{HEADER}x", f'{HEADER}1\t" a"\t0\n2\t" b"\t0']
)
def test_tokens_that_are_cut_are_named(tmp_path, text):
    (tmp_path / "tokens.tsv").write_text(text)
    with pytest.raises(UserError, match=r"tokens\.tsv is damaged"):
        read_tokens(tmp_path / "tokens.tsv")


@pytest.fixture
def stored(tmp_path):
    """A model's categories and one checkpoint's concepts, written."""
    concept = categories([np.arange(9), np.arange(5)], parent=[-1, 0])
    g = np.random.default_rng(0).standard_normal((20, 6)).astype(np.float32)
    directions = find_directions(g[concept.tokens], concept)
    matrices = three_matrices(directions["all"].vectors, concept)
    scores = {name: np.array([0.25, np.nan]) for name in SCORES}
    nulls = {name: np.array([0.5, 0.75]) for name in SCORES}
    model = ConceptModel(tmp_path / "model")
    save_categories(model, concept, {"minimum": 5})
    concepts = Concepts(directions, matrices, scores, nulls)
    save_concepts(model.beside("step1"), load_categories(model), "f00d", concepts)
    return model, concept, concepts


def test_categories_come_back_with_the_settings_they_were_made_with(stored):
    model, concept, _ = stored
    found = load_categories(model)
    assert found.settings == {"minimum": 5}
    for name, value in vars(concept).items():
        np.testing.assert_array_equal(getattr(found.categories, name), value)


def test_directions_come_back_as_float32_and_name_what_they_are_of(stored):
    model, _, concepts = stored
    found, made_of = load_directions(model.beside("step1"))
    for subset in ("all", "train"):
        expected = concepts.directions[subset]
        np.testing.assert_array_equal(found[subset].vectors, expected.vectors.astype(np.float32))
        np.testing.assert_array_equal(found[subset].shrinkage, expected.shrinkage)
    assert made_of["causal_digest"] == "f00d"
    assert made_of["categories"] == load_categories(model).checksum


def test_scores_have_an_empty_cell_where_they_are_not_defined(stored):
    model, _, _ = stored
    place = model.beside("step1")
    pos, columns = read_scores(place.scores, read_metadata(place.directions)["scores"])
    assert pos == ["noun", "noun"]
    np.testing.assert_array_equal(columns["auc"], [0.25, np.nan])
    np.testing.assert_array_equal(columns["auc_null"], [0.5, 0.75])


@pytest.mark.parametrize("name", ["categories", "synsets"])
def test_categories_of_which_a_byte_was_changed_are_refused(stored, name):
    model, _, _ = stored
    path = getattr(model, name)
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match=path.name):
        load_categories(model)


def test_directions_that_are_cut_are_refused(stored):
    place = stored[0].beside("step1")
    place.directions.write_bytes(place.directions.read_bytes()[:-1])
    with pytest.raises(UserError, match=r"directions\.safetensors cannot be read"):
        load_directions(place)


def test_matrices_of_another_checkpoint_are_refused(stored):
    model, _, concepts = stored
    place, other = model.beside("step1"), model.beside("step2")
    save_concepts(other, load_categories(model), "another g", concepts)
    assert load_made_with(place, place.matrices)
    place.matrices.write_bytes(other.matrices.read_bytes())
    with pytest.raises(UserError, match="not of the directions beside it"):
        load_made_with(place, place.matrices)


def test_scores_of_another_run_are_refused(stored):
    place = stored[0].beside("step1")
    place.scores.write_text(place.scores.read_text().replace("0.25", "0.26"))
    with pytest.raises(UserError, match=r"scores\.csv is not what was written"):
        read_scores(place.scores, read_metadata(place.directions)["scores"])
