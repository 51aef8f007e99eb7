"""The loopback Hub of the tests is one that `huggingface_hub` cannot tell from the real one."""

import hashlib
import subprocess
import sys
import time
from pathlib import Path

import httpx2
import pytest
from hub import Fault, LoopbackHub
from huggingface_hub import (
    HfApi,
    get_hf_file_metadata,
    hf_hub_download,
    hf_hub_url,
    snapshot_download,
)
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import close_session, get_session, hf_raise_for_status

REPO = "fields/small"
CONFIG = b'{"model_type": "gpt2"}'
WEIGHTS = bytes(range(256)) * 4096  # 1 MiB, no two neighbouring bytes alike
FILES = {"config.json": CONFIG, "model.safetensors": WEIGHTS, "runs/a/log.txt": b"loss 1.0"}


@pytest.fixture
def hub():
    with LoopbackHub() as hub:
        yield hub
    close_session()


@pytest.fixture
def commit(hub):
    return hub.add(REPO, "main", FILES)


@pytest.fixture
def api(hub):
    return HfApi(endpoint=hub.endpoint, token=False)


def url(hub, commit, name="model.safetensors"):
    return hf_hub_url(REPO, name, revision=commit, endpoint=hub.endpoint)


def get(hub, commit, asked=None):
    headers = {"Range": asked} if asked else {}
    return get_session().get(url(hub, commit), headers=headers)


def download(hub, commit, cache, name="model.safetensors", **options):
    options = {"endpoint": hub.endpoint, "cache_dir": cache, "token": False, **options}
    return Path(hf_hub_download(REPO, name, revision=commit, **options))


def test_a_commit_is_named_by_its_content(hub):
    first = hub.add(REPO, "main", FILES)
    assert hub.add(REPO, "copy", FILES) == first
    assert hub.add(REPO, "main", {**FILES, "config.json": b"{}"}) != first
    assert len(first) == 40


def test_the_refs_of_a_repository_are_branches_tags_and_pull_requests(hub, api, commit):
    tagged = hub.add(REPO, "step-10", {"config.json": b"10"}, kind="tag")
    proposed = hub.add(REPO, "refs/pr/1", {"config.json": b"pr"}, kind="pr")
    refs = api.list_repo_refs(REPO, include_pull_requests=True)
    named = refs.branches + refs.tags + refs.pull_requests
    assert [(ref.name, ref.ref, ref.target_commit) for ref in named] == [
        ("main", "refs/heads/main", commit),
        ("step-10", "refs/tags/step-10", tagged),
        ("refs/pr/1", "refs/pr/1", proposed),
    ]
    assert api.list_repo_refs(REPO).pull_requests is None


def test_every_kind_of_revision_resolves_to_its_commit(hub, api, commit):
    slashed = hub.add(REPO, "runs/seed-0", {"config.json": b"0"})
    proposed = hub.add(REPO, "refs/pr/1", {"config.json": b"pr"}, kind="pr")
    revisions = {None: commit, "main": commit, commit: commit}
    revisions |= {"runs/seed-0": slashed, "refs/pr/1": proposed}
    assert {name: api.model_info(REPO, revision=name).sha for name in revisions} == revisions


def test_an_old_commit_is_still_there_after_its_branch_has_moved(hub, api, commit):
    newer = hub.add(REPO, "main", {"config.json": b"{}"})
    assert api.model_info(REPO).sha == newer
    assert len(api.model_info(REPO, revision=commit).siblings) == len(FILES)
    hub.move(REPO, "main", commit)
    assert api.model_info(REPO).sha == commit


def test_one_call_lists_every_file_with_its_size_and_digest(hub, api, commit):
    files = api.model_info(REPO, revision=commit, files_metadata=True).siblings
    sha256 = hashlib.sha256(WEIGHTS).hexdigest()
    assert {file.rfilename: file.size for file in files} == {n: len(b) for n, b in FILES.items()}
    assert [file.lfs.sha256 for file in files if file.lfs] == [sha256]
    assert len(hub.requests) == 1


def test_the_tree_lists_folders_and_files(hub, api, commit):
    def listed(*paths, **options):
        entries = api.list_repo_tree(REPO, *paths, revision=commit, **options)
        return {entry.path: getattr(entry, "size", None) for entry in entries}

    top = {"config.json": len(CONFIG), "model.safetensors": len(WEIGHTS), "runs": None}
    assert listed() == top
    assert listed("runs/a") == {"runs/a/log.txt": 8}
    assert listed(recursive=True) == {**top, "runs/a": None, "runs/a/log.txt": 8}
    paths = ["runs", "config.json", "nothing"]
    assert [entry.path for entry in api.get_paths_info(REPO, paths)] == paths[:2]


