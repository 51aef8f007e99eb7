"""What went wrong at the Hub, told so that a person knows what to do. Never shows the token."""

from __future__ import annotations

from typing import Any

import httpx2
import huggingface_hub
from huggingface_hub import get_token
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    OfflineModeIsEnabled,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from unembedding.errors import GeometryError


def explain(error: Exception, where: str) -> GeometryError:
    """Turn an error of the Hub into a message that says what to do. Never shows the token."""
    token = "Set HF_TOKEN, or run `hf auth login`"
    status = error.response.status_code if isinstance(error, HfHubHTTPError) else None
    if isinstance(error, OfflineModeIsEnabled):
        advice = "HF_HUB_OFFLINE is set, so nothing can be fetched. Unset it, or use `path:`."
    elif status == 403 and not _of_the_hub(error):
        advice = (
            f"{_url(error)}, to which the Hub sends on, refused the request (HTTP 403). A proxy or "
            "a firewall may forbid that host, or its signed address has expired: run again."
        )
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
        advice = busy(status, 0)
    elif status is not None:
        advice = f"the Hub answered HTTP {status} at {_url(error)}. Run again later."
    else:
        what = f"{reason(error)} (at {_url(error)})"
        advice = f"{what}. Check the network, HF_ENDPOINT and HTTPS_PROXY."
    return refusal(f"{where}: {advice}")


def busy(status: int, longest_wait: float) -> str:
    """Say that the Hub asks to wait for too long."""
    what = f"the Hub asks to wait over {longest_wait:.0f} s"
    if status == 429:
        what = "the Hub's rate limit is reached"
    return f"{what} (HTTP {status}). Run again later, or with a token."


def refusal(message: str) -> GeometryError:
    """Return the error of a message, which may quote what a server sent."""
    return GeometryError(without_token(message))


def without_token(message: str) -> str:
    """Hide the token, which a server may send back in whatever it answers."""
    token = get_token()
    return message.replace(token, "<token>") if token else message


def reason(error: Exception) -> str:
    """Say in a few words what an error is."""
    if isinstance(error, HfHubHTTPError):
        return f"HTTP {error.response.status_code}"
    if isinstance(error, httpx2.LocalProtocolError | UnicodeEncodeError):
        return "a header could not be sent; the token may contain a line break or an accent"
    if isinstance(error, httpx2.TimeoutException):
        return str(error) if "complete" in str(error) else "nothing was received for too long"
    return f"the connection failed ({type(error).__name__}: {error})"


def _of_the_hub(error: Exception) -> bool:
    """Return whether an answer is the Hub's own, and not that of a host it redirects to."""
    assert isinstance(error, HfHubHTTPError)
    asked, hub = error.response.request.url, httpx2.URL(huggingface_hub.constants.ENDPOINT)
    return (asked.host, asked.port) == (hub.host, hub.port)


def _url(error: Exception) -> str:
    """Return the address asked for, without what may hold a password or a signature."""
    try:
        source: Any = error.response if isinstance(error, HfHubHTTPError) else error
        url = source.request.url
    except (AttributeError, RuntimeError):  # httpx2 raises the latter where none is attached
        return "an unknown address"
    return str(url.copy_with(query=None, userinfo=b""))
