"""A run in which a checkpoint failed gives summary and plots of the others, until it is mended."""

import csv
import shutil
from types import SimpleNamespace

import pytest
import torch
from checkpoints import matrix, random_matrix
from running import snakemake, succeed

EARLY, LATE, LOCAL = ("first", "step1-tokens2B"), ("first", "step20-tokens40B"), ("second", "local")
PLACE = "/".join(LATE)


def rows(folder):
    with (folder / "results/geometry/summary.csv").open() as file:
        return [(row["model"], row["revision"]) for row in csv.DictReader(file)]


def spoil(folder):
    gamma = random_matrix(2)
    gamma[3, 5] = torch.nan
    matrix(folder / "models" / PLACE, gamma)


@pytest.fixture(scope="module")
def left(finished, tmp_path_factory):
    """The finished run again, of which one checkpoint has become bad."""
    folder = tmp_path_factory.mktemp("left") / "workspace"
    shutil.copytree(finished.folder, folder)
    spoil(folder)
    return SimpleNamespace(folder=folder, run=snakemake(folder, finished.config))


def test_the_summary_has_a_row_for_each_checkpoint_that_is_finished_and_no_other(left):
    assert left.run.code != 0
    assert not (left.folder / f"results/geometry/{PLACE}/geometry.json").exists()
    assert rows(left.folder) == [EARLY, LOCAL]
    page = (left.folder / "results/geometry/summary.html").read_text()
    assert EARLY[1] in page and LATE[1] not in page


def test_the_plots_show_the_checkpoints_that_are_finished(left):
    plot = (left.folder / "results/geometry/first/plots/spectrum.svg").read_text()
    assert EARLY[1] in plot and LATE[1] not in plot


def test_the_end_of_the_run_names_what_is_absent_and_the_log_that_says_why(left):
    end = left.run.output.partition("Absent")[2].splitlines()
    assert f"  {PLACE}: logs/geometry/{PLACE}/decompose.log" in end


def test_once_the_checkpoint_is_mended_summary_and_plots_are_whole(left, tmp_path, config):
    folder = shutil.copytree(left.folder, tmp_path / "mended")
    matrix(folder / "models" / PLACE, random_matrix(2))
    succeed(folder, config)
    assert rows(folder) == [EARLY, LATE, LOCAL]
    assert LATE[1] in (folder / "results/geometry/first/plots/spectrum.svg").read_text()


def test_a_link_to_nowhere_costs_its_own_checkpoint_alone(workspace, config):
    weights = next((workspace / "models" / PLACE).glob("*.safetensors"))
    weights.unlink()
    weights.symlink_to("nowhere")
    run = snakemake(workspace, config, "--keep-going")
    assert run.code != 0
    assert rows(workspace) == [EARLY, LOCAL]


def test_a_revision_that_does_not_exist_is_an_error_each_time_and_costs_no_row(workspace, config):
    first = {**config["models"]["first"], "revisions": ["step*", "step9"]}
    mistaken = {"models": {**config["models"], "first": first}}
    for _ in range(2):
        run = snakemake(workspace, mistaken)
        assert run.code != 0 and "  first: logs/geometry/first/resolve_revisions.log" in run.output
        assert rows(workspace) == [EARLY, LATE, LOCAL]
    succeed(workspace, config)
    assert rows(workspace) == [EARLY, LATE, LOCAL]


def test_a_run_of_one_checkpoint_that_fails_leaves_no_row_of_it(workspace, config):
    spoil(workspace)
    target = f"results/geometry/{PLACE}/geometry.json"
    for _ in range(2):
        assert snakemake(workspace, config, target).code != 0
        assert rows(workspace) == [EARLY, LOCAL]


def test_a_run_in_which_no_checkpoint_is_finished_leaves_no_older_summary_or_plot(
    workspace, config
):
    config["models"]["second"]["unembedding"] = "no.such.tensor"
    only = {"models": {"second": config["models"]["second"]}}
    assert snakemake(workspace, only).code != 0
    results = workspace / "results/geometry"
    assert not (results / "summary.csv").exists()
    assert not (results / "summary.html").exists()
    assert not list((results / "second/plots").glob("*.svg"))
    assert snakemake(workspace, config).code != 0
    assert rows(workspace) == [EARLY, LATE]
    assert (results / "first/plots/spectrum.svg").exists()


def test_a_row_of_weights_that_were_replaced_since_goes_also_where_no_stage_began(
    workspace, config
):
    """The mistake in the revisions ends the run before anything is extracted."""
    spoil(workspace)
    first = {**config["models"]["first"], "revisions": ["step*", "step9"]}
    mistaken = {"models": {**config["models"], "first": first}}
    assert snakemake(workspace, mistaken).code != 0
    assert rows(workspace) == [EARLY, LOCAL]
    plot = workspace / "results/geometry/first/plots/spectrum.svg"
    assert EARLY[1] in plot.read_text() and LATE[1] not in plot.read_text()


def test_what_such_a_run_left_out_is_there_again_once_it_is_asked_for_again(workspace, config):
    first = {**config["models"]["first"], "revisions": ["step*", "step9"]}
    mistaken = {"models": {**config["models"], "first": first}, "precision": "float32"}
    assert snakemake(workspace, mistaken).code != 0
    assert rows(workspace) == [LOCAL]
    run = succeed(workspace, config)
    assert rows(workspace) == [EARLY, LATE, LOCAL]
    assert not any("first/" in job for job in run.jobs)
    plot = (workspace / "results/geometry/first/plots/spectrum.svg").read_text()
    assert EARLY[1] in plot and LATE[1] in plot


def test_a_summary_made_of_a_part_is_made_again_though_nothing_of_it_changed(workspace, config):
    first = {**config["models"]["first"], "revisions": ["step*", "step9"]}
    second = {**config["models"]["second"], "rows": 32}
    mistaken = {"models": {"first": first, "second": second}}
    assert snakemake(workspace, mistaken, "--keep-going").code != 0
    succeed(workspace, config)
    assert rows(workspace) == [EARLY, LATE, LOCAL]


def test_a_model_that_was_never_resolved_is_not_forgotten_by_the_target_summary(workspace, config):
    """Its revisions.tsv, which a mistake has kept from being made, is no input that is there."""
    results = workspace / "results/geometry"
    shutil.rmtree(results / "first")
    (results / "summary.csv").unlink()
    first = {**config["models"]["first"], "revisions": ["step9"]}
    mistaken = {"models": {**config["models"], "first": first}}
    assert snakemake(workspace, mistaken).code != 0
    assert rows(workspace) == [LOCAL]
    (results / "first/.resolution.json").unlink()
    assert snakemake(workspace, mistaken, "results/geometry/summary.csv").code != 0
    succeed(workspace, config, "results/geometry/summary.csv")
    assert rows(workspace) == [EARLY, LATE, LOCAL]
