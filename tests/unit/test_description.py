"""What is recorded of a checkpoint, and the summary over all."""

import csv
import io
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from matrices import with_spectrum, write_gamma

from unembedding.backends.numpy_backend import NumpyBackend
from unembedding.checkpoints.revisions import folder_name, format_revisions
from unembedding.covariance import decompose
from unembedding.errors import UserError
from unembedding.files import write_facts
from unembedding.plots import plot_model
from unembedding.records.geometry import describe, gather, summary
from unembedding.transform import transform
from unembedding.workflow.provenance import config_digest, made_with


def description(results, revision, step_seconds=0.5, seed=0, model="model", rows=None, asked=None):
    """Run the stages on a small matrix; return the paths of geometry.json and decomposition."""
    folder = results / model / folder_name(revision)
    folder.mkdir(parents=True)
    gamma = write_gamma(folder / "gamma", with_spectrum(90, np.geomspace(0.1, 1, 9), seed))
    timing = {"seconds": step_seconds, "steps": {}, "warnings": [], "made_with": {}, "job": {}}
    facts = decompose(gamma, folder / "decomposition", NumpyBackend(), "float64", rows)
    facts |= {"backend": "numpy", "device": "a processor", "reason": "numpy was asked for"}
    facts |= {"threads": 1, "cpus_allowed": 2, "blas": []}
    extract = {"repo": "lab/model", "revision": revision, "commit": "c" * 40, "vocabulary": 90}
    extract |= {"tensor": "lm_head.weight", "file": "model.safetensors", "tied": False}
    extract |= {"dtype": "F64", "bytes_fetched": 6480, "verified": False}
    extract |= {"sha256": facts["unembedding_sha256"]}
    transformed = transform(gamma, folder / "decomposition", folder / "causal", NumpyBackend())
    geometry = describe(
        model,
        revision,
        extract | timing | {"warnings": ["one, with a comma", "two"]},
        facts | timing,
        transformed | timing | {"warnings": ["two"]},
        asked,
    )
    write_facts(folder / "geometry.json", geometry)
    return folder / "geometry.json", folder / "decomposition"


def rows(text):
    return list(csv.DictReader(io.StringIO(text)))


def test_the_summary_has_one_row_per_checkpoint_in_the_order_given(tmp_path):
    names = ["main", "step20-tokens2B", "step3-tokens1B"]
    paths = [description(tmp_path / name, name)[0] for name in names]
    assert [row["revision"] for row in rows(summary(gather(paths)))] == names


def test_step_and_tokens_come_from_the_revision_and_are_empty_without(tmp_path):
    paths = [
        description(tmp_path / "a", "stage1-step1000-tokens5B")[0],
        description(tmp_path / "b", "main")[0],
    ]
    first, second = rows(summary(gather(paths)))
    assert (first["stage"], first["step"], first["tokens"]) == ("1", "1000", "5000000000")
    assert (second["stage"], second["step"], second["tokens"]) == ("", "", "")


def test_warnings_of_all_stages_are_kept_each_once(tmp_path):
    path, _ = description(tmp_path / "a", "main")
    assert json.loads(path.read_text())["warnings"] == ["one, with a comma", "two"]
    assert rows(summary(gather([path])))[0]["warnings"] == "one, with a comma; two"


def test_numbers_in_the_summary_are_those_of_the_description_to_the_last_digit(tmp_path):
    path, _ = description(tmp_path / "a", "main")
    geometry = json.loads(path.read_text())
    row = rows(summary(gather([path])))[0]
    for name in ("condition_number", "effective_rank", "whitening_residual"):
        assert float(row[name]) == geometry[name]


def test_a_damaged_description_is_named(tmp_path):
    (tmp_path / "geometry.json").write_text('{"model":')
    with pytest.raises(UserError, match=r"geometry\.json cannot be read"):
        gather([tmp_path / "geometry.json"])


