"""Whether results are as they were written is told of every file, to the last byte of g."""

import shutil
import subprocess
import sys

import pytest
from running import REPOSITORY, snakemake


def verify(folder):
    """Run the command of docs/reliability.md; return its exit status and all that it says."""
    command = [sys.executable, "-m", "unembedding.records.verification", "results/geometry"]
    done = subprocess.run(
        command,
        cwd=folder,
        env={"PYTHONPATH": str(REPOSITORY / "src")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return done.returncode, done.stdout


def test_results_that_nobody_touched_are_as_they_were_written(finished):
    assert verify(finished.folder) == (0, "Everything in results/geometry is as it was written.\n")


FILES = [
    "summary.csv",
    "second/revisions.tsv",
    "second/plots/seconds.svg",
    "second/local/unembedding.safetensors",
    "second/local/decomposition.safetensors",
    "second/local/causal.safetensors",
    "second/local/geometry.json",
    "second/local/profiles/extract.json",
    "second/local/profiles/decompose.json",
    "second/local/profiles/transform.prof",
]


@pytest.mark.parametrize("name", FILES)
def test_a_byte_that_changed_is_noticed_and_its_file_named(workspace, name):
    changed = workspace / "results/geometry" / name
    content = bytearray(changed.read_bytes())
    content[-20] ^= 1
    changed.write_bytes(content)
    code, said = verify(workspace)
    assert code == 1
    assert f"results/geometry/{name}" in said
    assert "Traceback" not in said
    assert "results/geometry/first" not in said


def test_every_file_that_is_absent_is_named(workspace):
    results = workspace / "results/geometry"
    for name in FILES:
        (results / name).unlink()
    shutil.rmtree(results / "first/step1-tokens2B")
    code, said = verify(workspace)
    assert code == 1
    assert all(f"results/geometry/{name} is absent." in said for name in FILES)
    assert "results/geometry/first/step1-tokens2B/causal.safetensors is absent." in said


def exchange(one, other):
    between = one.with_name("between")
    one.rename(between)
    other.rename(one)
    between.rename(other)


@pytest.mark.parametrize("name", ["", "causal.safetensors", "profiles/extract.json"])
def test_results_of_two_checkpoints_in_each_others_places_are_noticed(workspace, name):
    first = workspace / "results/geometry/first"
    exchange(first / "step1-tokens2B" / name, first / "step20-tokens40B" / name)
    code, said = verify(workspace)
    assert code == 1
    assert "first/step1-tokens2B" in said and "first/step20-tokens40B" in said


def test_results_of_two_models_in_each_others_places_are_noticed(workspace):
    results = workspace / "results/geometry"
    exchange(results / "first", results / "second")
    code, said = verify(workspace)
    assert code == 1
    assert "results/geometry/second/local/geometry.json is absent" in said


@pytest.mark.parametrize("manifest", [None, "", "file\tdigest\nsummary.csv\n"])
def test_a_folder_without_a_usable_manifest_is_told(tmp_path, manifest):
    if manifest is not None:
        (tmp_path / "results/geometry").mkdir(parents=True)
        (tmp_path / "results/geometry/manifest.tsv").write_text(manifest)
    code, said = verify(tmp_path)
    assert code == 1 and "Traceback" not in said
    assert said.startswith("Error: ") and "results/geometry/manifest.tsv" in said


def test_what_a_run_left_in_which_something_failed_is_verified_too(workspace, config):
    (workspace / "models/second/config.json").unlink()
    (workspace / "models/second/model.safetensors").write_text("no weights")
    assert snakemake(workspace, config).code != 0
    assert verify(workspace) == (0, "Everything in results/geometry is as it was written.\n")
