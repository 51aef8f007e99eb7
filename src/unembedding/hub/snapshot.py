"""Whole checkpoints: downloaded into the Hub's cache by huggingface_hub, and checked there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import httpx2
from huggingface_hub import (
    hf_hub_download,
    is_offline_mode,
    snapshot_download,
    try_to_load_from_cache,
)
from huggingface_hub._tree_cache import read_tree_cache  # the public one leaves LFS out (2.4)

from unembedding.checkpoints.sources import LocalFolder, differs, hasher
from unembedding.hub import requests
from unembedding.hub.locks import locks_bounded
from unembedding.hub.messages import refusal
from unembedding.hub.ranges import HubRepository
from unembedding.hub.requests import cache_writable, downloaded, parsed


def download_snapshot(repository: HubRepository) -> Snapshot:
    """Download every file of the commit into the Hub cache, and return the checkpoint's folder."""
    repo, commit, where = repository.repo, repository.commit, repository.where()
    files = {} if is_offline_mode() else repository.files
    missing = [size for name, (size, _) in files.items() if not _is_cached(repository, name)]

    def download() -> Path:
        folder = Path(
            parsed(lambda: snapshot_download(repo, revision=commit, etag_timeout=requests.TIMEOUT))
        )
        # What the Hub says is of another commit is stored under that one.
        absent = [name for name in files if not (folder / name).is_file()]
        if absent:  # or the list that huggingface_hub keeps in the cache lacked it
            kept = folder.parent.parent / "trees" / f"{commit}.json"
            kept.unlink(missing_ok=True)
            raise httpx2.RemoteProtocolError(f"{absent[0]} is absent, or of another commit")
        return folder

    with cache_writable(where), locks_bounded(where):
        largest = max((size for size, _ in files.values()), default=0)
        folder = downloaded(download, where, largest)
    snapshot = Snapshot(folder, repository)
    snapshot.bytes_fetched = sum(missing)
    return snapshot


def _is_cached(repository: HubRepository, name: str) -> bool:
    try:
        found = try_to_load_from_cache(repository.repo, name, revision=repository.commit)
    except ValueError as error:
        raise refusal(f"{repository.where()} lists a file that cannot be stored: {error}") from None
    return isinstance(found, str)


def _fetch_again(repository: HubRepository, name: str) -> None:
    """Replace one file of the Hub cache."""
    path = repository.inside + name
    with cache_writable(repository.where(name)), locks_bounded(repository.where(name)):
        downloaded(
            lambda: parsed(
                lambda: hf_hub_download(
                    repository.repo,
                    path,
                    revision=repository.commit,
                    force_download=True,
                    etag_timeout=requests.TIMEOUT,
                )
            ),
            repository.where(name),
            repository.files[path][0],
        )


class Snapshot(LocalFolder):
    """A commit in the Hub cache, whose files are checked against the Hub before they are read."""

    def __init__(self, folder: Path, repository: HubRepository) -> None:
        super().__init__(folder / repository.inside)
        self.cached, self.repository = folder, repository

    @cached_property
    def _listed(self) -> dict[str, tuple[int, str | None]]:
        """{file: (size, digest)}; offline what huggingface_hub keeps of it in the cache, if so."""
        if not is_offline_mode():
            sizes = self.repository.sizes()
            return {name: (size, self.repository.digest(name)) for name, size in sizes.items()}
        inside = self.repository.inside
        kept = read_tree_cache(str(self.cached.parents[1]), self.repository.commit) or {}
        return {
            path.removeprefix(inside): (file.size, file.lfs_sha256 or file.blob_id)
            for path, file in kept.items()
            if path.startswith(inside)
        }

    def sizes(self) -> dict[str, int]:
        """Return the Hub's sizes: a file of another size in the cache is fetched again."""
        there = super().sizes()
        if "config.json" in self._listed and "config.json" not in there:
            raise refusal(
                f"{self.where('config.json')} is not there, and the Hub has one. Unset "
                "HF_HUB_OFFLINE, so that it can be fetched."
            )
        return {name: self._listed.get(name, (size,))[0] for name, size in there.items()}

    def stream(self, name: str, start: int, stop: int) -> Iterator[bytes]:
        if name not in self.verified:
            self._verify(name)
        yield from super().stream(name, start, stop)

    def _verify(self, name: str) -> None:
        """Check a file against the Hub's digest; one that differs is fetched once more."""
        listed = name in self._listed
        expected = self._listed[name][1] if listed else self._name_of_blob(name)
        if expected is None:
            return
        if self._hash(name, expected) != expected:
            if is_offline_mode():
                raise refusal(
                    f"{self.where(name)} is damaged: the Hub says that its digest is {expected}. "
                    "Unset HF_HUB_OFFLINE, so that it can be fetched again."
                )
            _fetch_again(self.repository, name)
            self._states.pop(name, None)
            self.bytes_fetched += self.sizes()[name]
            if (found := self._hash(name, expected)) != expected:
                raise differs(self.repository.where(name), found)
            self.warnings.append(f"{name} was damaged in the Hub cache and has been fetched again.")
        if listed:
            self.verified.add(name)

    def _name_of_blob(self, name: str) -> str | None:
        """Return the digest that the cache has of some file, be it this one or another."""
        blob = (self.folder / name).resolve().name
        return blob if re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", blob) else None

    def _hash(self, name: str, digest: str) -> str:
        size = super().sizes()[name]
        found = hasher(digest, size)
        for chunk in super().stream(name, 0, size):
            found.update(chunk)
        return found.hexdigest()
