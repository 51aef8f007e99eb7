"""Checkpoints in a repository of the Hugging Face Hub, read by byte range.

huggingface_hub supplies everything about the Hub: endpoint, token, refs, metadata, URLs, errors,
whole snapshots. What it lacks is a range read that resumes where a connection broke and that
refuses an answer which is not the range asked for (2.4.0); that is ``HubRepository.stream``.
"""

from __future__ import annotations

import math
import random
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import httpx2
import huggingface_hub
from huggingface_hub import (
    HfApi,
    get_token,
    hf_hub_download,
    hf_hub_url,
    is_offline_mode,
    try_to_load_from_cache,
)
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

from unembedding.errors import GeometryError
from unembedding.sources import LocalFolder, differs, hasher

TIMEOUT = 30  # seconds without a byte; huggingface_hub's shared client has none
ATTEMPTS = 6  # in a row of which none brought PROGRESS
PROGRESS = 2**20  # bytes of one request; less would let a drip go on for days
BREAKS = 50  # of one range, whatever they brought
SLOWEST, WINDOW = 100_000, 60  # bytes that have to come in so many seconds
LARGEST_LISTING = 64 * 2**20  # bytes; a repository of 10,000 files has 5 MB
LONGEST_WAIT = 300  # seconds, whatever the server asks for
TRANSIENT = frozenset({408, 429, 500, 502, 503, 504})
FAILURES = (
    httpx2.HTTPError,
    httpx2.InvalidURL,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    UnicodeEncodeError,  # a token with an accent
)
Result = TypeVar("Result")


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
        def listed() -> dict[str, tuple[int, str | None]]:
            _session()
            info = HfApi().model_info(
                self.repo, revision=self.commit, files_metadata=True, timeout=TIMEOUT
            )
            return {
                f.rfilename: (int(f.size or 0), f.lfs.sha256 if f.lfs else f.blob_id)
                for f in info.siblings or []
            }

        return with_retries(listed, self.where())

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
        with _session().stream("GET", url, headers=headers, timeout=TIMEOUT) as response:
            _raise_for_status(response)
            self._require_announced(name, response)
            self._require_same(name, response)
            begin, end = _range_sent(response, size)
            if response.status_code == 200:
                self._warn_once(f"{response.url.host} ignores byte ranges; whole files were read.")
            elif begin != start or not start < end <= stop:
                raise _unusable(response, f"bytes {start} to {stop - 1} were asked for")
            skip, wanted, sent = start - begin, stop - start, min(end, stop) - start
            for chunk in response.iter_bytes():
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
        """Raise where a host says that a file is no longer the one it has sent parts of before.

        No ETag at first, and then one, is a change too: nothing says that it is the same file.
        """
        etag = _etag(response.headers.get("ETag", ""))
        before = self._etags.setdefault((name, response.url.host), etag)
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

        missing = [size for name, size in self._listed().items() if not self._is_cached(name)]

        def download() -> Path:
            folder = Path(snapshot_download(self.repo, revision=self.commit, etag_timeout=TIMEOUT))
            # What the Hub says is of another commit is stored under that one.
            absent = [n for n in self._listed() if not (folder / n).exists()]
            if absent:
                raise httpx2.RemoteProtocolError(f"{absent[0]} was sent as of another commit")
            return folder

        with cache_writable(self.where()):
            folder = _cached(download, self.where())
        snapshot = Snapshot(folder, self)
        snapshot.bytes_fetched = sum(missing)
        return snapshot

    def _listed(self) -> dict[str, int]:
        """Return {file name: size} of all folders; nothing offline, where the cache has to do."""
        return {} if is_offline_mode() else {name: size for name, (size, _) in self._info.items()}

    def _is_cached(self, name: str) -> bool:
        try:
            found = try_to_load_from_cache(self.repo, name, revision=self.commit)
        except ValueError as error:
            raise _refusal(f"{self.where()} lists a file that cannot be stored: {error}") from None
        return isinstance(found, str)

    def fetch_again(self, name: str) -> None:
        """Replace one file of the Hub cache."""
        with cache_writable(self.where(name)):
            _cached(
                lambda: hf_hub_download(
                    self.repo,
                    name,
                    revision=self.commit,
                    force_download=True,
                    etag_timeout=TIMEOUT,
                ),
                self.where(name),
            )


