"""Which tokens belong to which synsets, how the synsets lie above each other, and the splits.

After Park et al. 2024 (arXiv 2406.01506, section 5): a synset's members are the tokens of the words
below it, and synsets with enough of them are kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from unembedding.concepts.vocabulary import Vocabulary
from unembedding.concepts.wordnet import WordNet, read_wordnet
from unembedding.errors import UserError

FEWEST_LACKING = 5  # tokens by which a synset has to differ from its only child
FEWEST_TO_TRAIN = 3  # members


@dataclass(frozen=True)
class Categories:
    """The kept synsets, S in number, in depth-first order, nouns before verbs.

    Members of synset s are at ``offsets[s]:offsets[s + 1]`` of ``token_ids``, ``held_out`` and
    ``half``, in the order of their ids.
    """

    ids: list[str]
    """Part of speech and offset in WordNet's file, such as ``n02084071``."""
    names: list[str]
    pos: list[str]
    depth: np.ndarray
    """Of each synset, the most edges from a root to it."""
    parent: np.ndarray
    """The first kept hypernym, or −1."""
    edges: np.ndarray
    """(E × 2) pairs of a hypernym and its hyponym."""
    token_ids: np.ndarray
    offsets: np.ndarray
    held_out: np.ndarray
    """Whether scores are measured on a member, in this synset (each has a split of its own)."""
    half: np.ndarray
    """0 or 1, the same in all synsets that a token is a member of."""
    words: np.ndarray
    """Ids of all tokens that are one space and a word, ascending."""
    permutations: np.ndarray
    """(shuffles × vocabulary): the token whose labels token i gets."""

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def sizes(self) -> np.ndarray:
        """Members of each synset."""
        return np.diff(self.offsets)

    def of(self, synset: int) -> slice:
        """Return where the members of a synset are."""
        return slice(self.offsets[synset], self.offsets[synset + 1])

    @cached_property
    def tokens(self) -> np.ndarray:
        """Ids of all members of any synset, ascending."""
        return np.unique(self.token_ids)

    def places(self, synset: int) -> np.ndarray:
        """Return where the members of a synset are in ``tokens``, ascending."""
        return np.searchsorted(self.tokens, self.token_ids[self.of(synset)])

    def closure(self) -> np.ndarray:
        """Return whether one of two synsets is above the other (S × S, symmetric, bool)."""
        above = np.zeros((len(self), len(self)), bool)
        for synset in np.argsort(self.depth, kind="stable"):  # parents have a smaller depth
            parents = self.edges[self.edges[:, 1] == synset, 0]
            above[parents, synset] = True
            above[:, synset] |= above[:, parents].any(axis=1)
        return above | above.T


def find_categories(
    vocabulary: Vocabulary,
    wordnet: Path,
    pos: Sequence[str],
    minimum: int,
    held_out: float = 0.2,
    seed: int = 0,
    shuffles: int = 1,
    rows: int | None = None,
) -> Categories:
    """Return the synsets, of a folder of WordNet's files, that have at least ``minimum`` members.

    Members are tokens with ids below ``rows``. Raises UserError where a file cannot be used or no
    synset has so many members.
    """
    words = words_of(vocabulary, rows)
    if not words:
        raise UserError(
            f"{vocabulary.source} has no token that is a space and a word, which concepts are made "
            "of. Name another tokenizer.json as the model's `tokenizer:`."
        )
    wordnets = [read_wordnet(wordnet, part) for part in pos]
    categories = categorize(words, wordnets, minimum, held_out, seed)
    if not len(categories):
        raise UserError(
            f"No synset ({', '.join(pos)}) has {minimum} members among the {len(words):,} words of "
            f"{vocabulary.source}. Lower `concepts: minimum`."
        )
    size = vocabulary_size(vocabulary, rows)
    generators = (np.random.default_rng([seed, 1 + shuffle]) for shuffle in range(shuffles))
    permutations = np.array([g.permutation(size) for g in generators], np.int32)
    return replace(categories, permutations=permutations.reshape(-1, size))


def vocabulary_size(vocabulary: Vocabulary, rows: int | None) -> int:
    """Return how many rows of γ the vocabulary names: up to the last token that stands for text."""
    last = max((i for i in vocabulary.texts if i not in vocabulary.special), default=-1)
    return last + 1 if rows is None else min(last + 1, rows)