def test_a_download_is_cached_and_a_pinned_one_asks_nothing_again(hub, commit, tmp_path):
    path = download(hub, commit, tmp_path)
    assert path.read_bytes() == WEIGHTS
    assert [seen.method for seen in hub.requests] == ["HEAD", "GET"]
    assert download(hub, commit, tmp_path) == path
    assert len(hub.requests) == 2


def test_a_snapshot_is_every_file_of_the_commit(hub, commit, tmp_path):
    folder = snapshot_download(REPO, endpoint=hub.endpoint, cache_dir=tmp_path, token=False)
    assert Path(folder).name == commit
    assert {name: Path(folder, name).read_bytes() for name in FILES} == FILES


def test_a_folder_is_streamed_from_disk(hub, api, tmp_path):
    size = 1 << 26
    with (tmp_path / "model.bin").open("wb") as file:
        file.truncate(size)
    commit = hub.add(REPO, "main", tmp_path)
    end = get_session().get(url(hub, commit, "model.bin"), headers={"Range": "bytes=-3"})
    assert (end.status_code, end.content) == (206, bytes(3))
    assert end.headers["Content-Range"] == f"bytes {size - 3}-{size - 1}/{size}"
    assert hub.bytes_sent("model.bin") == 3


@pytest.mark.parametrize(
    ("asked", "sent"),
    [("bytes=10-19", slice(10, 20)), ("bytes=1048570-", slice(-6, None)), (None, slice(None))],
)
def test_a_range_is_what_is_sent(hub, commit, asked, sent):
    response = get(hub, commit, asked)
    assert response.content == WEIGHTS[sent]
    assert response.status_code == (206 if asked else 200)
    assert response.headers["X-Repo-Commit"] == commit
    assert hub.requests[0].range == asked
    assert hub.bytes_sent("model.safetensors") == len(WEIGHTS[sent])


def test_a_range_past_the_end_is_refused(hub, commit):
    response = get(hub, commit, f"bytes={len(WEIGHTS)}-")
    assert response.status_code == 416
    assert response.headers["Content-Range"] == f"bytes */{len(WEIGHTS)}"


def test_the_metadata_of_an_lfs_file_is_its_sha256(hub, commit):
    found = get_hf_file_metadata(url(hub, commit), token=False)
    assert found.etag == hashlib.sha256(WEIGHTS).hexdigest()
    assert (found.size, found.commit_hash) == (len(WEIGHTS), commit)


def test_what_is_missing_is_named(hub, api, commit, tmp_path):
    with pytest.raises(RepositoryNotFoundError):
        api.model_info("fields/absent")
    with pytest.raises(RevisionNotFoundError):
        api.model_info(REPO, revision="absent")
    with pytest.raises(EntryNotFoundError):
        download(hub, commit, tmp_path, "absent.json")


def test_a_gated_repository_is_listed_to_all_and_read_by_its_token(hub, api, commit, tmp_path):
    hub.gate(REPO, token="hf_member")
    hub.add("fields/other", "main", {})
    hub.gate("fields/other", token="hf_stranger")
    assert api.model_info(REPO).gated == "manual"
    for token, status in ((False, 401), ("hf_stranger", 403)):
        with pytest.raises(GatedRepoError) as refused:
            download(hub, commit, tmp_path, token=token)
        assert refused.value.response.status_code == status
    with pytest.raises(HfHubHTTPError, match="Invalid credentials") as refused:
        download(hub, commit, tmp_path, token="hf_wrong")
    assert type(refused.value) is HfHubHTTPError
    assert download(hub, commit, tmp_path, token="hf_member").read_bytes() == WEIGHTS


def test_a_redirect_leads_to_the_file_and_leaves_the_token_behind(hub, commit, tmp_path):
    hub.gate(REPO, token="hf_member")
    with LoopbackHub() as cdn:
        hub.redirect_files_to(cdn)
        assert download(hub, commit, tmp_path, token="hf_member").read_bytes() == WEIGHTS
        assert hub.bytes_sent("model.safetensors") == 0
        assert cdn.bytes_sent("model.safetensors") == len(WEIGHTS)
        assert all("authorization" not in seen.headers for seen in cdn.requests)