class Snapshot(LocalFolder):
    """A commit in the Hub cache, whose files are checked against the Hub before they are read."""

    def __init__(self, folder: Path, repository: HubRepository) -> None:
        super().__init__(folder)
        self.repository = repository

    def sizes(self) -> dict[str, int]:
        """Return the Hub's sizes: a file of another size in the cache is fetched again."""
        there = super().sizes()
        listed = {} if is_offline_mode() else self.repository.sizes()
        return {name: listed.get(name, size) for name, size in there.items()}

    def stream(self, name: str, start: int, stop: int) -> Iterator[bytes]:
        if name not in self.verified:
            self._verify(name)
        yield from super().stream(name, start, stop)

    def _verify(self, name: str) -> None:
        """Check a file against the Hub's digest; one that differs is fetched once more."""
        expected = self._expected(name)
        if expected is None:
            return
        if self._hash(name, expected) != expected:
            if is_offline_mode():
                raise _refusal(
                    f"{self.where(name)} is damaged: the Hub says that its digest is {expected}. "
                    "Unset HF_HUB_OFFLINE, so that it can be fetched again."
                )
            self.repository.fetch_again(name)
            self.bytes_fetched += self.sizes()[name]
            if (found := self._hash(name, expected)) != expected:
                raise differs(self.repository.where(name), found)
            self.warnings.append(f"{name} was damaged in the Hub cache and has been fetched again.")
        self.verified.add(name)

    def _expected(self, name: str) -> str | None:
        """Return the Hub's digest of a file; offline the name of its blob in the cache, if any."""
        if not is_offline_mode():
            return self.repository.digest(name)
        blob = (self.folder / name).resolve().name
        return blob if re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", blob) else None

    def _hash(self, name: str, digest: str) -> str:
        size = super().sizes()[name]
        found = hasher(digest, size)
        for chunk in super().stream(name, 0, size):
            found.update(chunk)
        return found.hexdigest()


def _cached(download: Callable[[], Result], where: str) -> Result:
    """Call a download of huggingface_hub, which tries again by itself, and waits without end."""

    def refuse_long_waits(response: httpx2.Response) -> None:
        if (_wait_asked_for(response) or 0) > LONGEST_WAIT:
            raise _refusal(f"{where}: {_busy(response.status_code)}")

    session = _session()
    hooks = session.event_hooks
    session.event_hooks = {**hooks, "response": [*hooks["response"], refuse_long_waits]}
    try:
        return with_retries(download, where, attempts=2)
    finally:
        session.event_hooks = hooks


@contextmanager
def cache_writable(where: str) -> Iterator[None]:
    """Turn what hinders writing into the Hub cache into a message that says where that is."""
    try:
        yield
    except OSError as error:
        place = error.filename or huggingface_hub.constants.HF_HUB_CACHE
        raise _refusal(
            f"{where} could not be stored in the Hub cache ({place}): "
            f"{error.strerror or error}. Free some space or check the permissions, or name another "
            "folder with HF_HOME."
        ) from None


def list_refs(repo: str, pull_requests: bool = False) -> dict[str, str]:
    """Return {revision name: commit} of a repository's branches and tags, and pull requests."""
    _session()
    refs = with_retries(
        lambda: HfApi().list_repo_refs(repo, include_pull_requests=pull_requests), repo
    )
    named = {ref.name: ref.target_commit for ref in [*refs.tags, *refs.branches]}
    return named | {ref.ref: ref.target_commit for ref in refs.pull_requests or []}


def commit_exists(repo: str, commit: str) -> bool:
    """Return whether a repository has the commit of 40 hex digits."""

    def exists() -> bool:
        _session()
        try:
            HfApi().model_info(repo, revision=commit, timeout=TIMEOUT)
        except RevisionNotFoundError:
            return False
        return True

    return with_retries(exists, repo)