def words_of(vocabulary: Vocabulary, rows: int | None = None) -> dict[int, str]:
    """Return, in lower case, the tokens that are one space and a word, small or capitalised."""
    return {
        token: text[1:].lower()
        for token, text in sorted(vocabulary.texts.items())
        if (rows is None or token < rows)
        and token not in vocabulary.special
        and text.startswith(" ")
        and text[1:]
        and " " not in text[1:]
        and text[1:] in (text[1:].lower(), text[1:].capitalize())
    }


def categorize(
    words: Mapping[int, str],
    wordnets: Sequence[WordNet],
    minimum: int,
    held_out: float = 0.2,
    seed: int = 0,
) -> Categories:
    """Return the synsets that at least ``minimum`` of the words (by token id) belong to."""
    parts = [_of_one_part(words, wordnet, minimum, held_out, seed) for wordnet in wordnets]
    firsts = np.cumsum([0, *(len(part) for part in parts)])
    starts = np.cumsum([0, *(len(part.token_ids) for part in parts)])
    pairs = list(zip(parts, firsts[:-1], strict=True))
    return Categories(
        ids=[i for part in parts for i in part.ids],
        names=[name for part in parts for name in part.names],
        pos=[pos for part in parts for pos in part.pos],
        depth=np.concatenate([part.depth for part in parts]),
        parent=np.concatenate([np.where(p.parent < 0, -1, p.parent + f) for p, f in pairs]),
        edges=np.concatenate([part.edges + first for part, first in pairs]),
        token_ids=np.concatenate([part.token_ids for part in parts]),
        offsets=np.concatenate(
            [[0], *(p.offsets[1:] + start for p, start in zip(parts, starts, strict=False))]
        ),
        held_out=np.concatenate([part.held_out for part in parts]),
        half=np.concatenate([part.half for part in parts]),
        words=np.array(sorted(words), np.int32),
        permutations=np.empty((0, 0), np.int32),
    )


def _of_one_part(
    words: Mapping[int, str], wordnet: WordNet, minimum: int, held_out: float, seed: int
) -> Categories:
    lemmas = {token: wordnet.lemmas_of(word) for token, word in words.items()}
    members = find_members(lemmas, wordnet, minimum)
    parents = merge_only_children(members, {s: wordnet.synsets[s].hypernyms for s in members})
    order = depth_first(parents)
    place = {synset: i for i, synset in enumerate(order)}
    family = families(lemmas)
    half = halves(family, np.random.default_rng([seed, 0]))
    tokens = [np.array(sorted(members[synset]), np.int32) for synset in order]
    depths = _depths(parents)
    return Categories(
        ids=order,
        names=[wordnet.synsets[synset].name for synset in order],
        pos=[wordnet.pos] * len(order),
        depth=np.array([depths[synset] for synset in order], np.int32),
        parent=np.array([place[p[0]] if (p := parents[s]) else -1 for s in order], np.int32),
        edges=np.array(
            sorted((place[p], place[s]) for s in order for p in parents[s]), np.int32
        ).reshape(-1, 2),
        token_ids=_joined(tokens, np.int32),
        offsets=np.cumsum([0, *map(len, tokens)]),
        held_out=_joined(
            [
                hold_out(
                    [family[token] for token in ids],
                    held_out,
                    # Of its own, so that no other synset and no other minimum changes it.
                    np.random.default_rng([seed, ord(synset[0]), int(synset[1:])]),
                )
                for synset, ids in zip(order, tokens, strict=True)
            ],
            bool,
        ),
        half=np.array([half[family[token]] for ids in tokens for token in ids], np.uint8),
        words=np.empty(0, np.int32),
        permutations=np.empty((0, 0), np.int32),
    )


def _joined(arrays: Sequence[np.ndarray], dtype: type) -> np.ndarray:
    return np.concatenate([np.empty(0, dtype), *arrays])


