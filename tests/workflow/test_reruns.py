"""What changed is made again, with all that depends on it, and nothing else."""

import csv
import shutil
from types import SimpleNamespace

import pytest
from checkpoints import matrix, random_matrix
from running import snakemake, succeed

SUMMARY = "summarize_geometry"
STAGES = ("extract_unembedding", "decompose_covariance", "transform_unembedding")
PLACES = ("first/step1-tokens2B", "first/step20-tokens40B", "second/local")
PLOTS = {"plot_geometry first", "plot_geometry second"}


def stages(place, first=0):
    """The jobs of one revision, from a stage on."""
    return {f"{stage} {place}" for stage in STAGES[first:]}


def from_stage(first):
    """What runs when a stage of every revision has to be done again."""
    return set().union(*(stages(place, first) for place in PLACES)) | PLOTS | {SUMMARY}


def would_run(folder, config, **options):
    return succeed(folder, config, "--dry-run", **options).jobs


def test_nothing_changed_nothing_runs(workspace, config):
    assert would_run(workspace, config) == set()


@pytest.fixture(scope="module")
def extended(finished, tmp_path_factory):
    """The finished run, then again with a model more, and a revision exchanged for another."""
    folder = tmp_path_factory.mktemp("extended") / "workspace"
    shutil.copytree(finished.folder, folder)
    matrix(folder / "models/first/step300-tokens600B", random_matrix(31))
    matrix(folder / "models/third", random_matrix(30))
    models = {
        "first": {"path": "models/first", "revisions": ["step20-tokens40B", "step300-*"]},
        "second": {"path": "models/second"},
        "third": {"path": "models/third"},
    }
    return SimpleNamespace(folder=folder, run=succeed(folder, {"models": models}))


def test_a_model_added_to_the_configuration_runs_alone(extended):
    added = stages("third/local") | {"resolve_revisions third", "plot_geometry third"}
    assert added <= extended.run.jobs
    assert not [job for job in extended.run.jobs if "second" in job]


def test_a_revision_added_to_the_configuration_runs_alone(extended):
    mine = {job for job in extended.run.jobs if " first" in job}
    added = stages("first/step300-tokens600B")
    assert mine == added | {"resolve_revisions first", "plot_geometry first"}


def test_the_summary_holds_what_the_configuration_asks_for(extended):
    with (extended.folder / "results/geometry/summary.csv").open() as file:
        rows = [(row["model"], row["revision"]) for row in csv.DictReader(file)]
    first = [("first", "step20-tokens40B"), ("first", "step300-tokens600B")]
    assert rows == [*first, ("second", "local"), ("third", "local")]


def test_a_folder_added_is_noticed_where_all_revisions_are_asked_for(workspace, config):
    matrix(workspace / "models/first/step300-tokens600B", random_matrix(31))
    assert would_run(workspace, config) >= {"resolve_revisions first"}
    assert not would_run(workspace, config) & {f"{stage} {PLACES[0]}" for stage in STAGES}


def test_another_precision_decomposes_again(workspace, config):
    assert would_run(workspace, {**config, "precision": "float32"}) == from_stage(1)


def test_another_answer_to_rank_deficiency_transforms_again(workspace, config):
    changed = {**config, "on_rank_deficient": "pseudo_inverse"}
    assert would_run(workspace, changed) == from_stage(2)


def test_without_snakemakes_record_of_the_results_a_changed_configuration_is_told(
    workspace, config
):
    shutil.rmtree(workspace / ".snakemake")
    assert would_run(workspace, config) == set()
    config["models"]["second"]["rows"] = 50
    run = snakemake(workspace, config)
    assert run.code != 0
    assert (
        "second/local was made with rows None, and 50 is asked for, and .snakemake/" in run.output
    )
    assert "Traceback" not in run.output
    assert run.jobs == set()
    shutil.rmtree(workspace / "results/geometry/second/local")
    expected = stages("second/local") | {"plot_geometry second", SUMMARY}
    assert would_run(workspace, config) == expected


def test_other_rows_decompose_that_model_again(workspace, config):
    config["models"]["second"]["rows"] = 50
    expected = stages("second/local", 1) | {"plot_geometry second", SUMMARY}
    assert would_run(workspace, config) == expected


def test_a_helper_module_that_changed_makes_its_results_again(workspace, config, home):
    assert would_run(workspace, config, home=home) == set()
    with (home / "src/unembedding/transform.py").open("a") as file:
        file.write("# changed\n")
    assert would_run(workspace, config, home=home) == from_stage(2)


def test_weights_that_changed_are_extracted_again(workspace, config):
    matrix(workspace / "models/first/step1-tokens2B", random_matrix(99))
    expected = stages("first/step1-tokens2B") | {"plot_geometry first", SUMMARY}
    assert would_run(workspace, config) == expected


def test_a_result_that_was_deleted_is_made_again(workspace, config):
    (workspace / "results/geometry/second/local/causal.safetensors").unlink()
    expected = stages("second/local", 2) | {"plot_geometry second", SUMMARY}
    assert would_run(workspace, config) == expected


def test_a_result_that_was_damaged_is_not_believed(workspace, config):
    damaged = workspace / "results/geometry/second/local/unembedding.safetensors"
    content = bytearray(damaged.read_bytes())
    content[-1] ^= 1
    damaged.write_bytes(content)
    run = snakemake(workspace, config)
    assert run.code != 0
    assert "second/local/unembedding.safetensors is damaged" in run.output


def test_the_unembedding_goes_once_it_is_used_where_it_is_not_to_be_kept(tmp_path):
    matrix(tmp_path / "models/only", random_matrix(1))
    config = {"models": {"only": {"path": "models/only"}}, "keep_unembedding": False}
    target = "results/geometry/only/local/geometry.json"
    succeed(tmp_path, config, target)
    kept = {path.name for path in (tmp_path / target).parent.glob("*.safetensors")}
    assert kept == {f"{name}.safetensors" for name in ("decomposition", "causal", "factors")}
    assert succeed(tmp_path, config, target).jobs == set()
