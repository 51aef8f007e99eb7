"""A repository of the Hub is read by byte range, over a network that fails in every way it can."""

import gzip
import json
import math
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import httpx2
import huggingface_hub._tree_cache
import huggingface_hub.constants
import numpy as np
import pytest
from hub import Fault, LoopbackHub
from huggingface_hub.utils import close_session
from safetensors.numpy import save, save_file

from unembedding.checkpoints.checkpoint import Checkpoint
from unembedding.checkpoints.sources import read, read_json
from unembedding.errors import GeometryError
from unembedding.extraction import extract_unembedding, open_source
from unembedding.hub import locks
from unembedding.hub import ranges as repositories
from unembedding.hub import requests as client
from unembedding.hub.ranges import HubRepository
from unembedding.hub.refs import commit_of, list_refs
from unembedding.hub.snapshot import download_snapshot as downloaded
from unembedding.resolution import resolve_revisions

REPO, FILE = "allenai/tiny", "model.safetensors"
ORIGIN = {"repo": REPO, "revision": "main", "commit": "c" * 40}
BODY = bytes(range(251)) * 8000  # 2 MB, in which no two places look alike to a wrong offset
FILES = {"config.json": b"{}", FILE: BODY, "runs/log.txt": b"loss 1.0"}
TOKEN = "hf_secretsecretsecret"
LONG = "bytes 50-" + "9" * 5000 + "/2008000"  # more digits than int() takes
SCRIPTS = Path(__file__).parents[2] / "src"


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """A Hub that huggingface_hub takes for the real one, as if HF_ENDPOINT had named it."""
    with LoopbackHub() as hub:
        constants = huggingface_hub.constants
        template = hub.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "ENDPOINT", hub.endpoint)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
        monkeypatch.delenv("HF_TOKEN", raising=False)
        yield hub
    close_session()


@pytest.fixture
def waits(monkeypatch):
    """The waits between attempts, in seconds, none of which is waited for."""
    waits = []
    monkeypatch.setattr(client, "time", SimpleNamespace(**{**vars(time), "sleep": waits.append}))
    return waits


@pytest.fixture
def repository(hub, waits):
    return HubRepository(REPO, "main", hub.add(REPO, "main", FILES))


def refusal(call):
    with pytest.raises(GeometryError) as caught:
        call()
    return str(caught.value)


def gets(hub, name=FILE):
    return [seen for seen in hub.requests if seen.method == "GET" and seen.path.endswith(name)]


def fail(hub, match=FILE, **how):
    hub.faults.append(Fault(match + "$", only_method="GET", **how))


# What is read


def test_a_range_is_read_and_nothing_around_it(hub, repository):
    assert read(repository, FILE, 1000, 301_000) == BODY[1000:301_000]
    (request,) = gets(hub)
    assert (request.range, request.status) == ("bytes=1000-300999", 206)
    assert hub.bytes_sent(FILE) == repository.bytes_fetched == 300_000


@pytest.mark.parametrize(
    ("start", "stop"), [(0, 1), (0, len(BODY)), (len(BODY) - 1, len(BODY)), (5, 5)]
)
def test_a_range_may_be_any_part_of_the_file(repository, start, stop):
    assert read(repository, FILE, start, stop) == BODY[start:stop]


def test_the_files_at_the_top_are_listed_with_their_sizes_by_one_request(hub, repository):
    assert repository.sizes() == {"config.json": 2, FILE: len(BODY)}
    assert repository.sizes() == {"config.json": 2, FILE: len(BODY)}
    assert len(hub.requests) == 1


def test_a_branch_that_moves_does_not_move_what_is_read(hub, repository):
    hub.add(REPO, "main", {FILE: b"newer", "config.json": b"[]"})
    assert repository.sizes()[FILE] == len(BODY)
    assert read(repository, FILE, 0, 10) == BODY[:10]
    assert f"/resolve/{repository.commit}/" in gets(hub)[0].path


@pytest.mark.parametrize("file", [FILE, "pytorch_model.bin"])
def test_one_tensor_of_a_large_file_costs_its_bytes_and_one_megabyte_at_most(
    hub, waits, tmp_path, file
):
    gamma = np.random.default_rng(0).standard_normal((5000, 64), np.float32)
    big = tmp_path / "big" / file
    big.parent.mkdir()
    if file == FILE:
        write_sparse_safetensors(big, gamma)
    else:
        write_large_archive(big, gamma)
    assert big.stat().st_size > 40_000_000
    commit = hub.add(REPO, "main", {file: big, "config.json": b'{"model_type": "olmo"}'})
    source = HubRepository(REPO, "main", commit)
    target = tmp_path / "unembedding.safetensors"
    facts = extract_unembedding(source, target, ORIGIN)
    assert target.read_bytes().endswith(gamma.tobytes())
    assert gamma.nbytes <= hub.bytes_sent(file) <= gamma.nbytes + 1_000_000
    assert facts.bytes_fetched == hub.bytes_sent(file) + hub.bytes_sent("config.json")


def write_sparse_safetensors(path, gamma):
    """Write γ behind 100 MB that nobody should read, and that take no room on the disk."""
    save_file({"model.embed_tokens.weight": np.zeros(1), "lm_head.weight": gamma}, path)
    filler = 100_000_000
    entries = {"model.embed_tokens.weight": ("U8", [filler], 0, filler)}
    entries["lm_head.weight"] = ("F32", list(gamma.shape), filler, filler + gamma.nbytes)
    described = [
        f'"{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{start},{stop}]}}'
        for name, (dtype, shape, start, stop) in entries.items()
    ]
    header = ("{" + ",".join(described) + "}").encode()
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.seek(filler, os.SEEK_CUR)
        file.write(gamma.tobytes())


def write_large_archive(path, gamma):
    import torch

    filler = torch.zeros(10_000_000)
    torch.save(
        {"a": filler, "lm_head.weight": torch.from_numpy(gamma), "b": filler[:5].clone()}, path
    )


def test_shards_on_the_hub_are_found_by_their_index(hub, waits):
    gamma = np.ones((6, 2), np.float32)
    index = b'{"weight_map": {"lm_head.weight": "model-2.safetensors", "a": "model-1.safetensors"}}'
    files = {
        "model.safetensors.index.json": index,
        "model-1.safetensors": save({"a": gamma * 2}),
        "model-2.safetensors": save({"lm_head.weight": gamma}),
    }
    source = HubRepository(REPO, "main", hub.add(REPO, "main", files))
    found = Checkpoint(source).find("lm_head.weight")
    assert read(source, found.file, found.start, found.stop) == gamma.tobytes()
    assert hub.bytes_sent("model-1.safetensors") == 0