def find_members(
    lemmas: Mapping[int, frozenset[str]], wordnet: WordNet, minimum: int
) -> dict[str, set[int]]:
    """Return the tokens of each synset that has at least ``minimum``, hyponyms first.

    A noun synset's members are the tokens of the lemmas of all synsets strictly below it; a verb
    synset's include those of its own lemmas, since few verbs have hyponyms.
    """
    tokens: dict[str, set[int]] = {}
    for token, of_token in lemmas.items():
        for lemma in of_token:
            tokens.setdefault(lemma, set()).add(token)
    below: dict[str, set[int]] = {synset: set() for synset in wordnet.synsets}
    members = {}
    for name, synset in wordnet.synsets.items():
        own = set().union(*(tokens.get(lemma, ()) for lemma in synset.lemmas))
        found = below.pop(name)
        whole = found | own
        for hypernym in synset.hypernyms:
            below[hypernym] |= whole
        if len(kept := found if wordnet.pos == "noun" else whole) >= minimum:
            members[name] = kept
    return members


def merge_only_children(
    members: dict[str, set[int]], hypernyms: Mapping[str, Sequence[str]]
) -> dict[str, list[str]]:
    """Merge synsets that hardly differ, and return the parents of each that is left.

    Deepest first and once per synset: its only child goes where it has no other parent, or lacks
    fewer than 5 of the synset's tokens. The child's children then go to all the child's parents.
    ``members`` has hyponyms before hypernyms, and loses the merged synsets.
    """
    parents = {synset: list(hypernyms[synset]) for synset in members}
    children: dict[str, list[str]] = {synset: [] for synset in members}
    for synset, above in parents.items():
        for parent in above:
            children[parent].append(synset)
    for synset in list(members):
        if synset not in members or len(children[synset]) != 1:
            continue
        child = children[synset][0]
        lacking = members[synset] - members[child]
        if len(parents[child]) > 1 and len(lacking) >= FEWEST_LACKING:
            continue
        above, below = parents.pop(child), children.pop(child)
        for parent in above:
            kept = [c for c in children[parent] if c != child]
            children[parent] = list(dict.fromkeys([*kept, *below]))
        for grandchild in below:
            at = parents[grandchild].index(child)
            replaced = [*parents[grandchild][:at], *above, *parents[grandchild][at + 1 :]]
            parents[grandchild] = list(dict.fromkeys(replaced))
        del members[child]
    return parents


def depth_first(parents: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the synsets so that each follows its first parent, and subtrees are contiguous."""
    children: dict[str | None, list[str]] = {}
    for synset in sorted(parents, reverse=True):
        children.setdefault(next(iter(parents[synset]), None), []).append(synset)
    order, waiting = [], children.get(None, [])
    while waiting:
        order.append(waiting.pop())
        waiting.extend(children.get(order[-1], []))
    return order


def _depths(parents: Mapping[str, Sequence[str]]) -> dict[str, int]:
    depths: dict[str, int] = {}

    def depth(synset: str) -> int:
        if synset not in depths:
            depths[synset] = max((depth(parent) + 1 for parent in parents[synset]), default=0)
        return depths[synset]

    for synset in parents:
        depth(synset)
    return depths


def families(lemmas: Mapping[int, frozenset[str]]) -> dict[int, int]:
    """Return a family's number (its smallest token id) of each token that has a lemma.

    Tokens are in one family where a chain of shared lemmas connects them: cat, Cat and cats.
    """
    family: dict[int, int] = {}
    tokens: dict[str, list[int]] = {}
    for token, of_token in lemmas.items():
        for lemma in of_token:
            tokens.setdefault(lemma, []).append(token)
    for token in sorted(lemmas):
        if token in family or not lemmas[token]:
            continue
        waiting = [token]
        while waiting:
            member = waiting.pop()
            if member not in family:
                family[member] = token
                waiting.extend(other for lemma in lemmas[member] for other in tokens[lemma])
    return family


def halves(family: Mapping[int, int], generator: np.random.Generator) -> dict[int, int]:
    """Return 0 or 1 of each family, as many of one as of the other."""
    shuffled = generator.permutation(sorted(set(family.values())))
    return {int(number): i % 2 for i, number in enumerate(shuffled)}


def hold_out(family: Sequence[int], share: float, generator: np.random.Generator) -> np.ndarray:
    """Choose whole families until about ``share`` of the members are held out (bool).

    At least 3 members are left to train on.
    """
    numbers, counts = np.unique(family, return_counts=True)
    room = min(round(share * len(family)), len(family) - FEWEST_TO_TRAIN)
    chosen = []
    for i in generator.permutation(len(numbers)):
        if counts[i] <= room:
            chosen.append(numbers[i])
            room -= counts[i]
    return np.isin(family, chosen)
