"""A repository on the Hub: every layout as one of its revisions, pinned, and read by range."""

import re
from types import SimpleNamespace

import pytest
from checkpoints import LAYOUTS
from hub import LoopbackHub
from independent import assert_geometry
from running import snakemake, succeed

REPO = "fields/olmo"
NAMES = list(LAYOUTS)
# Revisions of even steps hold the layouts, those between hold nothing that could be read.
REVISIONS = [f"step{2 * i}-tokens{i}B" for i in range(len(NAMES) - 2)] + ["main", "refs/pr/1"]
LAYOUT_OF = dict(zip(NAMES, REVISIONS, strict=True))
FAST = ("--set-threads", "decompose_covariance=1", "transform_unembedding=1")


@pytest.fixture(scope="module")
def repository(layouts, tmp_path_factory):
    folder = tmp_path_factory.mktemp("hub")
    config = {
        "models": {
            "olmo": {
                "repo": REPO,
                "revisions": ["step*-*", "main", "refs/pr/1"],
                "every": 2,
            }
        }
    }
    with LoopbackHub() as hub:
        commits = {}
        for name, revision in LAYOUT_OF.items():
            kind = "pr" if revision.startswith("refs/") else "branch"
            commits[revision] = hub.add(REPO, revision, layouts[name][0], kind)
        for i in range(len(NAMES) - 3):
            hub.add(REPO, f"step{2 * i + 1}-tokens{i}B", {"README.md": b"nothing"})
        run = succeed(folder, config, *FAST, HF_ENDPOINT=hub.endpoint)
        requests = list(hub.requests)
        yield SimpleNamespace(
            hub=hub, run=run, folder=folder, config=config, commits=commits, requests=requests
        )


def results(repository, revision):
    return repository.folder / "results/geometry/olmo" / revision.replace("/", "%2F")


def test_patterns_every_and_names_choose_the_revisions(repository):
    extracted = {job for job in repository.run.jobs if job.startswith("extract")}
    quoted = [revision.replace("/", "%2F") for revision in REVISIONS]
    assert extracted == {f"extract_unembedding olmo/{revision}" for revision in quoted}


def test_every_revision_is_pinned_to_its_commit(repository):
    lines = (repository.folder / "results/geometry/olmo/revisions.tsv").read_text().splitlines()
    assert lines[1:] == [f"{name}\t{repository.commits[name]}" for name in REVISIONS]


@pytest.mark.parametrize(("name", "revision"), LAYOUT_OF.items(), ids=NAMES)
def test_geometry_of_every_layout_is_correct(repository, layouts, name, revision):
    assert_geometry(results(repository, revision), layouts[name][1])


@pytest.mark.parametrize(("name", "revision"), LAYOUT_OF.items(), ids=NAMES)
def test_only_the_tensor_crosses_the_network(repository, layouts, name, revision):
    commit = repository.commits[revision]
    sent = sum(r.bytes_sent for r in repository.requests if commit in r.path and r.method == "GET")
    folder, gamma = layouts[name]
    tensor_and_headers = gamma.nbytes + 2**14
    assert 0 < sent <= tensor_and_headers
    largest = max(file.stat().st_size for file in folder.iterdir())
    assert largest > 10 * tensor_and_headers, "a whole file would not be noticed"


def test_the_flame_graphs_of_fetches_reach_down_to_the_network(repository):
    pages = [results(repository, r) / "profiles/extract.html" for r in REVISIONS]
    drawn = "".join(page.read_text() for page in pages)
    assert "HubRepository.stream (unembedding.hub.ranges:" in drawn
    assert re.search(r"\.read \(httpcore2\.", drawn)


def test_the_repository_is_asked_for_its_refs_once(repository):
    assert [r.path for r in repository.requests].count(f"/api/models/{REPO}/refs") == 1


def test_a_branch_that_moved_changes_nothing_and_nothing_is_asked(repository):
    repository.hub.move(REPO, "main", repository.commits[REVISIONS[0]])
    repository.hub.requests.clear()
    run = succeed(repository.folder, repository.config, HF_ENDPOINT=repository.hub.endpoint)
    assert run.jobs == set()
    assert repository.hub.requests == []


def test_archives_and_shards_are_extracted_from_a_local_folder_too(repository, layouts, tmp_path):
    names = [name for name in NAMES if re.search(r"bin|shard|\.pt", name)]
    folders = {name: layouts[name][0] for name in names}
    asked = [folder.name for folder in folders.values()]
    model = {"path": str(folders[names[0]].parent), "revisions": asked}
    succeed(tmp_path, {"models": {"olmo": model}}, *extracted(asked))
    for name, folder in folders.items():
        local = tmp_path / "results/geometry/olmo" / folder.name
        assert tensor_bytes(local) == tensor_bytes(results(repository, LAYOUT_OF[name]))


