"""What a job was given, beside what it asked for."""

import json
import subprocess
import sys

import pytest

from unembedding import machine

HERE = (
    "import json; from unembedding.machine import allotment; print(json.dumps(allotment(1, 3000)))"
)


@pytest.mark.parametrize(("limit_mb", "warned"), [(2000, True), (4000, False)])
def test_a_limit_on_memory_is_recorded_and_warned_of_where_it_is_less_than_asked(limit_mb, warned):
    limited = f"ulimit -v {limit_mb * 1024} && exec {sys.executable} -c '{HERE}'"
    run = subprocess.run(
        ["bash", "-c", limited],
        env={"PYTHONPATH": str(machine.__file__).removesuffix("unembedding/machine.py")},
        capture_output=True,
        text=True,
        check=True,
    )
    given = json.loads(run.stdout)
    assert given["job"]["given"]["mem_mb"] <= limit_mb
    assert (f"3000 MB were asked for, and the job may use {limit_mb} MB" in given["warnings"]) == (
        warned
    )


def test_the_smallest_limit_of_the_groups_above_counts(tmp_path, monkeypatch):
    (tmp_path / "jobs/one").mkdir(parents=True)
    (tmp_path / "jobs/one/memory.max").write_text("max\n")
    (tmp_path / "jobs/memory.max").write_text(f"{500 * 2**20}\n")
    groups = tmp_path / "cgroup"
    groups.write_text("0::/jobs/one\n")
    monkeypatch.setattr(machine, "CGROUPS", tmp_path)
    monkeypatch.setattr(machine, "OWN_GROUPS", groups)
    assert machine.memory_limit_mb() == 500


def test_what_slurm_was_asked_for_counts_where_snakemake_lowered_the_threads(monkeypatch):
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "64")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setattr(machine, "cpus_allowed", lambda: 1)
    given = machine.allotment(1, None)
    assert given["job"]["slurm_job"] == "7"
    assert given["warnings"] == ["64 threads were asked for, and the job may use 1 CPUs"]
