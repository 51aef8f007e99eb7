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
from typing import Any

import httpx2
from huggingface_hub import HfApi, hf_hub_url
from huggingface_hub.utils import build_hf_headers

from unembedding.checkpoints.formats import is_weights
from unembedding.checkpoints.sources import is_text
from unembedding.hub import requests
from unembedding.hub.requests import (
    ATTEMPTS,
    FAILURES,
    LONGEST_PAUSE,
    listed,
    parsed,
    raise_for_status,
    senseless,
    session,
    wait_or_raise,
    within,
)

PROGRESS = 2**20  # bytes of one request; less would let a drip go on for days
BREAKS = 50  # of one range, whatever they brought


class HubRepository:
    """One commit of a model repository on the Hub, or one folder of it."""

    def __init__(self, repo: str, revision: str, commit: str, subfolder: str | None = None) -> None:
        self.repo, self.revision, self.commit = repo, revision, commit
        self.inside = f"{subfolder}/" if subfolder else ""
        self.bytes_fetched = 0
        self.warnings: list[str] = []
        self.verified: set[str] = set()
        self._etags: dict[tuple[str, str], str] = {}

    @cached_property
    def files(self) -> dict[str, tuple[int, str | None]]:
        """{path: (size, digest)} of all files of the commit."""

        def ask() -> dict[str, tuple[int, str | None]]:
            info = parsed(
                lambda: HfApi().model_info(
                    self.repo, revision=self.commit, files_metadata=True, timeout=requests.TIMEOUT
                )
            )
            if info.sha != self.commit:
                raise httpx2.RemoteProtocolError(f"the list of files is of the commit {info.sha}")
            return {
                name_of(f.rfilename): (_size(f.size), f.lfs.sha256 if f.lfs else f.blob_id)
                for f in info.siblings or []
            }

        return listed(ask, self.where())

    def sizes(self) -> dict[str, int]:
        within = {p: size for p, (size, _) in self.files.items() if p.startswith(self.inside)}
        named = {path.removeprefix(self.inside): size for path, size in within.items()}
        return {name: size for name, size in named.items() if "/" not in name}

    def folders(self) -> list[str]:
        found = (path.rpartition("/") for path in self.files)
        return sorted({folder for folder, _, name in found if folder and is_weights(name)})

    def digest(self, name: str) -> str | None:
        return self.files.get(self.inside + name, (0, None))[1]

    def where(self, name: str = "") -> str:
        return f"{self.repo}@{self.revision}/{self.inside}{name}".rstrip("/")

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
        url = hf_hub_url(self.repo, self.inside + name, revision=self.commit)
        asked = {"Range": f"bytes={start}-{stop - 1}", "Accept-Encoding": "identity"}
        headers = {**build_hf_headers(), **asked}
        with ExitStack() as stack:
            patience = stack.enter_context(within(LONGEST_PAUSE))
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
            for chunk in response.iter_bytes():
                patience.rest()
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
                patience.renew()
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


def name_of(given: Any) -> str:
    """Return a name in an answer; raise where it can be none."""
    if not isinstance(given, str) or not is_text(given):
        raise senseless(f"{given!r} is no name")
    return given


def _size(given: Any) -> int:
    if given is not None and type(given) is not int:
        raise senseless(f"{given!r} is no size")
    return given or 0


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