@pytest.mark.parametrize(
    "revisions",
    [
        ["step0-tokens0B", "step10-tokens1B", "main"],
        ["main", "refs/pr/1"],
        ["stage1-step5-tokens1B", "stage2-step5-tokens1B"],
        [f"step{n}" for n in range(40)],
        *([f"step{n}" for n in range(count)] for count in range(1, 10)),
    ],
)
def test_plots_of_any_set_of_revisions_name_them_and_are_the_same_each_time(tmp_path, revisions):
    paths = [description(tmp_path / str(i), name) for i, name in enumerate(revisions)]
    names = ["spectrum", "effective_rank", "condition_number", "seconds"]
    drawn = []
    for attempt in ("first", "second"):
        targets = {name: tmp_path / attempt / f"{name}.svg" for name in names}
        plot_model("model", [p for p, _ in paths], [d for _, d in paths], targets)
        drawn.append({name: target.read_text() for name, target in targets.items()})
    assert drawn[0] == drawn[1]
    for name in names:
        assert "model: " in drawn[0][name]
    assert revisions[0] in drawn[0]["spectrum"]
    assert revisions[-1] in drawn[0]["spectrum"]


def results_of(folder, **revisions):
    """Results of a model whose revisions have the γ that their seeds make."""
    paths = [
        description(folder.parent, name, seed=seed, model=folder.name)[0]
        for name, seed in revisions.items()
    ]
    (folder / "revisions.tsv").write_text(format_revisions(dict.fromkeys(revisions, "c" * 40)))
    return paths


def test_a_duplicate_names_the_first_revision_with_the_same_bytes(tmp_path):
    paths = results_of(tmp_path / "m", step1=0, step2=1, step3=0, step4=0)
    found = [row["duplicate_of"] for row in rows(summary(gather(paths)))]
    assert found == ["", "", "m/step1", "m/step1"]


def test_duplicates_are_marked_in_the_plots(tmp_path):
    names = ["step1", "step2", "step3"]
    paths = results_of(tmp_path / "m", step1=0, step2=1, step3=0)
    targets = {name: tmp_path / f"{name}.svg" for name in ("spectrum", "effective_rank", "seconds")}
    plot_model("m", paths, [tmp_path / "m" / name / "decomposition" for name in names], targets)
    for name in ("spectrum", "seconds"):
        drawn = targets[name].read_text()
        assert "step1 (= step3)" in drawn and "step3 (= step1)" in drawn
        assert "step2 (" not in drawn
    assert "the same γ as another revision" in targets["effective_rank"].read_text()


def test_each_run_of_a_stage_is_a_line_of_its_own(tmp_path):
    names = ["stage1-step9-tokens1B", "stage2-ingredient1-step1-tokens1B"]
    names += ["stage2-ingredient1-step2-tokens2B", "stage2-ingredient2-step1-tokens1B"]
    paths = results_of(tmp_path / "m", **{name: seed for seed, name in enumerate(names)})
    target = tmp_path / "effective_rank.svg"
    decompositions = [path.parent / "decomposition" for path in paths]
    plot_model("m", paths, decompositions, {"effective_rank": target})
    for run in ("stage1", "stage2-ingredient1", "stage2-ingredient2"):
        assert f">{run}<" in target.read_text()


def exchanged(first, second):
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)


def test_a_plot_is_drawn_from_the_decompositions_that_were_described(tmp_path):
    paths = results_of(tmp_path / "m", step1=0, step2=1)
    decompositions = [path.parent / "decomposition" for path in paths]
    exchanged(*decompositions)
    with pytest.raises(UserError, match=r"step1/decomposition is not what m/step1 was described"):
        plot_model("m", paths, decompositions, {"seconds": tmp_path / "seconds.svg"})


@pytest.mark.parametrize("what", ["decomposition", "causal"])
def test_a_summary_is_not_made_of_a_description_of_another_file(tmp_path, what):
    paths = results_of(tmp_path / "m", step1=0, step2=1)
    for path in paths:
        (path.parent / what).rename(path.with_name(f"{what}.safetensors"))
    assert len(gather(paths)) == 2
    exchanged(*(path.with_name(f"{what}.safetensors") for path in paths))
    with pytest.raises(UserError, match=r"is not what m/step1 was described from"):
        gather(paths)


