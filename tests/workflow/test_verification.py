"""Whether results are as they were written is told of every file, to the last byte of g."""

import subprocess
import sys

import pytest
from running import REPOSITORY


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
    assert verify(finished.folder) == (0, "All 3 finished checkpoints are as they were written.\n")


@pytest.mark.parametrize(
    "name",
    [
        "unembedding.safetensors",
        "decomposition.safetensors",
        "causal.safetensors",
        "geometry.json",
        "profiles/extract.json",
        "profiles/decompose.json",
    ],
)
def test_a_byte_that_changed_is_noticed_and_its_file_named(workspace, name):
    changed = workspace / "results/geometry/second/local" / name
    content = bytearray(changed.read_bytes())
    content[-20] ^= 1
    changed.write_bytes(content)
    code, said = verify(workspace)
    assert code == 1
    assert f"results/geometry/second/local/{name}" in said
    assert "Traceback" not in said
    assert "results/geometry/first" not in said


def exchange(one, other):
    between = one.with_name("between")
    one.rename(between)
    other.rename(one)
    between.rename(other)


@pytest.mark.parametrize(
    "name", ["", "unembedding.safetensors", "decomposition.safetensors", "causal.safetensors"]
)
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
    assert "describes another checkpoint, second/local" in said


def test_a_folder_without_results_is_told(tmp_path):
    assert verify(tmp_path) == (
        1,
        "Error: results/geometry holds no finished checkpoint. Give the folder of the models.\n",
    )
