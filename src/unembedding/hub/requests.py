"""Requests to the Hub: bounded in time and size, repeated where that helps, explained where not."""

from __future__ import annotations

import json
import math
import random
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from itertools import count
from typing import Any, TypeVar

import httpx2
import huggingface_hub
from huggingface_hub import get_token
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
from huggingface_hub.utils import get_session, hf_raise_for_status

from unembedding.errors import GeometryError, printable

TIMEOUT = 30  # seconds without a byte; huggingface_hub's shared client has none
ATTEMPTS = 6  # in a row
LONGEST_PAUSE = 120  # seconds between two parts of an answer, whatever comes between
LONGEST_LISTING = 600  # seconds for all of a list
SLOWEST, WINDOW = 100_000, 60  # bytes that have to come in so many seconds
LARGEST_LISTING = 64 * 2**20  # bytes; a repository of 10,000 files has 5 MB
LARGEST_ERROR = 2**20  # bytes of an answer that says what is wrong
MOST_ANSWERS = 10_000  # to one download of a checkpoint; a Hub may send on from page to page
LONGEST_WAIT = 300  # seconds, whatever the server asks for
LISTING = "listing"  # in a request's extensions: whether it asks for a list, not for a file
TRANSIENT = frozenset({408, 429, 500, 502, 503, 504})
FAILURES = (
    httpx2.HTTPError,
    httpx2.InvalidURL,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    UnicodeEncodeError,  # a token with an accent
)
ODD_ANSWERS = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
Result = TypeVar("Result")


def session() -> httpx2.Client:
    """Return huggingface_hub's session, with bounds on the time and the size of an answer.

    Without Xet, whose native code has connections of its own: it hands the token to any host that
    an answer names, and no bound holds there.
    """
    huggingface_hub.constants.HF_HUB_DISABLE_XET = True
    try:
        client = get_session()
    except (ImportError, OSError, ValueError) as error:
        raise GeometryError(
            f"There can be no connection with what the environment says: {error}. See HTTPS_PROXY, "
            "HTTP_PROXY, ALL_PROXY and SSL_CERT_FILE."
        ) from None
    client.timeout = TIMEOUT
    client.headers["Accept-Encoding"] = "identity"  # a few bytes can be decoded to any number
    if _bound not in client.event_hooks["response"]:
        client.event_hooks["response"].append(_bound)
        client.event_hooks["request"].append(_prepare)
    return client


def _prepare(request: httpx2.Request) -> None:
    """Take the token from a request to another host, such as one that a header of the Hub names.

    Note what is asked for, which a request that follows a redirect inherits.
    """
    home = httpx2.URL(huggingface_hub.constants.ENDPOINT)
    if _origin(request.url) != _origin(home):
        request.headers.pop("Authorization", None)
    listing = request.url.path.startswith(f"{home.path.rstrip('/')}/api/")
    request.extensions.setdefault(LISTING, listing)