def test_a_summary_is_not_made_of_a_description_of_another_commit_than_is_pinned(tmp_path):
    paths = results_of(tmp_path / "m", step1=0, step2=1)
    pins = {"step1": "c" * 40, "step2": "d" * 40}
    (tmp_path / "m/revisions.tsv").write_text(format_revisions(pins))
    with pytest.raises(UserError, match=r"step2/geometry.json is of the commit c+, .* pins d+\."):
        gather(paths)


def test_facts_about_another_decomposition_are_refused():
    extract = {"revision": "step1", "sha256": "a"}
    decompose = {"unembedding_sha256": "a", "decomposition_sha256": "b"}
    with pytest.raises(UserError, match=r"decompose.json of m/step1 is about another decompo"):
        describe("m", "step1", extract, decompose, decompose | {"decomposition_sha256": "c"})


@pytest.mark.parametrize(
    "asked",
    [
        {"repo": "lab/other"},
        {"commit": "b" * 40},
        {"tensor": "other.weight"},
        {"precision": "float32"},
        {"rows": 80},
    ],
)
def test_a_description_of_what_is_not_asked_for_is_refused(tmp_path, asked):
    [(key, value)] = asked.items()
    told = f"^model/step1 was made with {key} .*, and {value!r} is asked for"
    with pytest.raises(UserError, match=told):
        description(tmp_path, "step1", asked=asked)


def test_a_description_of_some_rows_is_refused_where_all_are_asked_for(tmp_path):
    description(tmp_path, "step1", rows=80, asked={"rows": 80})
    with pytest.raises(UserError, match="with rows 80, and 90 is asked for"):
        description(tmp_path, "step2", rows=80, asked={"rows": None})


def test_names_are_shown_as_they_are_in_the_plots(tmp_path):
    names = ["step1-a$b_$", "_step2"]
    paths = results_of(tmp_path / "m$x$", **dict(zip(names, (0, 1), strict=True)))
    target = tmp_path / "spectrum.svg"
    plot_model("m$x$", paths, [p.parent / "decomposition" for p in paths], {"spectrum": target})
    assert all(name in target.read_text() for name in [*names, "m$x$: eigenvalues"])


def test_the_summary_is_rebuilt_from_the_results_alone(tmp_path):
    written = results_of(tmp_path / "a", step20=0, main=1) + results_of(tmp_path / "b", step3=2)
    command = [sys.executable, "-m", "unembedding.records.geometry", str(tmp_path)]
    scripts = Path(__file__).parents[2] / "src"
    done = subprocess.run(command, env={"PYTHONPATH": str(scripts)}, capture_output=True, text=True)
    assert done.stdout == summary(gather(written)), done.stderr


def test_stages_of_different_matrices_are_not_described_together():
    stage = {"revision": "main", "unembedding_sha256": "a", "sha256": "b", "warnings": []}
    with pytest.raises(UserError, match="m/main are not of the same matrix"):
        describe("m", "main", stage, stage, stage)


def test_facts_of_another_revision_are_not_described():
    stage = {"revision": "step1", "unembedding_sha256": "a", "sha256": "a", "warnings": []}
    with pytest.raises(UserError, match="m/step2 says that it is 'step1'"):
        describe("m", "step2", stage, stage, stage)


def test_a_description_in_the_folder_of_another_checkpoint_is_named(tmp_path):
    one, other = results_of(tmp_path / "m", step1=0, step2=1)
    shutil.copy(one, other)
    with pytest.raises(UserError, match=f"{other} describes another checkpoint, m/step1"):
        gather([one, other])


def test_made_with_tells_versions_code_and_configuration():
    made = made_with("0123", {"b": 1, "a": {"path": "x"}})
    assert made["packages"]["numpy"] == np.__version__
    assert made["code"] == "0123"
    assert made["config"] == config_digest({"a": {"path": "x"}, "b": 1})
    assert made["config"] != config_digest({"a": {"path": "y"}, "b": 1})
