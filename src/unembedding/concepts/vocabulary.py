"""The text of each row of γ, read from the ``tokenizer.json`` of Hugging Face's ``tokenizers``.

The pieces are read as they are stored: ``decode`` drops the space that a piece begins with.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unembedding.errors import UserError
from unembedding.files import write_text

LARGEST_TOKENIZER = 2**28  # bytes; the largest public ones have 2**25
METASPACE = "▁"


@dataclass(frozen=True)
class Vocabulary:
    """Texts of tokens by id."""

    texts: dict[int, str]
    special: frozenset[int]
    """Ids of tokens that stand for no text, such as the end of one."""
    source: str = "the tokenizer"
    """The file they were read from, for messages."""


def read_vocabulary(path: Path) -> Vocabulary:
    """Read the tokens of a ``tokenizer.json``.

    Raises UserError naming the file where it cannot be read or is of another form.
    """
    try:
        require_size(path.stat().st_size, str(path))
        return parse_vocabulary(path.read_bytes(), str(path))
    except OSError as error:
        raise UserError(
            f"{path} cannot be read ({error.strerror}). Name another file as `tokenizer:`."
        ) from None


def require_size(size: int, where: str) -> None:
    """Raise UserError for a file that is too large to be a tokenizer."""
    if size > LARGEST_TOKENIZER:
        raise UserError(
            f"{where} has {size:,} bytes, and a tokenizer at most {LARGEST_TOKENIZER:,}. Name the "
            "right file as `tokenizer:`."
        )


def parse_vocabulary(tokenizer: bytes, where: str) -> Vocabulary:
    """Return the tokens of the content of a ``tokenizer.json``; bytes that are no UTF-8 are U+FFFD.

    Raises UserError naming ``where`` it is from, where it is of another form.
    """
    try:
        content = json.loads(tokenizer)
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"{where} is no JSON ({error}). Name another file as `tokenizer:`."
        ) from None
    try:
        pieces = _pieces(content["model"]["vocab"])
        added = _added(content.get("added_tokens") or [], pieces)
        texts = dict(zip(pieces.values(), _texts(content, pieces), strict=True))
        if min(texts) < 0:
            raise ValueError("a token has a negative id")
        texts |= {number: str(token["content"]) for number, token in added.items()}
        special = frozenset(number for number, token in added.items() if token.get("special"))
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise UserError(
            f"{where} is not a tokenizer of the `tokenizers` library ({error!r} while looking for "
            "model.vocab and added_tokens). Name a tokenizer.json as `tokenizer:`."
        ) from None
    return Vocabulary(texts, special, where)


HEADER = "id\ttext\tspecial"


def write_tokens(path: Path, vocabulary: Vocabulary) -> None:
    """Write ``tokens.tsv``: an id, its text as a JSON string, and 1 where it stands for no text."""
    write_text(path, table(vocabulary))


def table(vocabulary: Vocabulary) -> str:
    """Return the content of ``tokens.tsv``."""
    lines = [
        f"{number}\t{_quoted(text)}\t{int(number in vocabulary.special)}"
        for number, text in sorted(vocabulary.texts.items())
    ]
    return "\n".join([HEADER, *lines]) + "\n"


def read_tokens(path: Path) -> Vocabulary:
    """Read what ``write_tokens`` wrote; raise UserError, naming the file, where it is damaged."""
    try:
        header, *lines, end = path.read_text(encoding="utf-8").split("\n")
        if header != HEADER or end:
            raise ValueError(f"its first line is {header[:80]!r}, and its last one {end[:80]!r}")
        rows = [line.split("\t") for line in lines]
        texts = {int(number): str(json.loads(text)) for number, text, _ in rows}
        special = frozenset(int(number) for number, _, flag in rows if flag == "1")
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is damaged ({error}). Delete it and run again.") from None
    return Vocabulary(texts, special, str(path))


def _quoted(text: str) -> str:
    whole = text.encode("utf-8", "replace").decode()  # a piece may be half of a surrogate pair
    return json.dumps(whole, ensure_ascii=False)


def _pieces(vocab: dict[str, int] | list[list[Any]]) -> dict[str, int]:
    """Return ids by piece; Unigram models list pieces with their scores, the others map them."""
    if isinstance(vocab, list):
        return {piece: number for number, (piece, _) in enumerate(vocab)}
    return {str(piece): int(number) for piece, number in vocab.items()}


def _added(tokens: list[dict[str, Any]], pieces: dict[str, int]) -> dict[int, dict[str, Any]]:
    """Return added tokens by the id they get: a piece's own, or else the next one.

    ``tokenizers`` computes this when it loads the file and does not use the ``id`` written there.
    """
    added: dict[str, int] = {}
    for token in sorted(tokens, key=lambda token: token["id"]):
        known = pieces.get(token["content"], added.get(token["content"]))
        following = max(len(pieces), max(added.values(), default=-1) + 1)
        added[token["content"]] = following if known is None else known
    return {added[token["content"]]: token for token in tokens}


def _texts(content: dict[str, Any], pieces: dict[str, int]) -> Iterator[str]:
    parts = [*_components(content.get("pre_tokenizer")), *_components(content.get("decoder"))]
    if any(part["type"] == "ByteLevel" for part in parts):
        byte_of = _byte_map()
        for piece in pieces:
            if all(character in byte_of for character in piece):
                yield bytes(byte_of[character] for character in piece).decode(errors="replace")
            else:
                yield piece  # an added token that is stored among the pieces
    else:
        for piece in pieces:
            yield piece.replace(METASPACE, " ")


def _components(part: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    """Yield a component of a tokenizer, or those of a sequence of them."""
    if part is None:
        return
    nested = [*part.get("pretokenizers", ()), *part.get("decoders", ())]
    yield part
    for inner in nested:
        yield from _components(inner)


def _byte_map() -> dict[str, int]:
    """Return the byte behind each character of GPT-2's alphabet.

    Printable bytes of Latin-1 are themselves; the others are the characters from U+0100 on.
    """
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(b): b for b in plain} | {chr(0x100 + i): b for i, b in enumerate(others)}
