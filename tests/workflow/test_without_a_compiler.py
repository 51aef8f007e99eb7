"""A machine without a C++ compiler: the selective scan says so, and the geometry is there."""

from shutil import which
from types import SimpleNamespace

import pytest
from checkpoints import matrix, random_matrix
from running import snakemake


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bare")
    matrix(folder / "models/small", random_matrix(1))
    tools = folder / "bin"
    tools.mkdir()
    for name in ("bash", "sh", "which"):
        (tools / name).symlink_to(which(name))
    (folder / "results/mamba").mkdir(parents=True)
    (folder / "results/mamba/scan.csv").write_text("of an earlier kernel")
    config = {"models": {"small": {"path": "models/small"}}, "mamba": {}}
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.delenv("CXX", raising=False)
        # One job at a time, the failing one first.
        done = snakemake(
            folder, config, "--prioritize", "results/mamba/build/kernel.json", PATH=str(tools)
        )
    return SimpleNamespace(folder=folder, run=done)


def test_the_message_says_what_to_install(run):
    assert run.run.code != 0
    assert "no C++ compiler was found" in run.run.output


def test_the_geometry_is_whole(run):
    results = run.folder / "results/geometry"
    assert (results / "small/local/causal.safetensors").exists()
    assert (results / "summary.csv").exists()
    assert (results / "small/plots/spectrum.svg").exists()


def test_nothing_is_left_that_was_measured_with_another_kernel(run):
    assert not (run.folder / "results/mamba/scan.csv").exists()