def _origin(url: httpx2.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port


def _bound(response: httpx2.Response, largest_file: float = math.inf) -> None:
    assert isinstance(response.stream, httpx2.SyncByteStream)
    if token := get_token():  # huggingface_hub logs what some headers say
        for name in [n for n, value in response.headers.items() if token in value]:
            response.headers[name] = "<token>"
    if (encoding := response.headers.get("Content-Encoding", "identity")) != "identity":
        raise httpx2.RemoteProtocolError(
            f"the answer is encoded as {encoding!r}, unasked", request=response.request
        )
    listing = response.request.extensions[LISTING]
    most = LARGEST_LISTING if listing else max(largest_file, LARGEST_ERROR)
    most = LARGEST_ERROR if response.is_error else most
    response.stream = _Bounded(response.stream, response.request, most)


class _Bounded(httpx2.SyncByteStream):
    """A body that ends in an error where it comes too slowly, or is too large."""

    def __init__(self, stream: httpx2.SyncByteStream, request: httpx2.Request, most: float) -> None:
        self.stream, self.request, self.most = stream, request, most

    def __iter__(self) -> Iterator[bytes]:
        since, window, received = time.monotonic(), 0, 0
        for chunk in self.stream:
            yield chunk
            window += len(chunk)
            received += len(chunk)
            if received > self.most:
                raise httpx2.RemoteProtocolError(
                    f"the answer has more than {self.most} bytes", request=self.request
                )
            if (now := time.monotonic()) - since > WINDOW:
                if window < SLOWEST:
                    raise httpx2.RemoteProtocolError(
                        f"only {window} bytes came in {now - since:.0f} s", request=self.request
                    )
                since, window = now, 0

    def close(self) -> None:
        self.stream.close()


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raise ReadTimeout where a block takes longer, in the main thread, which a signal can reach.

    Each byte restarts a timeout of the client: headers may come one by one, or answers that only
    announce another (HTTP 103).
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def give_up(*_: object) -> None:
        raise httpx2.ReadTimeout(f"no answer was complete after {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def timely(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield chunks, none of which may take longer than LONGEST_PAUSE to come."""
    while True:
        with within(LONGEST_PAUSE):
            chunk = next(chunks, None)
        if chunk is None:
            return
        yield chunk


def listed(call: Callable[[], Result], where: str) -> Result:
    """Call what asks the Hub for a list, until it succeeds; raise GeometryError at last."""

    def once() -> Result:
        session()
        with within(LONGEST_LISTING):
            return call()

    return with_retries(once, where)


def downloaded(download: Callable[[], Result], where: str, largest_file: int) -> Result:
    """Call a download of huggingface_hub, which tries again by itself, and waits without end.

    What it takes for a file's name in the cache is looked at before: it may be a path to anywhere.
    """
    answers = count(1)

    def guard(response: httpx2.Response) -> None:
        _bound(response, largest_file)
        if next(answers) > MOST_ANSWERS:
            raise refusal(f"{where}: the Hub has sent {MOST_ANSWERS} answers, and is not done.")
        if (_wait_asked_for(response) or 0) > LONGEST_WAIT:
            raise refusal(f"{where}: {_busy(response.status_code)}")
        if (path := _path_named(response)) is not None:
            raise refusal(f"{where}: the Hub names a file by the path {path!r}; refused.")

    client = session()
    hooks = client.event_hooks
    others = [hook for hook in hooks["response"] if hook is not _bound]
    client.event_hooks = {**hooks, "response": [*others, guard]}
    try:
        return with_retries(download, where, attempts=2)
    finally:
        client.event_hooks = hooks


def _path_named(response: httpx2.Response) -> str | None:
    """Return what huggingface_hub would call a file or a commit, if that is a path."""
    naming = ["X-Repo-Commit"]
    if response.request.method == "HEAD" and not response.is_error:  # others' may be any Base64
        naming += ["ETag", "X-Linked-Etag"]
    names = [response.headers.get(name, "").removeprefix("W/").strip('"') for name in naming]

    def note(entry: dict[str, Any]) -> None:
        names.extend(str(entry[key]) for key in ("oid", "sha256", "blobId") if key in entry)

    if response.request.extensions[LISTING]:
        with suppress(ValueError, RecursionError):  # who asked says that it is no JSON
            json.loads(response.read(), object_hook=note)
    return next((name for name in names if "/" in name or name in (".", "..")), None)


@contextmanager
def cache_writable(where: str) -> Iterator[None]:
    """Turn what hinders writing into the Hub cache into a message that says where that is."""
    try:
        yield
    except OSError as error:
        place = error.filename or huggingface_hub.constants.HF_HUB_CACHE
        raise refusal(
            f"{where} could not be stored in the Hub cache ({place}): "
            f"{error.strerror or error}. Free some space or check the permissions, or name another "
            "folder with HF_HOME."
        ) from None


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
            raise refusal(f"{where} is no name of a repository: {error}") from None
        except ODD_ANSWERS as error:
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
    said = printable(_without_token(f"{where}: {_reason(error)}; {progress}"))
    print(said, file=sys.stderr)
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
        what = f"{_reason(error)} (at {_url(error)})"
        advice = f"{what}. Check the network, HF_ENDPOINT and HTTPS_PROXY."
    return refusal(f"{where}: {advice}")


def _busy(status: int) -> str:
    limit = status == 429
    what = (
        "the Hub's rate limit is reached"
        if limit
        else f"the Hub asks to wait over {LONGEST_WAIT} s"
    )
    return f"{what} (HTTP {status}). Run again later, or with a token."


def refusal(message: str) -> GeometryError:
    return GeometryError(_without_token(message))


def _without_token(message: str) -> str:
    """Hide the token, which a server may send back in whatever it answers."""
    token = get_token()
    return message.replace(token, "<token>") if token else message


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


def raise_for_status(response: httpx2.Response) -> None:
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
        return str(error) if "complete" in str(error) else f"nothing was received for {TIMEOUT} s"
    return f"the connection failed ({type(error).__name__}: {error})"


def _url(error: Exception) -> str:
    """Return the address asked for, without what may hold a password or a signature."""
    try:
        source: Any = error.response if isinstance(error, HfHubHTTPError) else error
        url = source.request.url
    except (AttributeError, RuntimeError):  # httpx2 raises the latter where none is attached
        return "an unknown address"
    return str(url.copy_with(query=None, userinfo=b""))
