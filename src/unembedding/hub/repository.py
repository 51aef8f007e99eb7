"""Checkpoints in a repository of the Hugging Face Hub, read by byte range.

huggingface_hub supplies everything about the Hub: endpoint, token, refs, metadata, URLs, errors,
whole snapshots. What it lacks is a range read that resumes where a connection broke and that
refuses an answer which is not the range asked for (2.4.0); that is ``HubRepository.stream``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx2
from huggingface_hub import (
    HfApi,
    hf_hub_download,
    hf_hub_url,
    is_offline_mode,
    try_to_load_from_cache,
)
from huggingface_hub._tree_cache import read_tree_cache  # get_cached_repo_tree leaves LFS out
from huggingface_hub.errors import RevisionNotFoundError
from huggingface_hub.utils import build_hf_headers

from unembedding.checkpoints.revisions import COMMIT
from unembedding.checkpoints.sources import LocalFolder, differs, hasher, is_text
from unembedding.hub import requests as hub_requests
from unembedding.hub.requests import (
    ATTEMPTS,
    FAILURES,
    LONGEST_PAUSE,
    cache_writable,
    downloaded,
    listed,
    raise_for_status,
    refusal,
    session,
    timely,
    wait_or_raise,
    within,
)

PROGRESS = 2**20  # bytes of one request; less would let a drip go on for days
BREAKS = 50  # of one range, whatever they brought


class HubRepository:
    """One commit of a model repository on the Hub."""

    def __init__(self, repo: str, revision: str, commit: str) -> None:
        self.repo, self.revision, self.commit = repo, revision, commit
        self.bytes_fetched = 0
        self.warnings: list[str] = []
        self.verified: set[str] = set()
        self._etags: dict[tuple[str, str], str] = {}

    @cached_property
    def _info(self) -> dict[str, tuple[int, str | None]]:
        def files() -> dict[str, tuple[int, str | None]]:
            info = HfApi().model_info(
                self.repo, revision=self.commit, files_metadata=True, timeout=hub_requests.TIMEOUT
            )
            if info.sha != self.commit:
                raise httpx2.RemoteProtocolError(f"the list of files is of the commit {info.sha}")
            return {
                _name(f.rfilename): (int(f.size or 0), f.lfs.sha256 if f.lfs else f.blob_id)
                for f in info.siblings or []
            }

        return listed(files, self.where())

    def sizes(self) -> dict[str, int]:
        return {name: size for name, (size, _) in self._info.items() if "/" not in name}

    def digest(self, name: str) -> str | None:
        return self._info[name][1] if name in self._info else None

    def where(self, name: str = "") -> str:
        return f"{self.repo}@{self.revision}" + (f"/{name}" if name else "")

    def stream(self, name: str, start: int, stop: int) -> Iterator[bytes]:
        """Yield a byte range, resuming after broken connections from the last byte received."""
        failures = breaks = 0
        size = self.sizes().get(name, 0)  # of a file that is not listed, the Hub says so
        while start < stop:
            begun = start
            try:
                for chunk in self._request(name, start, stop, size):
                    start += len(chunk)
                    self.bytes_fetched += len(chunk)
                    yield chunk
            except FAILURES as error:
                breaks += 1
                failures = 1 if start - begun >= PROGRESS else failures + 1
                wait_or_raise(error, failures if breaks < BREAKS else ATTEMPTS, self.where(name))

    def _request(self, name: str, start: int, stop: int, size: int) -> Iterator[bytes]:
        """Yield what one request brings of a range of a file of ``size`` bytes."""
        url = hf_hub_url(self.repo, name, revision=self.commit)
        asked = {"Range": f"bytes={start}-{stop - 1}", "Accept-Encoding": "identity"}
        headers = {**build_hf_headers(), **asked}
        with ExitStack() as stack:
            with within(LONGEST_PAUSE):
                response = stack.enter_context(session().stream("GET", url, headers=headers))
                raise_for_status(response)
            self._require_announced(name, response)
            self._require_same(name, response)
            begin, end = _range_sent(response, size)
            if response.status_code == 200:
                self._warn_once(f"{response.url.host} ignores byte ranges; whole files were read.")
            elif begin != start or not start < end <= stop:
                raise _unusable(response, f"bytes {start} to {stop - 1} were asked for")
            skip, wanted, sent = start - begin, stop - start, min(end, stop) - start
            for chunk in timely(response.iter_bytes()):
                dropped = min(skip, len(chunk))
                skip -= dropped
                self.bytes_fetched += dropped
                kept = chunk[dropped : dropped + sent]
                sent -= len(kept)
                wanted -= len(kept)
                if kept:
                    yield kept
                if not sent:
                    break
        if wanted:
            raise _unusable(response, f"the answer ended {wanted} bytes early")

    def _require_announced(self, name: str, response: httpx2.Response) -> None:
        """Raise where the Hub itself says that it answers with another commit or another file."""
        headers = (response.history or [response])[0].headers
        said = {
            "commit": (headers.get("X-Repo-Commit"), self.commit),
            "digest": (_etag(headers.get("X-Linked-Etag", "")), self.digest(name)),
        }
        for what, (found, expected) in said.items():
            if found and expected and found != expected:
                raise _unusable(response, f"it is of the {what} {found}, not {expected}")

    def _require_same(self, name: str, response: httpx2.Response) -> None:
        """Raise where a file is no longer the one of which parts have come before.

        No ETag at first, and then one, is a change too: nothing says that it is the same file.
        Hosts may call a file differently where the Hub itself says that it is the same.
        """
        etag = _etag(response.headers.get("ETag", ""))
        announced = (response.history or [response])[0].headers.get("X-Linked-Etag")
        host = response.url.host if announced else ""
        before = self._etags.setdefault((name, host), etag)
        if etag != before:
            raise _unusable(
                response,
                f"the file changed while it was read: its ETag was {before or 'absent'}, and is "
                f"{etag or 'absent'}",
            )

    def _warn_once(self, warning: str) -> None:
        if warning not in self.warnings:
            self.warnings.append(warning)

    def snapshot(self) -> Snapshot:
        """Download every file of the commit into the Hub cache, and return its folder there."""
        from huggingface_hub import snapshot_download

        files = {} if is_offline_mode() else self._info
        missing = [size for name, (size, _) in files.items() if not self._is_cached(name)]

        def download() -> Path:
            folder = Path(
                snapshot_download(
                    self.repo, revision=self.commit, etag_timeout=hub_requests.TIMEOUT
                )
            )
            # What the Hub says is of another commit is stored under that one.
            absent = [name for name in files if not (folder / name).is_file()]
            if absent:  # or the list that huggingface_hub keeps in the cache lacked it
                kept = folder.parent.parent / "trees" / f"{self.commit}.json"
                kept.unlink(missing_ok=True)
                raise httpx2.RemoteProtocolError(f"{absent[0]} is absent, or of another commit")
            return folder

        with cache_writable(self.where()):
            largest = max((size for size, _ in files.values()), default=0)
            folder = downloaded(download, self.where(), largest)
        snapshot = Snapshot(folder, self)
        snapshot.bytes_fetched = sum(missing)
        return snapshot

    def _is_cached(self, name: str) -> bool:
        try:
            found = try_to_load_from_cache(self.repo, name, revision=self.commit)
        except ValueError as error:
            raise refusal(f"{self.where()} lists a file that cannot be stored: {error}") from None
        return isinstance(found, str)

    def fetch_again(self, name: str) -> None:
        """Replace one file of the Hub cache."""
        with cache_writable(self.where(name)):
            downloaded(
                lambda: hf_hub_download(
                    self.repo,
                    name,
                    revision=self.commit,
                    force_download=True,
                    etag_timeout=hub_requests.TIMEOUT,
                ),
                self.where(name),
                self._info[name][0],
            )


class Snapshot(LocalFolder):
    """A commit in the Hub cache, whose files are checked against the Hub before they are read."""

    def __init__(self, folder: Path, repository: HubRepository) -> None:
        super().__init__(folder)
        self.repository = repository

    @cached_property
    def _listed(self) -> dict[str, tuple[int, str | None]]:
        """{file: (size, digest)}; offline what huggingface_hub keeps of it in the cache, if so."""
        if not is_offline_mode():
            sizes = self.repository.sizes()
            return {name: (size, self.repository.digest(name)) for name, size in sizes.items()}
        kept = read_tree_cache(str(self.folder.parents[1]), self.repository.commit) or {}
        return {name: (file.size, file.lfs_sha256 or file.blob_id) for name, file in kept.items()}

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
            self.repository.fetch_again(name)
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


def list_refs(repo: str, pull_requests: bool = False) -> dict[str, str]:
    """Return {revision name: commit} of a repository's branches and tags, and pull requests."""

    def named() -> dict[str, str]:
        refs = HfApi().list_repo_refs(repo, include_pull_requests=pull_requests)
        found = {ref.name: ref.target_commit for ref in [*refs.tags, *refs.branches]}
        found |= {ref.ref: ref.target_commit for ref in refs.pull_requests or []}
        if odd := [f"{n}: {c}" for n, c in found.items() if not COMMIT.fullmatch(str(c))]:
            raise ValueError(f"no commit of 40 digits is the revision {odd[0]}")
        return {_name(name): commit for name, commit in found.items()}

    return listed(named, repo)


