"""Which commits are asked for: the first stage, of a whole model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from unembedding.checkpoints.revisions import (
    COMMIT,
    LOCAL,
    is_pattern,
    local_revisions,
    require_no_braces,
    select_revisions,
)
from unembedding.errors import GeometryError


def resolve_revisions(
    asked: Sequence[str],
    every: int,
    step: str | None,
    repo: str | None,
    folder: Path | None,
    pinned: Mapping[str, str],
) -> dict[str, str]:
    """Return {revision: commit} of what was asked for. What is ``pinned`` already stays as it is.

    Raises GeometryError where a revision does not exist, or a local model and a repository that
    cannot be read.
    """
    if folder is not None:
        found = local_revisions(folder)
        names = select_revisions(asked, found, every, str(folder), step)
        require_no_braces(found[name] for name in names)
        return dict.fromkeys(names, LOCAL)
    assert repo is not None
    from unembedding.hub.refs import commit_of

    # A pin may be of a branch that has moved or gone since. One that the repository does not have
    # at all is of what the model was before: another repository, or a folder.
    refs = _listed(repo, asked)
    pinned = {
        name: commit
        for name, commit in pinned.items()
        if commit == refs.get(name) or (commit != LOCAL and commit_of(repo, commit))
    }
    commits = [name for name in asked if COMMIT.fullmatch(name) and commit_of(repo, name)]
    available = refs | {commit: commit for commit in commits} | pinned
    return {name: available[name] for name in select_revisions(asked, available, every, repo, step)}


def _listed(repo: str, asked: Sequence[str]) -> dict[str, str]:
    """Return {revision: commit} of a repository, or of what is asked for where none are listed.

    Some mirrors serve files and keep no list; a commit needs none.
    """
    from unembedding.hub.refs import commit_of, list_refs

    if all(COMMIT.fullmatch(name) for name in asked):
        return {}
    try:
        return list_refs(repo, any(name.startswith("refs/pr/") for name in asked))
    except GeometryError as error:
        try:
            found = {name: commit_of(repo, name) for name in asked if not is_pattern(name)}
        except GeometryError:
            found = {}
        if not any(found.values()):
            raise error from None
        if unlisted := [name for name in asked if is_pattern(name)]:
            raise GeometryError(
                f"{repo}: no list of revisions can be had ({error}), which `{unlisted[0]}` needs. "
                "Name each revision."
            ) from None
        return {name: commit for name, commit in found.items() if commit}