# Connections that break


@pytest.mark.parametrize("how", ["reset_after", "close_after"])
def test_a_broken_connection_is_resumed_where_it_broke(hub, repository, waits, how):
    fail(hub, **{how: 1_000_000})
    assert read(repository, FILE, 500, len(BODY)) == BODY[500:]
    first, second = gets(hub)
    assert first.range == f"bytes=500-{len(BODY) - 1}"
    begin = int(second.range.removeprefix("bytes=").partition("-")[0])
    assert 500 < begin <= 1_000_500  # a reset may lose what was on its way
    assert repository.bytes_fetched == len(BODY) - 500
    assert len(waits) == 1


def test_nothing_received_is_asked_for_again(hub, repository):
    fail(hub, close_after=1_000_000)
    read(repository, FILE, 0, len(BODY))
    assert hub.bytes_sent(FILE) == len(BODY)


def test_a_connection_that_breaks_again_and_again_is_resumed_while_it_makes_progress(
    hub, repository, monkeypatch
):
    monkeypatch.setattr(repositories, "PROGRESS", 100_000)
    fail(hub, close_after=100_000, times=20)
    assert read(repository, FILE, 0, len(BODY)) == BODY
    assert len(gets(hub)) == 21
    assert hub.bytes_sent(FILE) == len(BODY)


@pytest.mark.parametrize("how", ["reset_after", "close_after"])
def test_a_connection_that_breaks_after_each_byte_is_given_up(hub, repository, how):
    fail(hub, **{how: 1}, times=999)
    assert "the connection failed" in refusal(lambda: read(repository, FILE, 0, 10_000))
    assert len(gets(hub)) == client.ATTEMPTS


def test_a_connection_that_breaks_without_end_is_given_up(hub, repository, monkeypatch):
    monkeypatch.setattr(repositories, "PROGRESS", 1000)
    fail(hub, close_after=1000, times=999)
    assert "the connection failed" in refusal(lambda: read(repository, FILE, 0, len(BODY)))
    assert len(gets(hub)) == repositories.BREAKS


def test_a_drip_is_given_up(hub, repository, monkeypatch):
    monkeypatch.setattr(client, "WINDOW", 0.1)
    fail(hub, drip_s=0.02, times=999)
    assert "bytes came in" in refusal(lambda: read(repository, FILE, 0, 10_000))
    assert len(gets(hub)) == client.ATTEMPTS


def test_a_drip_that_passes_is_resumed(hub, repository, monkeypatch):
    monkeypatch.setattr(client, "WINDOW", 0.1)
    fail(hub, drip_s=0.02)
    assert read(repository, FILE, 0, len(BODY)) == BODY
    assert hub.bytes_sent(FILE) < len(BODY) + 100


def test_a_connection_that_never_makes_progress_is_given_up(hub, repository, waits):
    fail(hub, close_after=0, times=99)
    message = refusal(lambda: read(repository, FILE, 0, 10))
    assert message.startswith(f"{REPO}@main/{FILE}: the connection failed")
    assert len(gets(hub)) == client.ATTEMPTS
    assert len(waits) == client.ATTEMPTS - 1


def test_the_waits_grow(hub, repository, waits):
    fail(hub, status=503, times=99)
    refusal(lambda: read(repository, FILE, 0, 10))
    assert waits == sorted(waits)
    assert all(2**n <= wait <= 1.25 * 2**n for n, wait in enumerate(waits, 1))


def test_a_body_shorter_than_it_claims_is_completed(hub, repository):
    fail(hub, truncate_to=1000)
    assert read(repository, FILE, 0, 5000) == BODY[:5000]
    assert [seen.range for seen in gets(hub)] == ["bytes=0-4999", "bytes=1000-4999"]


@pytest.mark.parametrize("stall_after", [None, 1_000_000])
def test_a_connection_that_stalls_is_left_and_resumed(hub, repository, monkeypatch, stall_after):
    monkeypatch.setattr(client, "TIMEOUT", 0.3)
    fail(hub, stall_s=60, stall_after=stall_after)
    assert read(repository, FILE, 0, len(BODY)) == BODY


def test_a_list_of_refs_that_stalls_is_left_and_asked_for_again(hub, repository, monkeypatch):
    monkeypatch.setattr(client, "TIMEOUT", 0.3)
    fail(hub, "/refs", stall_s=60)
    assert list_refs(REPO) == {"main": repository.commit}


# Servers that answer something else


def test_a_server_that_ignores_ranges_gives_the_right_bytes_and_a_warning(hub, repository):
    fail(hub, ignore_range=True, times=99)
    assert read(repository, FILE, 1_500_000, 1_600_000) == BODY[1_500_000:1_600_000]
    assert read(repository, FILE, 7, 20) == BODY[7:20]
    assert repository.warnings == ["127.0.0.1 ignores byte ranges; whole files were read."]
    assert repository.bytes_fetched >= 1_600_000


def test_a_whole_file_that_breaks_is_read_again_up_to_where_it_broke(hub, repository):
    fail(hub, ignore_range=True, close_after=1_700_000)
    fail(hub, ignore_range=True)
    assert read(repository, FILE, 1_500_000, 1_800_000) == BODY[1_500_000:1_800_000]


def test_a_whole_file_that_is_too_short_is_given_up(hub, repository):
    fail(hub, ignore_range=True, truncate_to=100, times=99)
    message = refusal(lambda: read(repository, FILE, 0, 200))
    assert "100 bytes are no whole file of" in message
    assert f"{hub.endpoint}/{REPO}/resolve/{repository.commit}/{FILE}" in message


@pytest.mark.parametrize(
    "sent",
    [
        "bytes 0-99/2008000",
        "bytes 51-149/2008000",
        "bytes 50-150/2008000",
        "bytes 50-149/77",
        "bytes */200",
        "50-149",
        pytest.param(LONG, id="digits"),
    ],
)
def test_another_range_than_was_asked_for_is_refused(hub, repository, sent):
    fail(hub, headers={"Content-Range": sent}, times=99)
    message = refusal(lambda: read(repository, FILE, 50, 150))
    assert f"(HTTP 206, Content-Range '{sent}')" in message
    assert f"{hub.endpoint}/{REPO}/resolve/{repository.commit}/{FILE}" in message
    assert repository.bytes_fetched == 0


