"""A Hub to fail, and a place to report figures."""

import time

import huggingface_hub.file_download
import pytest
from hub import LoopbackHub
from huggingface_hub.utils import close_session
from promises import TOKEN

from unembedding.hub import requests as client


@pytest.fixture
def report(capsys):
    """Show a figure that belongs in docs/reliability.md."""

    def show(text: str) -> None:
        with capsys.disabled():
            print(f"\n  {text}")

    return show


@pytest.fixture
def slept(monkeypatch):
    """The waits of a second and more, in seconds, none of which is waited for."""
    slept: list[float] = []
    sleep = time.sleep
    monkeypatch.setattr(time, "sleep", lambda s: slept.append(s) if s >= 0.1 else sleep(s))
    return slept


@pytest.fixture
def hub(monkeypatch, tmp_path, slept):
    """A Hub that asks for a token, taken for the real one, with its files on another host."""
    constants = huggingface_hub.constants
    with LoopbackHub() as hub:
        template = hub.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "ENDPOINT", hub.endpoint)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.3)
        monkeypatch.setattr(constants, "HF_HUB_ETAG_TIMEOUT", 0.3)
        monkeypatch.setattr(huggingface_hub.file_download, "_ETAG_RETRY_TIMEOUT", 0.3)
        monkeypatch.setattr(client, "TIMEOUT", 0.3)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        hub.redirect_files_to(hub.other_host)
        yield hub
    close_session()
