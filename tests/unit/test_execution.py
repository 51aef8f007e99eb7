"""What a person is told before the jobs of a run start."""

import sys

import pytest

from execution import ExecutionError, notices, require_accounting

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


def test_accounting_that_answers_with_an_error_is_told_before_a_run_waits_for_it(
    tmp_path, monkeypatch
):
    sacct = tmp_path / "sacct"
    sacct.write_text("#!/bin/sh\necho storage is disabled >&2\nexit 1\n")
    sacct.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ExecutionError, match=r"storage is disabled.*slurm-status-command: squeue"):
        require_accounting()
    sacct.write_text("#!/bin/sh\n")
    require_accounting()