def test_another_range_than_was_asked_for_is_asked_for_again(hub, repository):
    fail(hub, headers={"Content-Range": "bytes 0-99/2008000"})
    assert read(repository, FILE, 50, 150) == BODY[50:150]


def test_an_encoding_that_cannot_be_decoded_is_asked_for_again(hub, repository):
    fail(hub, headers={"Content-Encoding": "gzip"})
    assert read(repository, FILE, 0, 1000) == BODY[:1000]


def test_an_encoding_that_can_never_be_decoded_is_given_up(hub, repository):
    fail(hub, headers={"Content-Encoding": "gzip"}, times=99)
    assert "encoded as 'gzip', unasked" in refusal(lambda: read(repository, FILE, 0, 1000))
    assert len(gets(hub)) == client.ATTEMPTS


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_a_passing_failure_is_tried_again(hub, repository, status, waits):
    fail(hub, status=status, times=2)
    assert read(repository, FILE, 0, 10) == BODY[:10]
    assert len(gets(hub)) == 3
    assert len(waits) == 2


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410, 416, 501])
def test_a_lasting_failure_is_not_tried_again(hub, repository, status, waits):
    fail(hub, status=status, times=99)
    message = refusal(lambda: read(repository, FILE, 0, 10))
    assert message.startswith(f"{REPO}@main/{FILE}: ")
    assert str(status) in message
    assert len(gets(hub)) == 1
    assert waits == []


@pytest.mark.parametrize("match", [FILE, "/refs", "/revision/[0-9a-f]*"])
@pytest.mark.parametrize(
    "headers",
    [{"Retry-After": "37"}, {"RateLimit": '"resolvers";r=0;t=37'}],
    ids=["Retry-After", "RateLimit"],
)
def test_a_rate_limit_is_waited_for_as_long_as_it_says(hub, repository, waits, match, headers):
    fail(hub, match, status=429, headers=headers)
    assert list_refs(REPO) == {"main": repository.commit}
    assert commit_of(REPO, repository.commit)
    assert read(repository, FILE, 0, 10) == BODY[:10]
    (wait,) = waits
    assert 37 <= wait <= 38 * 1.25


@pytest.mark.parametrize(
    "headers",
    [
        {"Retry-After": "7200"},
        {"Retry-After": "9" * 5000},
        {"Retry-After": "Fri, 31 Dec 2100 23:59:59 GMT"},
        {"RateLimit": '"resolvers";r=0;t=' + "9" * 5000},
        {"RateLimit-Reset": "7200"},
    ],
    ids=["number", "digits", "date", "RateLimit", "RateLimit-Reset"],
)
def test_a_rate_limit_of_hours_is_not_waited_for(hub, repository, waits, headers):
    fail(hub, status=429, headers=headers)
    message = refusal(lambda: read(repository, FILE, 0, 10))
    assert "rate limit is reached (HTTP 429)" in message
    assert waits == []


@pytest.mark.parametrize("zone", ["GMT", "-0000", ""])
def test_a_date_to_retry_after_is_waited_for(hub, repository, waits, zone):
    date = time.strftime("%a, %d %b %Y %H:%M:%S ", time.gmtime(time.time() + 100)) + zone
    fail(hub, status=503, headers={"Retry-After": date})
    assert read(repository, FILE, 0, 10) == BODY[:10]
    assert 90 <= waits[0] <= 101 * 1.25


@pytest.mark.parametrize(
    "date",
    ["Wed, 21 Oct 2015 07:28:00 GMT", "Wed, 99 Oct 2099 07:28:00 GMT", "soon", "1e9", "-5", ","],
)
def test_a_date_that_is_over_or_none_asks_for_no_wait_of_its_own(hub, repository, waits, date):
    fail(hub, status=503, headers={"Retry-After": date})
    assert read(repository, FILE, 0, 10) == BODY[:10]
    assert 2 <= waits[0] <= 2.5


def test_each_wait_is_announced_with_its_reason(hub, repository, capsys):
    fail(hub, status=503)
    read(repository, FILE, 0, 10)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{REPO}@main/{FILE}: HTTP 503; attempt 1 of {client.ATTEMPTS}, next in")


def test_a_refused_connection_names_the_address(hub, repository, monkeypatch, waits):
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    message = refusal(lambda: list_refs(REPO))
    assert message.startswith(f"{REPO}: the connection failed (ConnectError")
    assert "http://127.0.0.1:9/api/models/allenai/tiny/refs" in message
    assert "HF_ENDPOINT" in message
    assert len(waits) == client.CONNECTS - 1


def resolved(*asked):
    return resolve_revisions(list(asked), 1, None, REPO, None, {})


def test_a_mirror_without_a_list_of_revisions_gives_those_that_are_named(hub, repository):
    hub.faults.append(Fault("/refs", status=404, times=99))
    commit = repository.commit
    assert resolved("main", commit) == {"main": commit, commit: commit}
    message = refusal(lambda: resolved("main", "step*"))
    assert "no list of revisions can be had" in message and "`step*` needs" in message
    assert "there is no such repository" in refusal(lambda: resolved("step1"))


def test_a_commit_needs_no_list_of_revisions(hub, repository):
    resolved(repository.commit)
    assert not [request for request in hub.requests if request.path.endswith("/refs")]


@pytest.mark.parametrize("endpoint", ["127.0.0.1:9", "ftp://127.0.0.1", "http://127.0.0.1:x"])
def test_an_endpoint_that_is_no_address_is_said_to_be_none(hub, monkeypatch, waits, endpoint):
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", endpoint)
    assert "HF_ENDPOINT" in refusal(lambda: list_refs(REPO))
    assert waits == []


# Access


def test_a_missing_repository_is_told_from_a_missing_revision_and_a_missing_file(hub, repository):
    no_repository = refusal(lambda: list_refs("allenai/absent"))
    assert no_repository.startswith("allenai/absent: there is no such repository, or it is private")
    absent = HubRepository(REPO, "main", "0" * 40)
    assert "no such revision (HTTP 404)" in refusal(absent.sizes)
    no_file = refusal(lambda: read(repository, "absent.bin", 0, 1))
    assert f"no such file (HTTP 404) at {hub.endpoint}/{REPO}/resolve/" in no_file


