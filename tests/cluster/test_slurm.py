"""The real workflow on a real Slurm, through profiles/slurm."""

import csv
import json
import os
import shutil

import pytest
from driver import STAGES, TINY, Workflow, slurm, wait_until

REVISIONS = ["step0-tokens0M", "step20-tokens82K"]
TENSORS = ("unembedding", "decomposition", "causal", "factors")


def tiny(**model):
    return {"tiny": {"path": str(TINY), "revisions": REVISIONS, **model}}


def geometry(workflow):
    return {
        name: json.loads(p.read_text()) for name, p in workflow.results("geometry.json").items()
    }


def tensors(workflow):
    return {
        (name, kind): path.read_bytes()
        for kind in TENSORS
        for name, path in workflow.results(f"{kind}.safetensors").items()
    }


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of two revisions from start to end."""
    workflow = Workflow(tmp_path_factory.mktemp("finished"), tiny())
    assert workflow.run() == 0, workflow.log
    return workflow


def test_slurm_ran_every_stage_of_a_revision_in_one_submission(finished):
    ran = [
        {described["jobs"][stage]["slurm_job"] for stage in STAGES}
        for described in geometry(finished).values()
    ]
    assert all(len(ids) == 1 for ids in ran)
    assert set.union(*ran) == set(finished.submitted())


def test_what_a_job_asked_for_stands_beside_what_it_was_given(finished):
    for described in geometry(finished).values():
        job = described["jobs"]["decompose"]
        assert job["asked"]["threads"] == 4
        assert job["given"]["mem_mb"] == job["asked"]["mem_mb"] == 1000
        asked = slurm("scontrol", "--oneliner", "show", "job", job["slurm_job"])
        assert "MinMemoryNode=1000M" in asked
        assert "NumCPUs=4" in asked
        # The node pretends to have four; a job that got all there is deserves no warning.
        short = job["given"]["cpus"] < min(4, os.cpu_count() or 4)
        warning = f"4 threads were asked for, and the job may use {job['given']['cpus']} CPUs"
        assert (warning in described["warnings"]) == short


def test_the_log_says_what_is_not_filled_in_and_where_jobs_run(finished):
    assert "slurm_account is not filled in (profiles/slurm/config.yaml)" in finished.log
    assert "slurm_partition is not filled in (profiles/slurm/config.yaml)" in finished.log
    assert "Without --use-conda every job runs in the environment of Snakemake" in finished.log


def test_a_driver_killed_in_the_middle_is_followed_by_one_that_finishes_with_the_same_bytes(
    finished, tmp_path
):
    workflow = Workflow(tmp_path, tiny())
    driver = workflow.start()
    wait_until(lambda: workflow.results("unembedding.safetensors"), driver=driver)
    workflow.kill(driver)
    assert workflow.run() == 0, workflow.log
    assert tensors(workflow) == tensors(finished)


def test_a_failing_job_names_its_log_and_does_not_stop_the_others(tmp_path):
    broken = shutil.copytree(TINY, tmp_path / "broken")
    weights = broken / REVISIONS[0] / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    workflow = Workflow(tmp_path / "run", tiny(path=str(broken)))
    assert workflow.run("--retries=0") != 0
    log = f"logs/geometry/tiny/{REVISIONS[0]}/extract.log"
    assert log in workflow.log
    assert "truncated" in (workflow.folder / log).read_text()
    assert list(workflow.results("geometry.json")) == REVISIONS[1:]
    assert f"tiny/{REVISIONS[0]}: {log}" in workflow.log.partition("Absent")[2]
    with (workflow.folder / "results/geometry/summary.csv").open() as file:
        assert [row["revision"] for row in csv.DictReader(file)] == REVISIONS[1:]


def test_a_job_over_its_memory_is_tried_again_with_more(tmp_path):
    workflow = Workflow(tmp_path, tiny(revisions=REVISIONS[:1]))
    rules = ("extract_unembedding", "decompose_covariance", "transform_unembedding")
    memory = [f"{rule}:mem_mb=100 if attempt == 1 else 1500" for rule in rules]
    assert workflow.run("--set-resources", *memory) == 0, workflow.log
    first, second = workflow.submitted()
    assert "MinMemoryNode=100M" in slurm("scontrol", "--oneliner", "show", "job", first)
    (described,) = geometry(workflow).values()
    for stage in STAGES:
        assert described["jobs"][stage]["slurm_job"] == second
        assert described["jobs"][stage]["given"]["mem_mb"] == 1500


def test_only_the_stages_of_a_gpu_backend_ask_for_a_gpu(tmp_path):
    workflow = Workflow(tmp_path, tiny(revisions=REVISIONS[:1]), backend="torch")
    rules = ("decompose_covariance", "transform_unembedding")
    partition = [f"{rule}:slurm_partition=gpu" for rule in rules]
    assert workflow.run("--set-resources", *partition) == 0, workflow.log
    (described,) = geometry(workflow).values()
    for stage, on_gpu in zip(STAGES, (False, True, True), strict=True):
        job = described["jobs"][stage]["slurm_job"]
        asked = slurm("scontrol", "--oneliner", "show", "job", job)
        assert ("TresPerJob=gres:gpu:1" in asked) == on_gpu
        assert f"Partition={'gpu' if on_gpu else 'cpu'}" in asked


def test_a_cluster_without_accounts_is_told_from_one_that_never_answers(tmp_path):
    workflow = Workflow(tmp_path, tiny())
    assert workflow.run("--slurm-status-command=sacct") != 0
    assert "Set `slurm-status-command: squeue`" in workflow.log
    assert not workflow.submitted()