def extracted(revisions):
    return [f"results/geometry/olmo/{name}/unembedding.safetensors" for name in revisions]


def tensor_bytes(folder):
    content = (folder / "unembedding.safetensors").read_bytes()
    return content[8 + int.from_bytes(content[:8], "little") :]


def test_a_whole_checkpoint_is_downloaded_into_the_cache_where_asked(repository, tmp_path):
    model = {"repo": REPO, "revisions": [REVISIONS[0]]}
    config = {"models": {"olmo": model}, "download": "checkpoint"}
    succeed(tmp_path, config, *extracted(REVISIONS[:1]), HF_ENDPOINT=repository.hub.endpoint)
    assert list((tmp_path / "hf/hub").rglob("snapshots/*/model.safetensors"))
    found = tmp_path / "results/geometry/olmo" / REVISIONS[0]
    assert tensor_bytes(found) == tensor_bytes(results(repository, REVISIONS[0]))


def test_a_revision_added_to_the_configuration_leaves_the_others_pinned(repository, tmp_path):
    hub, commits, added = repository.hub, repository.commits, REVISIONS[2]
    model = {"repo": REPO, "revisions": ["main"]}
    hub.move(REPO, "main", commits["main"])
    succeed(tmp_path, {"models": {"olmo": model}}, *extracted(["main"]), HF_ENDPOINT=hub.endpoint)
    hub.move(REPO, "main", commits[REVISIONS[0]])
    model["revisions"] = both = ["main", added]
    run = succeed(tmp_path, {"models": {"olmo": model}}, *extracted(both), HF_ENDPOINT=hub.endpoint)
    pinned = (tmp_path / "results/geometry/olmo/revisions.tsv").read_text().splitlines()
    assert pinned[1:] == [f"{name}\t{commits[name]}" for name in both]
    assert run.jobs == {"resolve_revisions olmo", f"extract_unembedding olmo/{added}"}


def test_a_pin_that_was_deleted_is_looked_up_again_and_a_moved_revision_made_again(
    repository, tmp_path
):
    hub, commits = repository.hub, repository.commits
    asked = ["main", REVISIONS[2]]
    config = {"models": {"olmo": {"repo": REPO, "revisions": asked}}}
    hub.move(REPO, "main", commits["main"])
    succeed(tmp_path, config, "geometry", HF_ENDPOINT=hub.endpoint)
    (tmp_path / "results/geometry/olmo/revisions.tsv").unlink()
    hub.move(REPO, "main", commits[REVISIONS[0]])
    run = succeed(tmp_path, config, "geometry", HF_ENDPOINT=hub.endpoint)
    made = {job.split("/")[-1] for job in run.jobs if job.startswith(("extract", "transform"))}
    assert made == {"main"}
    now, then = (folder(where) for where in (tmp_path, repository.folder))
    assert tensor_bytes(now / "main") == tensor_bytes(then / REVISIONS[0])
    assert commits[REVISIONS[0]] in (now / "main/geometry.json").read_text()


def folder(workspace):
    return workspace / "results/geometry/olmo"


def test_a_dry_run_makes_no_request(repository, tmp_path):
    repository.hub.requests.clear()
    run = succeed(tmp_path, repository.config, "--dry-run", HF_ENDPOINT=repository.hub.endpoint)
    assert "resolve_revisions olmo" in run.jobs
    assert repository.hub.requests == []


def test_a_revision_that_is_missing_is_named_with_its_neighbours(repository, tmp_path):
    config = {"models": {"olmo": {"repo": REPO, "revisions": ["step7-tokens4B"]}}}
    run = snakemake(tmp_path, config, HF_ENDPOINT=repository.hub.endpoint)
    assert run.code != 0
    assert "'step7-tokens4B': the nearest are step7-tokens3B" in run.output
    assert not (tmp_path / "results/geometry/olmo/revisions.tsv").exists()


def test_a_checkpoint_in_a_folder_of_a_repository_is_extracted(repository, layouts, tmp_path):
    folder, gamma = layouts[NAMES[0]]
    files = {f"steps/10/{file.name}": file.read_bytes() for file in folder.iterdir()}
    repository.hub.add("fields/folders", "main", files)
    model = {"repo": "fields/folders", "revisions": "main", "subfolder": "steps/10"}
    target = "results/geometry/m/main/unembedding.safetensors"
    succeed(tmp_path, {"models": {"m": model}}, target, HF_ENDPOINT=repository.hub.endpoint)
    assert tensor_bytes((tmp_path / target).parent) == gamma.tobytes()