def with_retries(call: Callable[[], Result], where: str, attempts: int = ATTEMPTS) -> Result:
    """Call until it succeeds, waiting between transient failures; raise GeometryError at last."""
    failures = 0
    while True:
        try:
            return call()
        except FAILURES as error:
            failures += 1
            wait_or_raise(error, failures, where, attempts)
        except OSError as error:
            if error.errno is not None:
                raise
            failures += 1  # huggingface_hub's word for a download of another size than announced
            wait_or_raise(httpx2.ReadError(str(error)), failures, where, attempts)
        except HFValidationError as error:
            raise _refusal(f"{where} is no name of a repository: {error}") from None
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            failures += 1  # such as a page of a proxy, where the Hub's JSON was expected
            answer = httpx2.RemoteProtocolError(
                f"the answer makes no sense: {_without_token(str(error))[:200]}"
            )
            wait_or_raise(answer, failures, where, attempts)


def wait_or_raise(error: Exception, failures: int, where: str, attempts: int = ATTEMPTS) -> None:
    """Wait before the next attempt, or raise what the error means to a person."""
    if isinstance(error, LocalEntryNotFoundError) and isinstance(error.__cause__, Exception):
        error = error.__cause__  # snapshot_download hides the real one
    status = error.response.status_code if isinstance(error, HfHubHTTPError) else None
    transient = isinstance(error, httpx2.TransportError | httpx2.DecodingError) and not isinstance(
        error, httpx2.LocalProtocolError | httpx2.UnsupportedProtocol
    )
    if failures >= attempts or not (transient or status in TRANSIENT):
        raise explain(error, where) from None
    asked = _wait_asked_for(error.response) if isinstance(error, HfHubHTTPError) else None
    if asked is not None and asked > LONGEST_WAIT:
        raise explain(error, where) from None
    wait = (asked or min(2**failures, 60)) * random.uniform(1, 1.25)
    progress = f"attempt {failures} of {attempts}, next in {wait:.0f} s"
    print(_without_token(f"{where}: {_reason(error)}; {progress}"), file=sys.stderr)
    time.sleep(wait)


def explain(error: Exception, where: str) -> GeometryError:
    """Turn an error of the Hub into a message that says what to do. Never shows the token."""
    token = "Set HF_TOKEN, or run `hf auth login`"
    status = error.response.status_code if isinstance(error, HfHubHTTPError) else None
    if isinstance(error, OfflineModeIsEnabled):
        advice = "HF_HUB_OFFLINE is set, so nothing can be fetched. Unset it, or use `path:`."
    elif isinstance(error, GatedRepoError) or status == 403:
        advice = (
            "access is restricted (HTTP 403 or gated). Ask for access on the model's page, then "
            f"use a token of the account that was granted it. {token}."
        )
    elif isinstance(error, RevisionNotFoundError):
        advice = "the repository has no such revision (HTTP 404)."
    elif isinstance(error, RemoteEntryNotFoundError):
        advice = f"the repository has no such file (HTTP 404) at {_url(error)}."
    elif status == 401 and "credentials" in str(error).lower():
        advice = f"the token is invalid or expired (HTTP 401). {token} with a fresh one."
    elif isinstance(error, RepositoryNotFoundError) or status == 404:
        advice = (
            f"there is no such repository, or it is private (HTTP {status}) at {_url(error)}. "
            f"Check `repo:` for a typing mistake. {token} if it is private."
        )
    elif status == 401:
        advice = f"the Hub asks for a token (HTTP 401). {token}."
    elif status == 429:
        advice = _busy(status)
    elif status is not None:
        advice = f"the Hub answered HTTP {status} at {_url(error)}. Run again later."
    else:
        advice = f"{_reason(error)} (at {_url(error)}). Check the network and HF_ENDPOINT."
    return _refusal(f"{where}: {advice}")


