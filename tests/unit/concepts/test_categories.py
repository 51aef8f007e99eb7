"""WordNet's files, tokens' texts, and the categories that both give."""

import gzip
import json
import shutil

import numpy as np
import pytest
from running import REPOSITORY

from unembedding.concepts.categories import (
    families,
    find_categories,
    find_members,
    hold_out,
    merge_only_children,
    words_of,
)
from unembedding.concepts.vocabulary import Vocabulary, read_vocabulary
from unembedding.concepts.wordnet import read_wordnet
from unembedding.errors import UserError

WORDNET = REPOSITORY / "resources/wordnet"
TOKENIZER = REPOSITORY / "resources/tiny-olmo/tokenizer.json"


@pytest.fixture(scope="module")
def nouns():
    return read_wordnet(WORDNET, "noun")


@pytest.fixture(scope="module")
def verbs():
    return read_wordnet(WORDNET, "verb")


def test_all_nouns_and_verbs_of_wordnet_are_read(nouns, verbs):
    assert (len(nouns.synsets), len(verbs.synsets)) == (82115, 13767)


def test_a_synset_is_called_by_its_first_lemma_and_that_ones_sense(nouns):
    dog = nouns.synsets["n02084071"]
    assert dog.name == "dog.n.01"
    assert dog.lemmas == ("dog", "domestic_dog", "canis_familiaris")
    assert [nouns.synsets[h].name for h in dog.hypernyms] == ["canine.n.02", "domestic_animal.n.01"]


@pytest.mark.parametrize(
    ("form", "lemmas"),
    [
        ("cats", {"cat"}),
        ("mice", {"mouse"}),
        ("boxes", {"box"}),
        ("churches", {"church"}),
        ("women", {"woman"}),
        ("berries", {"berry"}),
        ("glass", {"glass"}),
        ("as", {"as"}),
        ("running", {"running"}),
        ("qqqq", set()),
    ],
)
def test_a_form_leads_to_its_lemmas(nouns, form, lemmas):
    assert nouns.lemmas_of(form) == lemmas


def test_the_forms_of_verbs_have_endings_of_their_own(verbs):
    assert verbs.lemmas_of("running") == {"run"}
    assert "take" in verbs.lemmas_of("took")


def spoiled(folder, name, change):
    shutil.copytree(WORDNET, folder, dirs_exist_ok=True)
    text = gzip.decompress((folder / f"{name}.gz").read_bytes()).decode()
    (folder / f"{name}.gz").unlink()
    (folder / name).write_text(change(text))
    return folder


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("data.noun", lambda t: t[: len(t) // 2], "cut"),
        ("data.noun", lambda t: t.replace("03 n 01 entity", "03 n xx entity", 1), "line"),
        ("index.noun", lambda t: t[: len(t) // 2], "cut"),
        ("noun.exc", lambda t: "", "empty"),
    ],
)
def test_a_damaged_file_is_named(tmp_path, name, change, said):
    with pytest.raises(UserError, match=said) as caught:
        read_wordnet(spoiled(tmp_path, name, change), "noun")
    assert name in str(caught.value)


def test_a_folder_without_wordnet_is_named(tmp_path):
    with pytest.raises(UserError, match=r"There is no index\.noun"):
        read_wordnet(tmp_path, "noun")


def test_a_cycle_is_told_by_its_synsets(tmp_path):
    row = "{} 03 n 01 {} 0 001 @ {} n 0000\n"
    (tmp_path / "data.noun").write_text(row.format(1, "one", 2) + row.format(2, "two", 1))
    (tmp_path / "index.noun").write_text("one n 1 0 1 0 1\ntwo n 1 0 1 0 2\n")
    (tmp_path / "noun.exc").write_text("oxen ox\n")
    with pytest.raises(UserError, match=r"its own hypernym: .*(one|two)"):
        read_wordnet(tmp_path, "noun")


def tokenizer(folder, vocab, kind, added=()):
    content = {"model": {"vocab": vocab}, "pre_tokenizer": {"type": kind}, "added_tokens": [*added]}
    (folder / "tokenizer.json").write_text(json.dumps(content))
    return read_vocabulary(folder / "tokenizer.json")


def test_pieces_are_read_as_they_are_stored(tmp_path):
    assert tokenizer(tmp_path, {"Ġcat": 0, "Ã©": 1}, "ByteLevel").texts == {0: " cat", 1: "é"}
    assert tokenizer(tmp_path, {"▁cat": 0, "s": 1}, "Metaspace").texts == {0: " cat", 1: "s"}
    assert tokenizer(tmp_path, [["▁cat", -1.5]], "Metaspace").texts == {0: " cat"}


def test_an_added_token_that_is_no_piece_gets_a_new_id(tmp_path):
    added = [{"id": 7, "content": "<s>", "special": True}]
    found = tokenizer(tmp_path, {"a": 0, "b": 1}, "ByteLevel", added)
    assert found.texts[2] == "<s>" and found.special == {2}


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        '{"model": {"vocab": 5}}',
        '{"model": {"vocab": {}}}',
        '{"model": {"vocab": {"a": 1e400}}}',
        '{"model": {"vocab": {"a": -1}}}',
        '{"model": {"vocab": {"a": 0}}, "added_tokens": [{"id": 1, "content": ["b"]}]}',
    ],
)
def test_a_tokenizer_that_is_none_is_named(tmp_path, content):
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(UserError, match=r"tokenizer\.json .*`tokenizer:`"):
        read_vocabulary(tmp_path / "tokenizer.json")