def test_a_server_can_redirect_to_itself_by_another_name(hub, commit):
    hub.redirect_files_to(hub.other_host)
    response = get_session().get(url(hub, commit), headers={"authorization": "Bearer hf_member"})
    assert response.content == WEIGHTS
    assert [seen.status for seen in hub.requests] == [302, 200]
    assert ["authorization" in seen.headers for seen in hub.requests] == [True, False]


def test_a_fault_strikes_the_requests_it_matches_as_often_as_it_says(hub, commit):
    slow_down = Fault("safetensors", status=429, headers={"Retry-After": "7"}, times=2)
    hub.faults.append(slow_down)
    assert get_session().get(url(hub, commit, "config.json")).status_code == 200
    refused = [get(hub, commit) for _ in range(3)]
    assert [response.status_code for response in refused] == [429, 429, 200]
    assert refused[0].headers["Retry-After"] == "7"
    with pytest.raises(HfHubHTTPError):
        hf_raise_for_status(refused[0])


def test_a_fault_can_be_for_one_method(hub, commit, tmp_path):
    hub.faults.append(Fault("safetensors", status=500, only_method="GET"))
    with pytest.raises(HfHubHTTPError):
        download(hub, commit, tmp_path)
    assert [(seen.method, seen.status) for seen in hub.requests] == [("HEAD", 200), ("GET", 500)]


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (Fault("", reset_after=100_000), httpx2.ReadError),
        (Fault("", close_after=100_000), httpx2.RemoteProtocolError),
    ],
)
def test_a_connection_breaks_after_the_bytes_it_has_delivered(hub, commit, fault, error):
    hub.faults.append(fault)
    received = b""
    with pytest.raises(error), get_session().stream("GET", url(hub, commit)) as response:
        for chunk in response.iter_raw():
            received += chunk
    assert received == WEIGHTS[:100_000]
    assert hub.bytes_sent() == 100_000


def test_a_range_can_be_ignored(hub, commit):
    hub.faults.append(Fault("", ignore_range=True))
    response = get(hub, commit, "bytes=10-19")
    assert (response.status_code, len(response.content)) == (200, len(WEIGHTS))
    assert "Content-Range" not in response.headers


def test_a_byte_can_be_flipped(hub, commit):
    hub.faults.append(Fault("", flip_byte=3))
    assert get(hub, commit, "bytes=0-4").content == bytes([0, 1, 2, 3 ^ 0xFF, 4])


def test_a_body_can_be_shorter_than_the_range_it_claims(hub, commit):
    hub.faults.append(Fault("", truncate_to=4))
    response = get(hub, commit, "bytes=0-9")
    assert response.content == WEIGHTS[:4]
    assert response.headers["Content-Range"] == f"bytes 0-9/{len(WEIGHTS)}"


@pytest.mark.parametrize("stall_after", [None, 100_000])
def test_a_stall_is_a_timeout_that_does_not_outlive_the_hub(stall_after):
    began = time.monotonic()
    with LoopbackHub() as hub:
        commit = hub.add(REPO, "main", FILES)
        hub.faults.append(Fault("", stall_s=60, stall_after=stall_after))
        with pytest.raises(httpx2.ReadTimeout):
            get_session().get(url(hub, commit), timeout=0.2)
    assert time.monotonic() - began < 5


def test_a_stopped_hub_refuses_connections():
    with LoopbackHub() as hub:
        commit = hub.add(REPO, "main", FILES)
        assert get(hub, commit).status_code == 200
    with pytest.raises(httpx2.TransportError):
        get(hub, commit)
    with pytest.raises(httpx2.ConnectError):
        get(hub, commit)


def test_a_folder_of_revisions_can_be_served_by_hand(tmp_path):
    for revision in ("main", "runs%2Fseed-0"):
        (tmp_path / REPO / revision).mkdir(parents=True)
        (tmp_path / REPO / revision / "config.json").write_bytes(revision.encode())
    script = Path(__file__).parents[1] / "hub.py"
    command = [sys.executable, script, tmp_path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as served:
        try:
            lines = [served.stdout.readline().strip() for _ in range(3)]
            api = HfApi(endpoint=lines[-1].removeprefix("HF_ENDPOINT="), token=False)
            names = {ref.name for ref in api.list_repo_refs(REPO).branches}
        finally:
            served.terminate()
    assert names == {"main", "runs/seed-0"}