def _busy(status: int) -> str:
    limit = status == 429
    what = (
        "the Hub's rate limit is reached"
        if limit
        else f"the Hub asks to wait over {LONGEST_WAIT} s"
    )
    return f"{what} (HTTP {status}). Run again later, or with a token."


def _refusal(message: str) -> GeometryError:
    return GeometryError(_without_token(message))


def _without_token(message: str) -> str:
    """Hide the token, which a server may send back in whatever it answers."""
    token = get_token()
    return message.replace(token, "<token>") if token else message


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


def _session() -> httpx2.Client:
    """Return huggingface_hub's session, with bounds on the time and the size of an answer."""
    session = get_session()
    session.timeout = TIMEOUT
    if _bound not in session.event_hooks["response"]:
        session.event_hooks["response"].append(_bound)
    return session


def _bound(response: httpx2.Response) -> None:
    assert isinstance(response.stream, httpx2.SyncByteStream)
    listing = response.url.path.startswith("/api/")
    response.stream = _Bounded(response.stream, LARGEST_LISTING if listing else math.inf)


class _Bounded(httpx2.SyncByteStream):
    """A body that ends in an error where it comes too slowly, or is too large."""

    def __init__(self, stream: httpx2.SyncByteStream, most: float) -> None:
        self.stream, self.most = stream, most

    def __iter__(self) -> Iterator[bytes]:
        since, window, received = time.monotonic(), 0, 0
        for chunk in self.stream:
            yield chunk
            window += len(chunk)
            received += len(chunk)
            if received > self.most:
                raise httpx2.RemoteProtocolError(f"the answer has more than {self.most} bytes")
            if (now := time.monotonic()) - since > WINDOW:
                if window < SLOWEST:
                    raise httpx2.RemoteProtocolError(
                        f"only {window} bytes came in {now - since:.0f} s"
                    )
                since, window = now, 0

    def close(self) -> None:
        self.stream.close()


def _wait_asked_for(response: httpx2.Response) -> float | None:
    """Return the seconds that Retry-After or RateLimit ask for (RFC 9110, ratelimit-headers)."""
    headers = response.headers
    after = headers.get("Retry-After", "").strip()
    found = re.fullmatch(r"(\d+)", after)
    if found is None and response.status_code == 429:
        found = re.search(r"\bt=(\d+)", headers.get("RateLimit", "")) or re.fullmatch(
            r"\s*(\d+)\s*", headers.get("RateLimit-Reset", "")
        )
    return float(found[1]) + 1 if found else _seconds_until(after)  # int() refuses 5,000 digits


def _seconds_until(date: str) -> float | None:
    """Return the seconds until an HTTP date, None where it is over or is no date."""
    try:
        when = parsedate_to_datetime(date)
    except (ValueError, TypeError, LookupError, OverflowError):
        return None
    wait = (when.replace(tzinfo=when.tzinfo or UTC) - datetime.now(UTC)).total_seconds()
    return wait + 1 if wait > 0 else None


def _raise_for_status(response: httpx2.Response) -> None:
    try:
        hf_raise_for_status(response)
    except ValueError:  # it reads a rate limit with int()
        raise HfHubHTTPError(f"HTTP {response.status_code}", response=response) from None


def _reason(error: Exception) -> str:
    if isinstance(error, HfHubHTTPError):
        return f"HTTP {error.response.status_code}"
    if isinstance(error, httpx2.LocalProtocolError | UnicodeEncodeError):
        return "a header could not be sent; the token may contain a line break or an accent"
    if isinstance(error, httpx2.TimeoutException):
        return f"nothing was received for {TIMEOUT} s"
    return f"the connection failed ({type(error).__name__}: {error})"


def _url(error: Exception) -> str:
    """Return the address asked for, without what may hold a password or a signature."""
    try:
        source: Any = error.response if isinstance(error, HfHubHTTPError) else error
        url = source.request.url
    except (AttributeError, RuntimeError):  # httpx2 raises the latter where none is attached
        return "an unknown address"
    return str(url.copy_with(query=None, userinfo=b""))