def commit_exists(repo: str, commit: str) -> bool:
    """Return whether a repository has the commit of 40 hex digits."""

    def exists() -> bool:
        try:
            HfApi().model_info(repo, revision=commit, timeout=hub_requests.TIMEOUT)
        except RevisionNotFoundError:
            return False
        return True

    return listed(exists, repo)


def _name(given: Any) -> str:
    """Return a name in an answer, or raise ValueError where it can be none."""
    if not isinstance(given, str) or not is_text(given):
        raise ValueError(f"{given!r} is no name")
    return given


def _etag(header: str) -> str:
    return header.removeprefix("W/").strip('"')


def _unusable(response: httpx2.Response, why: str) -> httpx2.RemoteProtocolError:
    """Return the error of an answer that is not what was asked for; it is asked for again."""
    sent = response.headers.get("Content-Range")
    return httpx2.RemoteProtocolError(
        f"{why} (HTTP {response.status_code}, Content-Range {sent!r})", request=response.request
    )


def _range_sent(response: httpx2.Response, size: int) -> tuple[int, int]:
    """Return the first byte of a file of ``size`` bytes that an answer has, and the end of them."""
    if response.status_code == 200:
        length = response.headers.get("Content-Length")
        if length != str(size):  # some proxies answer 200 with the range alone
            raise _unusable(response, f"{length} bytes are no whole file of {size}")
        return 0, size
    found = re.match(
        r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)$", response.headers.get("Content-Range", "")
    )
    if response.status_code != 206 or found is None or found[3] not in ("*", str(size)):
        raise _unusable(response, f"this is no range of {size} bytes")
    return int(found[1]), int(found[2]) + 1
