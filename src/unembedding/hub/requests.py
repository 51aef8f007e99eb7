"""Requests to the Hub: bounded in time and size, repeated where that helps."""

from __future__ import annotations

import json
import math
import random
import re
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
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
)
from huggingface_hub.utils import close_session, get_session, hf_raise_for_status

from unembedding.errors import GeometryError, printable
from unembedding.hub.messages import busy, explain, reason, refusal, without_token

TIMEOUT = 30  # seconds without a byte; huggingface_hub's shared client has none
ATTEMPTS = 6  # in a row
CONNECTS = 3  # to a host that is not there at all
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


class Patience:
    """How long a request may still take before its connection is closed, from another thread.

    Each byte restarts a timeout of the client: headers may come one by one, or answers that only
    announce another (HTTP 103). Once closed, the client waits for at most its own timeout.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds, self.deadline = seconds, time.monotonic() + seconds
        self.over, self.expired = threading.Event(), False

    def renew(self) -> None:
        """Wait as long again, from now on."""
        self.deadline = time.monotonic() + self.seconds

    def rest(self) -> None:
        """Wait without end, while nothing is asked of the Hub."""
        self.deadline = math.inf

    def watch(self) -> None:
        """Close huggingface_hub's session once the time is over."""
        while not self.over.wait(min(self.seconds, max(self.deadline - time.monotonic(), 0.01))):
            if time.monotonic() >= self.deadline:
                self.expired = True
                close_session()
                return


@contextmanager
def within(seconds: float) -> Iterator[Patience]:
    """Raise ReadTimeout where what the block asks of the Hub takes longer."""
    patience = Patience(seconds)
    threading.Thread(target=patience.watch, daemon=True).start()
    try:
        yield patience
    except Exception:
        if patience.expired:
            raise httpx2.ReadTimeout(f"no answer was complete after {seconds:.0f} s") from None
        raise
    finally:
        patience.over.set()


def parsed(call: Callable[[], Result]) -> Result:
    """Call what huggingface_hub reads an answer with; one that it cannot read is asked for again.

    Such as a page of a proxy where the Hub's JSON was expected. Only the library is called here: a
    mistake of ours is none of the Hub's.
    """
    try:
        return call()
    except (*FAILURES, HFValidationError):
        raise
    except ODD_ANSWERS as error:
        raise senseless(str(error)) from error


def senseless(what: str) -> httpx2.RemoteProtocolError:
    """Return the error of an answer that is well formed and cannot be meant."""
    said = without_token(what)[:200]
    return httpx2.RemoteProtocolError(f"the answer makes no sense: {said}")


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
            raise refusal(f"{where}: {busy(response.status_code, LONGEST_WAIT)}")
        if (path := _path_named(response)) is not None:
            raise refusal(f"{where}: the Hub names a file by the path {path!r}; refused.")

    def once() -> Result:
        client = session()
        hooks = client.event_hooks
        others = [hook for hook in hooks["response"] if hook is not _bound]
        client.event_hooks = {**hooks, "response": [*others, guard]}
        try:
            return download()
        finally:
            client.event_hooks = hooks

    return with_retries(once, where, attempts=2)


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


def wait_or_raise(error: Exception, failures: int, where: str, attempts: int = ATTEMPTS) -> None:
    """Wait before the next attempt, or raise what the error means to a person."""
    if isinstance(error, LocalEntryNotFoundError) and isinstance(error.__cause__, Exception):
        error = error.__cause__  # snapshot_download hides the real one
    status = error.response.status_code if isinstance(error, HfHubHTTPError) else None
    transient = isinstance(error, httpx2.TransportError | httpx2.DecodingError) and not isinstance(
        error, httpx2.LocalProtocolError | httpx2.UnsupportedProtocol
    )
    if isinstance(error, httpx2.ConnectError):
        attempts = min(attempts, CONNECTS)
    if failures >= attempts or not (transient or status in TRANSIENT):
        raise explain(error, where) from None
    asked = _wait_asked_for(error.response) if isinstance(error, HfHubHTTPError) else None
    if asked is not None and asked > LONGEST_WAIT:
        raise explain(error, where) from None
    wait = (asked or min(2**failures, 60)) * random.uniform(1, 1.25)
    progress = f"attempt {failures} of {attempts}, next in {wait:.0f} s"
    said = printable(without_token(f"{where}: {reason(error)}; {progress}"))
    for place in dict.fromkeys((sys.stderr, sys.__stderr__)):  # the log, and the terminal
        print(said, file=place)
    time.sleep(wait)


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
