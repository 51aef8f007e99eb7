"""Where a model's ``tokenizer.json`` is: named, in a local model's folder, or on the Hub."""

from __future__ import annotations

from pathlib import Path

from unembedding.checkpoints.revisions import local_revisions
from unembedding.concepts.vocabulary import (
    Vocabulary,
    parse_vocabulary,
    read_vocabulary,
    require_size,
)
from unembedding.errors import UserError

TOKENIZER = "tokenizer.json"
ADVICE = "Name one as the model's `tokenizer:`, or leave the model out of a run of concepts."


def local_tokenizer(path: Path) -> Path | None:
    """Return the tokenizer of a local model: in its folder, or in that of its first checkpoint."""
    try:
        folders = [path, *local_revisions(path).values()]
    except UserError:  # the job that resolves them says what is wrong
        folders = [path]
    return next((file for f in folders if (file := f / TOKENIZER).is_file()), None)


def find_vocabulary(
    tokenizer: Path | None,
    path: Path | None,
    repo: str | None,
    pin: tuple[str, str],
    subfolder: str | None = None,
) -> Vocabulary:
    """Return the tokens of a model, from the ``tokenizer`` that is named or that of its checkpoint.

    ``pin`` is the (revision, commit) of one checkpoint: training does not change the tokenizer.
    Raises UserError where there is none that can be used.
    """
    if tokenizer is not None:
        return read_vocabulary(tokenizer)
    if path is not None:
        found = local_tokenizer(path)
        if found is None:
            raise UserError(f"There is no {TOKENIZER} in {path} or its checkpoints. {ADVICE}")
        return read_vocabulary(found)
    assert repo is not None
    return _from_the_hub(repo, *pin, subfolder)


def _from_the_hub(repo: str, revision: str, commit: str, subfolder: str | None) -> Vocabulary:
    from unembedding.checkpoints.sources import read_genuine
    from unembedding.hub.ranges import HubRepository

    for folder in dict.fromkeys((subfolder, None)):
        repository = HubRepository(repo, revision, commit, folder)
        if size := repository.sizes().get(TOKENIZER):
            require_size(size, repository.where(TOKENIZER))
            content = read_genuine(repository, TOKENIZER, size)
            return parse_vocabulary(content, repository.where(TOKENIZER))
    raise UserError(f"{repo}@{revision} has no {TOKENIZER}. {ADVICE}")
