"""WordNet's database files (wndb(5WN)) and the forms of its lemmas (morphy(7WN)).

One part of speech is three files: ``data.noun`` has a synset to a line, ``index.noun`` a lemma with
its senses in order, ``noun.exc`` the irregular forms. Each may be compressed, as ``data.noun.gz``.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import TypeVar

from unembedding.errors import UserError

Row = TypeVar("Row")
HYPERNYM = "@"  # instances have a symbol of their own, "@i"
LETTERS = {"noun": "n", "verb": "v"}
# What stands at the end of a form, and at the end of its lemma in place of it.
ENDINGS = {
    "noun": [
        ("s", ""), ("ses", "s"), ("xes", "x"), ("zes", "z"), ("ches", "ch"), ("shes", "sh"),
        ("men", "man"), ("ies", "y"),
    ],
    "verb": [
        ("s", ""), ("ies", "y"), ("es", "e"), ("es", ""), ("ed", "e"), ("ed", ""), ("ing", "e"),
        ("ing", ""),
    ],
}  # fmt: skip


@dataclass(frozen=True)
class Synset:
    """A set of synonyms."""

    name: str
    """Lemma, part of speech and sense, such as ``dog.n.01``, as NLTK names synsets."""
    lemmas: tuple[str, ...]
    """In lower case; words of a collocation are joined by underscores."""
    hypernyms: tuple[str, ...]
    """Ids, in the order of the file."""


@dataclass(frozen=True)
class WordNet:
    """One part of speech: synsets by their ids, such as ``n02084071``."""

    pos: str
    synsets: dict[str, Synset]
    """Every synset after all that it is a hypernym of."""
    lemmas: frozenset[str]
    exceptions: dict[str, tuple[str, ...]]

    def lemmas_of(self, form: str) -> frozenset[str]:
        """Return the lemmas that a word in lower case is a form of; none where it is no word."""
        return frozenset(self._bases(form)) & self.lemmas

    def _bases(self, form: str) -> Iterator[str]:
        yield form
        yield from self.exceptions.get(form, ())
        if self.pos == "noun" and (form.endswith("ss") or len(form) <= 2):
            return
        for ending, replacement in ENDINGS[self.pos]:
            if form.endswith(ending):
                yield form.removesuffix(ending) + replacement


def read_wordnet(folder: Path, pos: str) -> WordNet:
    """Read one part of speech, ``noun`` or ``verb``, from a folder of WordNet's database files.

    Raises UserError, which names the file and the line, where a file is absent, cut or damaged,
    where files do not belong together, and where a synset is a hypernym of itself.
    """
    senses = dict(_parsed(folder, f"index.{pos}", _parse_lemma))
    rows = dict(_parsed(folder, f"data.{pos}", _parse_synset))
    for lemma, offsets in senses.items():
        if absent := [o for o in offsets if o not in rows]:
            raise UserError(
                f"{folder}: index.{pos} has {lemma!r} in the synset {absent[0]}, which is not in "
                f"data.{pos}. One of them is cut, or they are of two versions of WordNet; copy "
                "both from one release."
            )
    letter = LETTERS[pos]
    synsets = {}
    for offset in _hyponyms_first(folder / f"data.{pos}", rows):
        lemmas, hypernyms = rows[offset]
        sense = senses.get(lemmas[0], ())
        if offset not in sense:
            raise UserError(
                f"{folder}: data.{pos} has the synset {offset} of {lemmas[0]!r}, which "
                f"index.{pos} does not have. One of them is cut, or they are of two versions of "
                "WordNet; copy both from one release."
            )
        synsets[letter + offset] = Synset(
            f"{lemmas[0]}.{letter}.{sense.index(offset) + 1:02}",
            lemmas,
            tuple(letter + hypernym for hypernym in hypernyms),
        )
    exceptions = dict(_parsed(folder, f"{pos}.exc", _parse_exception))
    return WordNet(pos, synsets, frozenset(senses), exceptions)


def _hyponyms_first(path: Path, rows: dict[str, tuple[tuple[str, ...], list[str]]]) -> list[str]:
    order = TopologicalSorter({offset: [] for offset in rows})
    for offset, (lemmas, hypernyms) in rows.items():
        for hypernym in hypernyms:
            if hypernym not in rows:
                raise UserError(
                    f"{path}: the synset {offset} of {lemmas[0]!r} points at {hypernym}, which is "
                    "not in the file. It is cut or damaged; copy it again."
                )
            order.add(hypernym, offset)
    try:
        return list(order.static_order())
    except CycleError as error:
        cycle = " → ".join(f"{offset} {rows[offset][0][0]}" for offset in error.args[1])
        raise UserError(
            f"{path}: a synset is its own hypernym: {cycle}. Take one of these pointers out."
        ) from None


def _parse_lemma(fields: list[str]) -> tuple[str, tuple[str, ...]]:
    lemma, _, count, pointers = fields[:4]
    offsets = tuple(fields[6 + int(pointers) :])
    if len(offsets) != int(count) or not offsets:
        raise ValueError(f"{count} senses are announced, and {len(offsets)} given")
    return lemma, offsets


def _parse_synset(fields: list[str]) -> tuple[str, tuple[tuple[str, ...], list[str]]]:
    int(fields[0])  # the offset
    words = 4 + 2 * int(fields[3], 16)
    lemmas = tuple(word.lower() for word in fields[4:words:2])
    count = int(fields[words])
    pointers = fields[words + 1 : words + 1 + 4 * count]
    if not lemmas or len(pointers) != 4 * count:
        raise ValueError(f"{count} pointers are announced, and {len(pointers) / 4:g} given")
    pairs = zip(pointers[::4], pointers[1::4], strict=True)
    return fields[0], (lemmas, [target for symbol, target in pairs if symbol == HYPERNYM])


def _parse_exception(fields: list[str]) -> tuple[str, tuple[str, ...]]:
    if len(fields) < 2:
        raise ValueError("a form and a lemma are expected")
    return fields[0], tuple(fields[1:])


def _parsed(folder: Path, name: str, parse: Callable[[list[str]], Row]) -> Iterator[Row]:
    """Yield what ``parse`` makes of each line's fields; raise UserError naming a line."""
    path = _present(folder, name)
    open_text = gzip.open if path.suffix == ".gz" else open
    number, line = 0, ""
    try:
        with open_text(path, "rt", encoding="utf-8") as file:
            for number, line in enumerate(file, 1):  # noqa: B007, errors name it
                if line.startswith("  "):
                    continue  # the licence
                # A gloss may say anything, so it ends what is parsed; only data files have one.
                yield parse(line.partition(" | ")[0].split())
        if not line:
            raise EOFError("it is empty")
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(
            f"{path} cannot be read after line {number} ({error}). Copy it again."
        ) from None
    except (ValueError, IndexError) as error:
        raise UserError(
            f"{path}, line {number} is not in WordNet's format ({error}): {line.strip()[:80]!r}. "
            "The file is cut or damaged; copy it again."
        ) from None


def _present(folder: Path, name: str) -> Path:
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    raise UserError(
        f"There is no {name} and no {name}.gz in {folder}, which the configuration names as "
        "`concepts: wordnet`. Name the folder of WordNet's database files, such as "
        "resources/wordnet or Debian's /usr/share/wordnet."
    )
