"""Another workflow takes this one in as a module."""

import shutil
import subprocess
import sys

import pytest
from running import REPOSITORY, environment

SNAKEFILE = """
module geometry:
    snakefile: "{repository}/Snakefile"
    config: {{"models": {{"only": {{"path": "models/only"}}}}}}
    {prefix}

use rule * from geometry as geometry_*

rule all:
    default_target: True
    input: rules.geometry_geometry.input
"""


def run(folder, *arguments):
    command = [sys.executable, "-m", "snakemake", "--cores", "2", "--nocolor", *arguments]
    return subprocess.run(
        command, cwd=folder, env=environment(folder), capture_output=True, text=True
    )


@pytest.mark.parametrize("prefix", ["", "there"])
def test_its_rules_run_in_a_workflow_of_another_folder(tmp_path, prefix):
    shutil.copytree(REPOSITORY / "resources/tiny-olmo/step0-tokens0M", tmp_path / "models/only")
    line = f'prefix: "{prefix}"' if prefix else ""
    (tmp_path / "Snakefile").write_text(SNAKEFILE.format(repository=REPOSITORY, prefix=line))
    first = run(tmp_path)
    assert first.returncode == 0, first.stdout + first.stderr
    results = tmp_path / prefix / "results/geometry"
    assert (results / "summary.csv").read_text().count("only,local,local") == 1
    assert (results / "only/local/causal.safetensors").is_file()
    second = run(tmp_path)
    assert "Nothing to be done" in second.stdout + second.stderr
