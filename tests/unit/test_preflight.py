"""What a person is told before the jobs of a run start."""

import sys

import pytest

from unembedding.errors import UserError
from unembedding.workflow.preflight import notices, require_slurm

FILLED_IN = {"slurm_account": "lab", "slurm_partition": "long"}


def test_nothing_is_said_where_nothing_is_left_to_a_default():
    assert notices("slurm", True, FILLED_IN) == []
    assert notices("local", True, {}) == []


def test_without_conda_the_environment_is_named():
    (line,) = notices("local", False, {})
    assert sys.prefix in line


@pytest.mark.parametrize("missing", FILLED_IN)
@pytest.mark.parametrize("resources", [{}, {"slurm_account": "", "slurm_partition": ""}])
def test_what_is_not_filled_in_of_the_profile_is_named(missing, resources):
    (line,) = notices("slurm", True, {**FILLED_IN, missing: resources.get(missing)})
    assert line.startswith(f"{missing} is not filled in (profiles/slurm/config.yaml)")


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """Commands of a Slurm with one partition, and accounting or none."""

    def command(name, script):
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)

    monkeypatch.setenv("PATH", str(tmp_path))
    command("sbatch", "exit 1")
    command("sacct", "")
    command("sinfo", 'case "$*" in *--partition\\ nosuch) ;; *) echo cpu; esac')
    return command


def test_a_slurm_that_answers_is_let_work(slurm):
    require_slurm("cpu", asks_sacct=True)
    require_slurm(None, asks_sacct=False)


def test_accounting_that_answers_with_an_error_is_told_before_a_run_waits_for_it(slurm):
    slurm("sacct", "echo storage is disabled >&2\nexit 1")
    with pytest.raises(UserError, match=r"storage is disabled.*slurm-status-command: squeue"):
        require_slurm("cpu", asks_sacct=True)
    require_slurm("cpu", asks_sacct=False)


def test_a_partition_that_does_not_exist_is_told_with_those_that_do(slurm):
    with pytest.raises(UserError, match=r"no partition 'nosuch', only cpu"):
        require_slurm("nosuch", asks_sacct=False)


def test_a_machine_without_slurm_is_told_so(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="There is no `sbatch` here"):
        require_slurm("cpu", asks_sacct=True)