@pytest.mark.parametrize("name", ["a/b/c", "https://huggingface.co/allenai/OLMo-7B", "a b", "-"])
def test_a_name_no_repository_can_have_is_said_to_be_none(hub, name, waits):
    message = refusal(lambda: list_refs(name))
    assert message.startswith(f"{name}")
    assert waits == []


def test_a_gated_repository_asks_for_a_token(hub, repository):
    hub.gate(REPO, TOKEN)
    message = refusal(lambda: read(repository, FILE, 0, 10))
    assert "access is restricted" in message
    assert "Set HF_TOKEN, or run `hf auth login`" in message


def test_a_token_opens_a_gated_repository(hub, repository, monkeypatch):
    hub.gate(REPO, TOKEN)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert read(repository, FILE, 0, 10) == BODY[:10]


@pytest.mark.parametrize(
    ("token", "advice"),
    [
        ("hf_strangerstranger", "Ask for access on the model's page"),
        ("hf_expiredexpired", "the token is invalid or expired (HTTP 401)"),
    ],
)
def test_a_token_that_does_not_open_it_is_told_apart_and_not_shown(
    hub, repository, monkeypatch, capfd, waits, token, advice
):
    hub.gate(REPO, TOKEN)
    hub.add("other/gated", "main", {})
    hub.gate("other/gated", "hf_strangerstranger")
    monkeypatch.setenv("HF_TOKEN", token)
    message = refusal(lambda: read(repository, FILE, 0, 10))
    assert advice in message
    assert token not in message + "".join(capfd.readouterr())
    assert waits == []


@pytest.mark.parametrize("token", ["hf_sec ret", "hf_sécret", "hf_sec\x01ret"])
def test_a_token_that_cannot_be_sent_is_not_shown(hub, repository, monkeypatch, capfd, token):
    hub.gate(REPO, TOKEN)
    monkeypatch.setenv("HF_TOKEN", token)
    message = refusal(lambda: read(repository, FILE, 0, 10))
    assert "token" in message
    assert token not in message + "".join(capfd.readouterr())


@pytest.mark.parametrize(
    "fault",
    [
        {"headers": {"Content-Range": f"bytes {TOKEN}"}},
        {"headers": {"ETag": f'"{TOKEN}"'}},
        {"status": 302, "headers": {"Location": f"http://127.0.0.1:9/{TOKEN}"}},
        {"status": 503, "headers": {"X-Error-Message": TOKEN}},
    ],
    ids=["Content-Range", "ETag", "Location", "message"],
)
def test_a_token_that_the_server_sends_back_is_not_shown(
    hub, repository, monkeypatch, capfd, fault
):
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    read(repository, FILE, 0, 10)
    fail(hub, times=99, **fault)
    message = refusal(lambda: read(repository, FILE, 0, 10))
    assert TOKEN not in message + "".join(capfd.readouterr())


def test_a_redirect_to_another_host_is_followed_without_the_token(hub, repository, monkeypatch):
    hub.gate(REPO, TOKEN)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    hub.redirect_files_to(hub.other_host)
    assert read(repository, FILE, 1000, 2000) == BODY[1000:2000]
    first, second = gets(hub, "")[-2:]
    assert (first.status, second.status, second.range) == (302, 206, "bytes=1000-1999")
    assert first.headers["authorization"] == f"Bearer {TOKEN}"
    assert "authorization" not in second.headers


def test_an_error_behind_a_redirect_names_the_address_without_its_signature(
    hub, repository, monkeypatch
):
    hub.faults.append(
        Fault(f"{FILE}$", 302, {"Location": f"{hub.other_host}/cdn/gone?Signature=abc"}, times=1)
    )
    message = refusal(lambda: read(repository, FILE, 0, 10))
    assert f"{hub.other_host}/cdn/gone" in message
    assert "Signature" not in message


def test_a_password_in_the_endpoint_is_not_shown(hub, repository, monkeypatch):
    endpoint = hub.endpoint.replace("//", "//me:pa55word@")
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", endpoint)
    message = refusal(lambda: list_refs("allenai/absent"))
    assert hub.endpoint in message
    assert "pa55word" not in message


@pytest.fixture
def offline(monkeypatch):
    return lambda: monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)


def test_offline_nothing_is_asked_for(hub, repository, offline, waits):
    offline()
    calls = [
        repository.sizes,
        lambda: read(repository, FILE, 0, 10),
        lambda: list_refs(REPO),
        lambda: commit_of(REPO, repository.commit),
        lambda: downloaded(repository),
    ]
    for call in calls:
        assert "HF_HUB_OFFLINE is set" in refusal(call)
    assert hub.requests == []
    assert waits == []


# Whole checkpoints


def test_a_snapshot_holds_every_file_of_the_commit(hub, repository, tmp_path):
    source = open_source(None, REPO, "main", repository.commit, "checkpoint")
    assert Path(source.where()).is_relative_to(tmp_path / "cache")
    assert source.sizes() == repository.sizes()
    assert read(source, FILE, 0, len(BODY)) == BODY
    assert source.bytes_fetched == sum(map(len, FILES.values()))


def test_a_snapshot_that_is_there_is_not_fetched_again(hub, repository, offline):
    first = downloaded(repository)
    sent = hub.bytes_sent(FILE)
    again = downloaded(HubRepository(REPO, "main", repository.commit))
    assert (again.folder, again.bytes_fetched) == (first.folder, 0)
    assert hub.bytes_sent(FILE) == sent
    offline()
    assert downloaded(HubRepository(REPO, "main", repository.commit)).folder == first.folder


def test_a_snapshot_is_tried_again_after_a_passing_failure(hub, repository, waits):
    fail(hub, f"/revision/{repository.commit}", status=503, times=2)
    source = downloaded(repository)
    assert read(source, FILE, 0, len(BODY)) == BODY


def test_an_answer_that_is_no_json_is_asked_for_again_and_then_an_error(hub, repository):
    fail(hub, "/refs", flip_byte=3, times=2)
    assert list_refs(REPO) == {"main": repository.commit}
    fail(hub, "/refs", flip_byte=3, times=99)
    assert "the answer makes no sense" in refusal(lambda: list_refs(REPO))


def test_a_cache_that_cannot_be_written_is_named(hub, repository, tmp_path, monkeypatch):
    (tmp_path / "full").write_text("a file, where a folder has to be")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "full"))
    message = refusal(lambda: downloaded(repository))
    assert message.startswith(f"{REPO}@main could not be stored in the Hub cache ({tmp_path}/full")
    assert "HF_HOME" in message


