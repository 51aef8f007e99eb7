"""The revisions of a repository, and their commits."""

from __future__ import annotations

import re

from huggingface_hub import HfApi
from huggingface_hub.errors import RevisionNotFoundError

from unembedding.hub import requests
from unembedding.hub.ranges import name_of
from unembedding.hub.requests import listed, parsed, senseless

COMMIT = re.compile(r"[0-9a-f]{40}")


def list_refs(repo: str, pull_requests: bool = False) -> dict[str, str]:
    """Return {revision name: commit} of a repository's branches and tags, and pull requests."""

    def named() -> dict[str, str]:
        refs = parsed(lambda: HfApi().list_repo_refs(repo, include_pull_requests=pull_requests))
        found = {ref.name: ref.target_commit for ref in [*refs.tags, *refs.branches]}
        found |= {ref.ref: ref.target_commit for ref in refs.pull_requests or []}
        if odd := [f"{n}: {c}" for n, c in found.items() if not COMMIT.fullmatch(str(c))]:
            raise senseless(f"no commit of 40 digits is the revision {odd[0]}")
        return {name_of(name): commit for name, commit in found.items()}

    return listed(named, repo)


def commit_of(repo: str, revision: str) -> str | None:
    """Return the commit of one revision, or None where the repository has no such revision."""

    def ask() -> str | None:
        try:
            info = parsed(
                lambda: HfApi().model_info(repo, revision=revision, timeout=requests.TIMEOUT)
            )
        except RevisionNotFoundError:
            return None
        if not COMMIT.fullmatch(str(info.sha)):
            raise senseless(f"no commit of 40 digits is {info.sha!r}")
        return info.sha

    return listed(ask, repo)
