"""The real workflow with --use-conda: a real conda, and envs/*.yaml as they are."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hub import LoopbackHub

ROOT = Path(__file__).resolve().parents[2]
REVISION = "step20-tokens82K"
# Each script of the branch: the package that it is for, and the environment that has it.
MAIN_PACKAGES = {
    "resolve_revisions": ("huggingface_hub", "geometry"),
    "extract_unembedding": ("huggingface_hub", "geometry"),
    "decompose_covariance": ("scipy", "geometry"),
    "transform_unembedding": ("scipy", "geometry"),
    "summarize_geometry": (None, "plots"),
    "plot_geometry": ("matplotlib", "plots"),
}


def snakemake(folder, environment, *options, **config):
    """Run the workflow in a folder; return its exit status and everything it said."""
    folder.mkdir(exist_ok=True)
    models = {"tiny": {"repo": "lab/tiny", "revisions": [REVISION]}}
    (folder / "config.yaml").write_text(yaml.safe_dump({"models": models, **config}))
    files = ["--snakefile", ROOT / "Snakefile", "--configfile", "config.yaml"]
    finished = subprocess.run(
        [sys.executable, "-m", "snakemake", *files, "--cores=2", "--use-conda", *options],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return finished.returncode, finished.stdout


@pytest.fixture(scope="module")
def witnesses(conda, tmp_path_factory):
    """Return {script: what its process noted} of a run from start to end, and its folder."""
    folder, notes = tmp_path_factory.mktemp("run"), tmp_path_factory.mktemp("notes")
    with LoopbackHub() as hub:
        hub.add("lab/tiny", REVISION, ROOT / "resources/tiny-olmo" / REVISION)
        environment = {**conda, "HF_ENDPOINT": hub.endpoint, "CONDA_TEST_WITNESS": str(notes)}
        status, output = snakemake(folder, environment, "--conda-create-envs-only")
        assert status == 0, output
        status, output = snakemake(folder, environment)
        assert status == 0, output
    assert "Without --use-conda" not in output
    noted = [json.loads(path.read_text()) for path in notes.iterdir()]
    # Snakemake runs a script from a copy called tmp….<its name>.
    return {Path(note["script"]).stem.split(".")[-1]: note for note in noted}, folder


@pytest.mark.parametrize("script", MAIN_PACKAGES)
def test_a_job_runs_inside_its_environment_with_the_package_of_that(witnesses, script):
    package, environment = MAIN_PACKAGES[script]
    notes, folder = witnesses
    prefix = Path(notes[script]["prefix"])
    assert prefix.is_relative_to(folder / ".snakemake/conda")
    specification = prefix.with_suffix(".yaml").read_bytes()
    assert specification == (ROOT / f"envs/{environment}.yaml").read_bytes()
    if package:
        assert Path(notes[script]["modules"][package]).is_relative_to(prefix)


def test_an_environment_that_cannot_be_made_is_named_with_what_is_missing(conda, tmp_path):
    with LoopbackHub() as hub:
        hub.add("lab/tiny", REVISION, ROOT / "resources/tiny-olmo" / REVISION)
        environment = {**conda, "HF_ENDPOINT": hub.endpoint}
        status, output = snakemake(tmp_path, environment, backend="cupy")
    assert status != 0
    assert "envs/cupy.yaml" in output
    assert "cuda-version" in output


def test_a_missing_conda_is_said_so(tmp_path):
    path = os.pathsep.join([str(Path(sys.executable).parent), "/usr/bin", "/bin"])
    status, output = snakemake(tmp_path, {**os.environ, "PATH": path})
    assert status != 0
    assert "Is conda installed and accessible?" in output