def test_words_are_a_space_and_letters_small_or_capitalised():
    texts = dict(enumerate([" cat", "cat", " Cat", " CAT", " ", "  cat", " cats"]))
    assert words_of(Vocabulary(texts, frozenset())) == {0: "cat", 2: "cat", 6: "cats"}
    assert words_of(Vocabulary(texts, frozenset({0})), rows=3) == {2: "cat"}


def test_forms_of_one_lemma_are_one_family():
    lemmas = {1: {"cat"}, 2: {"cat", "cats"}, 3: {"dog"}, 4: {"cats"}, 5: set()}
    assert families({k: frozenset(v) for k, v in lemmas.items()}) == {1: 1, 2: 1, 4: 1, 3: 3}


def test_whole_families_are_held_out_and_three_are_left_to_train():
    family = [0, 0, 1, 1, 2, 3, 4, 5, 6, 7]
    found = hold_out(family, 0.3, np.random.default_rng(0))
    assert found.sum() <= 3
    assert found[0] == found[1] and found[2] == found[3]
    assert hold_out([0, 1, 2, 3], 0.9, np.random.default_rng(0)).sum() == 1


def test_an_only_child_that_hardly_differs_is_merged_into_its_parent():
    members = {"leaf": {1, 2, 3}, "child": {1, 2, 3}, "root": {1, 2, 3, 4}}
    parents = merge_only_children(members, {"leaf": ["child"], "child": ["root"], "root": []})
    assert parents == {"root": []}


def test_members_of_a_noun_are_below_it_and_of_a_verb_also_its_own(nouns, verbs):
    lemmas = {0: frozenset({"dog"}), 1: frozenset({"poodle"}), 2: frozenset({"run"})}
    dogs = find_members(lemmas, nouns, 1)
    assert dogs["n02084071"] == {1}  # a poodle is below a dog, which is not below itself
    assert any(2 in tokens for tokens in find_members(lemmas, verbs, 1).values())


def test_the_categories_of_the_default_model():
    categories = find_categories(read_vocabulary(TOKENIZER), WORDNET, ["noun"], 10)
    assert len(categories) == 42
    assert (categories.sizes >= 10).all()
    assert (categories.parent < np.arange(len(categories))).all(), "depth first"
    closure = categories.closure()
    assert (closure == closure.T).all()


def test_a_minimum_that_nothing_meets_is_an_error():
    with pytest.raises(UserError, match=r"No synset .* Lower `concepts: minimum`"):
        find_categories(read_vocabulary(TOKENIZER), WORDNET, ["noun"], 10_000)