def test_a_snapshot_whose_download_is_too_short_is_tried_again(hub, repository):
    fail(hub, truncate_to=1000)
    assert read(downloaded(repository), FILE, 0, len(BODY)) == BODY


def test_a_download_that_is_always_too_short_is_no_fault_of_the_disk(hub, repository):
    fail(hub, truncate_to=1000, times=99)
    message = refusal(lambda: downloaded(repository))
    assert "Consistency check failed" in message
    assert "Check the network" in message
    assert "Free some space" not in message


def test_a_file_damaged_in_the_cache_is_fetched_again(hub, repository):
    cached = downloaded(repository).folder / FILE
    cached.write_bytes(b"?" + BODY[1:])
    snapshot = downloaded(repository)
    assert read(snapshot, FILE, 0, 100) == BODY[:100]
    assert snapshot.verified == {FILE}
    assert snapshot.warnings == [f"{FILE} was damaged in the Hub cache and has been fetched again."]


def test_a_file_damaged_in_the_cache_is_noticed_offline(hub, repository, offline):
    (downloaded(repository).folder / FILE).write_bytes(b"?" + BODY[1:])
    offline()
    message = refusal(lambda: read(downloaded(repository), FILE, 0, 100))
    assert f"{FILE} is damaged" in message


def test_a_link_in_the_cache_to_another_file_is_noticed_offline(hub, repository, offline):
    path = downloaded(repository).folder / FILE
    path.unlink()
    path.symlink_to(path.with_name("config.json").resolve())
    offline()
    message = refusal(lambda: read(downloaded(repository), FILE, 0, len(FILES["config.json"])))
    assert f"{FILE} is damaged" in message


def test_offline_a_file_is_verified_only_where_the_cache_has_the_hubs_listing(repository, offline):
    folder = downloaded(repository).folder
    offline()
    for verified in ({FILE}, set()):
        snapshot = downloaded(HubRepository(REPO, "main", repository.commit))
        assert read(snapshot, FILE, 0, len(BODY)) == BODY
        assert snapshot.verified == verified
        shutil.rmtree(folder.parents[1] / "trees", ignore_errors=True)
        huggingface_hub._tree_cache._IN_MEMORY_TREE_CACHE.clear()  # as in a new process


def test_a_wait_of_hours_for_a_snapshot_is_refused(hub, repository, waits):
    fail(hub, status=429, headers={"Retry-After": "7200"}, times=99)
    assert "rate limit is reached (HTTP 429)" in refusal(lambda: downloaded(repository))


def test_a_small_file_that_differs_from_its_digest_is_fetched_again_and_then_refused(
    hub, repository
):
    fail(hub, "config.json", flip_byte=0)
    assert read_json(repository, "config.json") == {}
    fail(hub, "config.json", flip_byte=0, times=2)
    assert "config.json was fetched twice" in refusal(lambda: read_json(repository, "config.json"))


def test_a_file_whose_etag_changes_is_not_put_together_from_two(hub, repository):
    fail(hub, close_after=1000)
    fail(hub, headers={"ETag": '"other"'}, times=99)
    assert "changed while it was read" in refusal(lambda: read(repository, FILE, 0, 5000))


@pytest.fixture
def held(hub, repository):
    """The lock of a file in the Hub's cache, which another process holds."""
    cache = Path(huggingface_hub.constants.HF_HUB_CACHE)
    lock = cache / ".locks/models--allenai--tiny" / f"{repository.digest(FILE)}.lock"
    lock.parent.mkdir(parents=True)
    code = "import sys, filelock\nwith filelock.FileLock(sys.argv[1]): print(flush=True), input()"
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    holder.stdout.readline()
    yield SimpleNamespace(lock=lock, release=lambda: holder.communicate(b"\n"))
    holder.kill()
    holder.communicate()


def test_a_lock_that_another_process_holds_is_waited_for_with_a_word_and_an_end(
    hub, repository, held, monkeypatch, capfd
):
    monkeypatch.setattr(locks, "SILENT", 0.2)
    monkeypatch.setattr(locks, "LONGEST_LOCK", 0.5)
    begun = time.monotonic()
    message = refusal(lambda: downloaded(repository))
    assert time.monotonic() - begun < 10
    assert f"another process has held {held.lock}" in message and "delete it" in message
    assert f"waiting for another process that holds {held.lock}" in capfd.readouterr().err


def test_a_lock_is_waited_for_as_long_as_what_it_guards_grows(hub, repository, held, monkeypatch):
    monkeypatch.setattr(locks, "SILENT", 0.1)
    monkeypatch.setattr(locks, "LONGEST_LOCK", 0.5)
    blobs = held.lock.parents[2] / "models--allenai--tiny/blobs"
    blobs.mkdir(parents=True)

    def download():
        with (blobs / f"{held.lock.stem}.incomplete").open("wb") as file:
            for _ in range(15):
                file.write(b"x")
                file.flush()
                time.sleep(0.1)
        held.release()

    other = threading.Thread(target=download)
    other.start()
    snapshot = downloaded(repository)
    other.join()
    assert read(snapshot, FILE, 0, 100) == BODY[:100]


