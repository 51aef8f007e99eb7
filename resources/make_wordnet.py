"""Make resources/wordnet from WordNet's database files, such as those of Debian's wordnet-base.

    apt-get download wordnet-base && dpkg-deb -x wordnet-base_*.deb wordnet
    python resources/make_wordnet.py wordnet/usr/share/wordnet resources/wordnet

Kept is what `unembedding.concepts.wordnet` reads, in the format of wndb(5WN): nouns and verbs, with
lemmas and hypernyms. Left out are glosses and all other pointers. The licence that stands at the
head of each file stays.
"""

from __future__ import annotations

import gzip
import sys
from pathlib import Path

NAMES = ("data.noun", "index.noun", "noun.exc", "data.verb", "index.verb", "verb.exc")


def shorter(name: str, line: str) -> str:
    """Return a line without what is not read."""
    if line.startswith("  ") or name.endswith(".exc"):
        return line
    fields = line.partition(" | ")[0].split()
    if name.startswith("index"):  # lemma pos senses pointers symbols… senses tagged offsets…
        symbols = 4 + int(fields[3])
        return " ".join([*fields[:3], "0", *fields[symbols:]]) + "\n"
    words = 4 + 2 * int(fields[3], 16)
    pointers = [fields[i : i + 4] for i in range(words + 1, words + 1 + 4 * int(fields[words]), 4)]
    hypernyms = [field for pointer in pointers if pointer[0] == "@" for field in pointer]
    return " ".join([*fields[:words], f"{len(hypernyms) // 4:03}", *hypernyms]) + "\n"


def main(source: Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for name in NAMES:
        lines = (source / name).read_text(encoding="utf-8").splitlines(keepends=True)
        content = "".join(shorter(name, line) for line in lines).encode()
        # Without a date, so that the same files give the same bytes.
        (target / f"{name}.gz").write_bytes(gzip.compress(content, mtime=0))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))