def test_another_hosts_refusal_is_not_taken_for_a_gated_model(hub, repository, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    hub.redirect_files_to(hub.other_host)
    hub.faults.append(Fault("^/cdn/", 403, times=99))
    for call in (lambda: read(repository, FILE, 0, 10), lambda: downloaded(repository)):
        message = refusal(call)
        assert f"{hub.other_host}/cdn/" in message and "HTTP 403" in message
        assert "to which the Hub sends on" in message
        assert "access is restricted" not in message and "HF_TOKEN" not in message


def test_a_snapshot_of_a_gated_repository_asks_for_a_token(hub, repository, waits):
    hub.gate(REPO, TOKEN)
    assert "Set HF_TOKEN" in refusal(lambda: downloaded(repository))
    assert waits == []


# Revisions


@pytest.fixture
def commits(hub, waits):
    """Five branches, a tag and a pull request, each with a commit of its own."""
    branches = ["main", "step1000-tokens4B", "step2000-tokens9B", "step3000-tokens13B", "a/b"]
    kinds = {"v1": "tag", "refs/pr/1": "pr"}
    return {
        name: hub.add(REPO, name, {"config.json": name.encode()}, kinds.get(name, "branch"))
        for name in [*branches, *kinds]
    }


def resolve(asked, every=1, pinned=None):
    return resolve_revisions(asked, every, None, REPO, None, pinned or {})


def test_branches_and_tags_are_listed_and_pull_requests_on_request(commits):
    without = {name: commit for name, commit in commits.items() if name != "refs/pr/1"}
    assert list_refs(REPO) == without
    assert list_refs(REPO, pull_requests=True) == commits


def test_revisions_are_pinned_to_their_commits_in_the_order_asked_for(commits):
    found = resolve(["v1", "step*", "refs/pr/1", "a/b"], every=2)
    names = ["v1", "step1000-tokens4B", "step3000-tokens13B", "refs/pr/1", "a/b"]
    assert list(found.items()) == [(name, commits[name]) for name in names]


def test_a_commit_is_a_revision(commits):
    commit = commits["a/b"]
    assert resolve([commit]) == {commit: commit}


def test_a_commit_the_repository_does_not_have_is_missing(commits):
    assert "none of these" in refusal(lambda: resolve(["f" * 40]))


def test_a_missing_revision_is_answered_with_the_nearest(commits):
    message = refusal(lambda: resolve(["main", "step2100-tokens9B"]))
    assert message.startswith(f"{REPO} has 6 revisions, and none of these:")
    assert "the nearest are step2000-tokens9B, step3000-tokens13B, step1000-tokens4B" in message


def test_what_is_pinned_stays_so_when_its_branch_moves(hub, commits):
    pinned = resolve(["main", "step*"])
    hub.add(REPO, "main", {"config.json": b"moved"})
    hub.add(REPO, "step4000-tokens17B", {"config.json": b"new"})
    again = resolve(["main", "step*"], pinned=pinned)
    assert {name: again[name] for name in pinned} == pinned
    assert list(again) == [*pinned, "step4000-tokens17B"]


def test_what_is_pinned_stays_when_its_branch_is_gone(commits):
    pinned = {"deleted": commits["main"]}
    assert resolve(["deleted"], pinned=pinned) == pinned


def test_a_pin_of_another_repository_is_resolved_anew(commits):
    assert resolve(["main"], pinned={"main": "a" * 40}) == {"main": commits["main"]}


def test_what_was_pinned_while_the_model_was_local_is_resolved_anew(commits):
    assert resolve(["main"], pinned={"main": "local"}) == {"main": commits["main"]}


def test_hf_endpoint_names_the_hub(hub, repository, tmp_path):
    environment = {
        **os.environ,
        "HF_ENDPOINT": hub.endpoint,
        "HF_HOME": str(tmp_path),
        "PYTHONPATH": str(SCRIPTS),
    }
    program = f"from unembedding.hub.refs import list_refs; print(list_refs({REPO!r}))"
    found = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == str({"main": repository.commit})


def test_a_range_answered_as_if_it_were_the_whole_file_is_not_taken_for_it(hub, repository):
    hub.faults.append(Fault(f"{FILE}$", relabel=200, times=1))
    assert read(repository, FILE, 1000, 2000) == BODY[1000:2000]
    hub.faults.append(Fault(f"{FILE}$", relabel=200, times=99))
    assert "1000 bytes are no whole file of" in refusal(lambda: read(repository, FILE, 0, 1000))


def test_a_range_shorter_than_its_body_is_read_to_its_own_end(hub, repository):
    fail(hub, headers={"Content-Range": f"bytes 1000-1009/{len(BODY)}"})
    assert read(repository, FILE, 1000, 2000) == BODY[1000:2000]
    ranges = [request.range for request in gets(hub, FILE)[-2:]]
    assert ranges == ["bytes=1000-1999", "bytes=1010-1999"]


def test_an_etag_that_appears_only_later_is_a_change(hub, repository):
    fail(hub, headers={"ETag": ""}, reset_after=100)
    assert "its ETag was absent" in refusal(lambda: read(repository, FILE, 0, 1000))


@pytest.mark.parametrize(
    ("header", "value"), [("X-Repo-Commit", "d" * 40), ("X-Linked-Etag", '"' + "d" * 64 + '"')]
)
def test_a_file_that_says_it_is_another_is_refused(hub, repository, header, value):
    fail(hub, headers={header: value}, times=99)
    message = refusal(lambda: read(repository, FILE, 0, 10))
    said = {"X-Repo-Commit": "commit", "X-Linked-Etag": "digest"}[header]
    assert f"it is of the {said} {value[1:-1]}" in message.replace(value, value[1:-1])


def test_a_file_that_is_shorter_in_the_cache_is_fetched_again(hub, repository):
    cached = downloaded(repository).folder / FILE
    cached.write_bytes(BODY[:100])
    snapshot = downloaded(repository)
    assert snapshot.sizes()[FILE] == len(BODY)
    assert read(snapshot, FILE, 0, len(BODY)) == BODY


def test_a_list_of_files_that_comes_a_byte_at_a_time_is_given_up(hub, repository, monkeypatch):
    monkeypatch.setattr(client, "WINDOW", 0.2)
    hub.faults.append(Fault("/revision/", drip_s=0.05, times=99))
    assert "bytes came in" in refusal(repository.sizes)


def test_a_list_of_files_without_end_is_given_up(hub, repository, monkeypatch):
    monkeypatch.setattr(client, "LARGEST_LISTING", 50)
    assert "more than 50 bytes" in refusal(repository.sizes)


def test_a_list_of_files_of_another_commit_is_refused(hub, repository):
    other = hub.add(REPO, "other", {FILE: BODY[:100]})
    listing = json.dumps({"id": REPO, "sha": other, "siblings": []}).encode()
    hub.faults.append(Fault("/revision/", replace=listing, times=99))
    assert f"the list of files is of the commit {other}" in refusal(repository.sizes)


def test_an_answer_that_is_encoded_unasked_is_refused(hub, repository):
    bomb = gzip.compress(b" " * 10_000_000)
    headers = {"Content-Encoding": "gzip"}
    hub.faults.append(Fault("/revision/", replace=bomb, headers=headers, times=99))
    assert "encoded as 'gzip', unasked" in refusal(repository.sizes)


def test_an_error_without_end_is_given_up(hub, repository, monkeypatch):
    monkeypatch.setattr(client, "LARGEST_ERROR", 50)
    hub.faults.append(Fault(f"{FILE}$", relabel=404, replace=b"x" * 1000, times=99))
    assert "more than 50 bytes" in refusal(lambda: read(repository, FILE, 0, 10))


def test_pages_without_end_are_given_up(hub, repository, monkeypatch):
    monkeypatch.setattr(client, "MOST_ANSWERS", 20)
    following = {"Link": f'<{hub.endpoint}/api/models/{REPO}/tree/main>; rel="next"'}
    hub.faults.append(Fault("/tree/", headers=following, times=math.inf))
    assert "the Hub has sent 20 answers, and is not done" in refusal(lambda: downloaded(repository))


def test_a_next_page_on_another_host_is_asked_for_without_the_token(hub, repository, monkeypatch):
    hub.gate(REPO, TOKEN)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    path = f"/api/models/{REPO}/tree/{repository.commit}"
    following = {"Link": f'<{hub.other_host}{path}>; rel="next"'}
    hub.faults.append(Fault("/tree/", headers=following))
    downloaded(repository)
    elsewhere = [r for r in hub.requests if hub.other_host.endswith(r.headers["host"])]
    assert elsewhere and not [r for r in elsewhere if "authorization" in r.headers]


def test_a_token_that_a_header_says_is_not_logged(hub, repository, monkeypatch, caplog, capfd):
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    fail(hub, headers={"X-HF-Warning": f"auth; the token {TOKEN} is old"})
    hub.faults.append(Fault("/revision/", headers={"X-HF-Warning": f"auth; {TOKEN}"}))
    read(repository, FILE, 0, 10)
    assert TOKEN not in caplog.text + "".join(capfd.readouterr())


def test_a_list_that_was_cut_short_is_forgotten_until_the_next_run(hub, repository, monkeypatch):
    hub.faults.append(Fault("/tree/", replace=b"[]"))
    assert "config.json is absent, or of another commit" in refusal(lambda: downloaded(repository))
    monkeypatch.setattr(huggingface_hub._tree_cache, "_IN_MEMORY_TREE_CACHE", {})  # another run
    assert read(downloaded(repository), FILE, 0, 10) == BODY[:10]


def test_a_list_of_files_that_is_nested_without_end_is_an_error(hub, repository):
    hub.faults.append(Fault("/revision/", replace=b"[" * 200_000, times=99))
    assert "the answer makes no sense" in refusal(repository.sizes)


@pytest.mark.parametrize(
    "headers",
    [
        {"ETag": '"{path}"', "X-Linked-Etag": '"{path}"'},
        {"X-Linked-Etag": 'W/"../../../../outside"'},
        {"X-Repo-Commit": "{path}", "X-Error-Code": "EntryNotFound"},
    ],
)
def test_an_answer_that_names_a_path_writes_no_file_there(hub, repository, tmp_path, headers):
    outside = tmp_path / "outside"
    status = 404 if "X-Error-Code" in headers else None
    sent = {name: value.format(path=outside) for name, value in headers.items()}
    hub.faults.append(Fault(r"config\.json$", status=status, headers=sent, times=99))
    assert "the Hub names a file by the path" in refusal(lambda: downloaded(repository))
    assert not outside.exists()


def test_an_etag_that_names_no_file_may_have_a_slash(hub, repository):
    headers = {"ETag": 'W/"2b-a/b+c"'}
    hub.faults.append(Fault("/(tree|revision|cdn)/", headers=headers, times=99))
    hub.redirect_files_to(hub.other_host)
    assert read(downloaded(repository), FILE, 0, len(BODY)) == BODY


def test_a_list_of_files_that_names_a_path_writes_no_file_there(hub, repository, tmp_path):
    outside = tmp_path / "outside"
    lfs = {"oid": str(outside), "size": len(BODY), "pointerSize": 130}
    entry = {"type": "file", "path": FILE, "size": len(BODY), "oid": "a" * 40, "lfs": lfs}
    listing = json.dumps([entry]).replace("/", "\\u002f").encode()
    hub.faults.append(Fault("/tree/", replace=listing, times=99))
    assert f"the Hub names a file by the path '{outside}'" in refusal(
        lambda: downloaded(repository)
    )
    assert not outside.exists()


def test_a_list_of_files_without_end_is_given_up_behind_a_redirect(hub, repository, monkeypatch):
    monkeypatch.setattr(client, "LARGEST_LISTING", 50)
    headers = {"Location": f"/{REPO}/resolve/{repository.commit}/{FILE}"}
    hub.faults.append(Fault("/revision/", relabel=307, headers=headers, times=99))
    assert "more than 50 bytes" in refusal(repository.sizes)


def test_a_file_without_end_is_given_up(hub, repository, monkeypatch):
    monkeypatch.setattr(client, "LARGEST_ERROR", 50)
    fail(hub, replace=BODY * 10, times=99)
    assert f"more than {len(BODY)} bytes" in refusal(lambda: downloaded(repository))


def test_an_answer_that_is_only_ever_announced_is_given_up(hub, repository, monkeypatch):
    monkeypatch.setattr(repositories, "LONGEST_PAUSE", 0.5)
    fail(hub, announce_s=0.05, times=99)
    assert "no answer was complete after 0 s" in refusal(lambda: read(repository, FILE, 0, 10))
    hub.faults.clear()
    fail(hub, announce_s=0.05)
    assert read(repository, FILE, 0, 10) == BODY[:10]


def test_a_list_that_is_only_ever_announced_is_given_up(hub, repository, monkeypatch):
    monkeypatch.setattr(client, "LONGEST_LISTING", 0.5)
    hub.faults.append(Fault("/revision/", announce_s=0.05, times=99))
    assert "no answer was complete" in refusal(repository.sizes)


def test_a_chunk_whose_length_comes_without_end_is_given_up(hub, repository, monkeypatch):
    monkeypatch.setattr(client, "close_session", lambda: None)
    with pytest.raises(httpx2.ReadTimeout), client.within(0.1):
        time.sleep(0.3)
        raise httpx2.ReadError("the connection was closed")


def test_time_in_which_nothing_is_asked_of_the_hub_is_not_counted():
    with client.within(0.1) as patience:
        patience.rest()
        time.sleep(0.3)
        patience.renew()
    assert not patience.expired


def test_a_mistake_of_ours_is_not_blamed_on_the_hub(repository, waits):
    def mistaken():
        return [][0]

    with pytest.raises(IndexError):
        client.listed(mistaken, REPO)
    assert waits == []


def test_the_token_goes_to_no_host_that_an_answer_names_for_xet(hub, repository, monkeypatch):
    hub.gate(REPO, TOKEN)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    link = f'<{hub.other_host}/refresh>; rel="xet-auth"'
    headers = {"X-Xet-Hash": "a" * 64, "Link": link}
    hub.faults.append(Fault(f"{FILE}$", headers=headers, times=math.inf))
    assert read(downloaded(repository), FILE, 0, len(BODY)) == BODY
    assert not [request for request in hub.requests if request.path == "/refresh"]


def test_the_token_is_not_sent_unencrypted_where_the_hub_is_encrypted(hub, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "https://huggingface.co")
    [prepare] = [h for h in client.session().event_hooks["request"] if h is client._prepare]
    for scheme, sent in (("https", True), ("http", False)):
        headers = {"Authorization": f"Bearer {TOKEN}"}
        request = httpx2.Request("GET", f"{scheme}://huggingface.co/api/x", headers=headers)
        prepare(request)
        assert ("Authorization" in request.headers) == sent


def test_parts_from_two_hosts_are_one_file_only_where_the_hub_says_so(hub, repository):
    silent = Fault(f"/resolve/.*{FILE}$", headers={"X-Linked-Etag": "", "ETag": '"a"'}, times=99)
    for faults in ([], [silent]):
        hub.faults[:] = faults
        again = HubRepository(REPO, "main", repository.commit)
        hub.redirect_files_to(None)
        assert read(again, FILE, 0, 500) == BODY[:500]
        hub.redirect_files_to(hub.other_host)
        if not faults:
            assert read(again, FILE, 500, 1000) == BODY[500:1000]
    message = refusal(lambda: read(again, FILE, 500, 1000))
    assert "the file changed while it was read: its ETag was a" in message


@pytest.mark.parametrize(
    "files",
    [
        [{"rfilename": FILE, "size": math.inf}],
        [{"rfilename": 5}],
        [{"rfilename": None}],
        [{"rfilename": "\ud800.bin"}],
        [5],
    ],
)
def test_a_list_of_files_that_makes_no_sense_is_an_error(hub, repository, files):
    listing = json.dumps({"id": REPO, "sha": repository.commit, "siblings": files}).encode()
    hub.faults.append(Fault("/revision/", replace=listing, times=99))
    assert "the answer makes no sense" in refusal(repository.sizes)


@pytest.mark.parametrize("ref", [("main", "a" * 64), ("main", None), (5, "a" * 40)])
def test_revisions_that_make_no_sense_are_an_error_and_no_pin(hub, repository, ref):
    name, commit = ref
    branch = {"name": name, "ref": "refs/heads/main", "targetCommit": commit}
    answer = json.dumps({"branches": [branch], "tags": [], "converts": []}).encode()
    hub.faults.append(Fault("/refs", replace=answer, times=99))
    assert "the answer makes no sense" in refusal(lambda: list_refs(REPO))


def test_an_environment_that_allows_no_connection_is_told_its_variables(repository, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", "/nowhere.pem")
    close_session()
    assert "See HTTPS_PROXY, HTTP_PROXY, ALL_PROXY and SSL_CERT_FILE" in refusal(repository.sizes)


def test_what_an_answer_says_is_printed_without_control_characters(hub, repository, capfd):
    fail(hub, headers={"X-Repo-Commit": "\x1b[2Jevil"})
    read(repository, FILE, 0, 10)
    said = capfd.readouterr().err
    assert "\\x1b[2Jevil" in said and "\x1b" not in said


def test_a_folder_in_the_place_of_a_cached_file_is_named(repository, offline):
    config = downloaded(repository).folder / "config.json"
    config.unlink()
    config.mkdir()
    assert "config.json is absent" in refusal(lambda: downloaded(repository))
    offline()
    assert "config.json is not there, and the Hub has one" in refusal(downloaded(repository).sizes)


# Checkpoints in folders of a repository


FOLDERS = {
    "README.md": b"words",
    "steps/10/config.json": b"{}",
    f"steps/10/{FILE}": BODY,
    f"steps/20/{FILE}": BODY[::-1],
    "steps/20/deeper/notes.txt": b"words",
}


@pytest.fixture
def in_folders(hub, waits):
    return hub.add(REPO, "main", FOLDERS)


@pytest.mark.parametrize("download", ["tensor", "checkpoint"])
def test_the_checkpoint_in_a_folder_is_read(hub, in_folders, download):
    source = open_source(None, REPO, "main", in_folders, download, "steps/20")
    assert source.sizes() == {FILE: len(BODY)}
    assert read(source, FILE, 5, 105) == BODY[::-1][5:105]
    digest = HubRepository(REPO, "main", in_folders).files[f"steps/20/{FILE}"][1]
    assert digest is not None and source.digest(FILE) in (digest, None)
    assert source.where(FILE).endswith(f"/steps/20/{FILE}")
    if download == "tensor":
        assert hub.bytes_sent(f"steps/20/{FILE}") == source.bytes_fetched == 100


def test_a_damaged_file_of_a_folder_in_the_cache_is_fetched_again(in_folders):
    source = open_source(None, REPO, "main", in_folders, "checkpoint", "steps/10")
    cached = Path(source.where(FILE)).resolve()
    cached.write_bytes(bytes(len(BODY)))
    again = open_source(None, REPO, "main", in_folders, "checkpoint", "steps/10")
    assert read(again, FILE, 0, len(BODY)) == BODY
    assert again.warnings == [f"{FILE} was damaged in the Hub cache and has been fetched again."]


def test_a_folder_in_the_cache_is_checked_without_a_network(in_folders, monkeypatch):
    open_source(None, REPO, "main", in_folders, "checkpoint", "steps/10")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    source = open_source(None, REPO, "main", in_folders, "checkpoint", "steps/10")
    assert read(source, FILE, 0, 10) == BODY[:10]
    assert source.verified == {FILE}


@pytest.mark.parametrize("subfolder", [None, "step", "steps", "steps/20/deeper"])
def test_a_repository_whose_weights_are_elsewhere_is_answered_with_its_folders(
    in_folders, subfolder
):
    source = HubRepository(REPO, "main", in_folders, subfolder)
    message = refusal(lambda: Checkpoint(source).choose())
    assert "holds no weights this workflow reads" in message
    assert "and weights in the folders steps/10, steps/20. Give one of these: as `subf" in message
