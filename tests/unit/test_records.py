"""What is recorded of a checkpoint, and the summary over all."""

import csv
import io
import json
import re
import shutil
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from matrices import with_spectrum, write_gamma

from unembedding.backends.numpy_backend import NumpyBackend
from unembedding.checkpoints.revisions import format_revisions
from unembedding.covariance import decompose
from unembedding.errors import UserError
from unembedding.files import write_json
from unembedding.plots import plot_model
from unembedding.records.geometry import describe, doubts, read_geometry, reproducibility
from unembedding.records.serialization import read_record, table, write_record
from unembedding.records.stages import (
    Asked,
    Compute,
    Decomposed,
    Extracted,
    Extraction,
    Run,
    Transformed,
)
from unembedding.records.summary import Row, findings, read_all, summarize, write_summary
from unembedding.results import GeometryResults
from unembedding.transform import transform
from unembedding.workflow.provenance import config_digest, made_with

SOURCES = Path(__file__).parents[2] / "src"
RUN = Run(
    asked={},
    made_with={},
    job={"node": "here"},
    seconds=0.5,
    steps={},
    warnings=[],
    compute=Compute("numpy", "a processor", "numpy was asked for", 1, 2, []),
)


def stages(results, model, revision, seed=0, rows=None, commit="c" * 40):
    """Do the three stages of a small matrix; return what was asked, and what they recorded."""
    place = results.model(model).revision(revision)
    place.folder.mkdir(parents=True)
    asked = Asked(
        model,
        revision,
        "lab/model",
        commit,
        None,
        None,
        "float64",
        rows,
        "error",
        None,
        None,
        "estimate",
        ["g", "factors"],
    )
    gamma = with_spectrum(90, np.geomspace(0.1, 1, 9), seed)
    write_gamma(place.unembedding, gamma)
    decomposed = decompose(place.unembedding, place.decomposition, NumpyBackend(), "float64", rows)
    transformed = transform(
        place.unembedding,
        place.decomposition,
        place.causal,
        NumpyBackend(),
        factors=place.factors,
    )
    extracted = Extraction(
        repo="lab/model",
        revision=revision,
        commit=commit,
        tensor="lm_head.weight",
        file="model.safetensors",
        tied=False,
        dtype="F64",
        shape=[90, 9],
        digest=decomposed.unembedding_digest,
        verified=False,
        vocabulary=90,
        bytes_fetched=6480,
        warnings=["one, with a comma"],
    )

    def run(stage, *warnings):
        return replace(RUN, asked=asked.of(stage), warnings=list(warnings))

    return asked, (
        Extracted(extracted, run("extract", "two")),
        Decomposed(decomposed, run("decompose")),
        Transformed(transformed, run("transform", "two")),
    )


def described(folder, revision, seed=0, model="model", rows=None):
    """Return the geometry.json of a small matrix, with all files beside it."""
    results = GeometryResults(folder)
    asked, made = stages(results, model, revision, seed, rows)
    path = results.model(model).revision(revision).geometry
    write_record(path, describe(asked, *made))
    return path


def results_of(folder, model="m", **revisions):
    """Results of a model whose revisions have the γ that their seeds make."""
    paths = [described(folder, name, seed, model) for name, seed in revisions.items()]
    pin(folder / model, **dict.fromkeys(revisions, "c" * 40))
    return paths


def pin(folder, **commits):
    (folder / "revisions.tsv").write_text(format_revisions(commits))


def rows_of(paths):
    """The rows of summary.csv, as text."""
    text = table(Row, summarize([read_geometry(path) for path in paths], ["m", "model"]))
    return list(csv.DictReader(io.StringIO(text)))


def plot(folder, paths, *names):
    """Draw plots; return their texts by name."""
    targets = {name: folder / f"{name}.svg" for name in names}
    decompositions = [path.with_name("decomposition.safetensors") for path in paths]
    geometries = [read_geometry(path) for path in paths]
    plot_model(geometries[0].model, geometries, decompositions, targets)
    return {name: target.read_text() for name, target in targets.items()}


def test_the_summary_has_one_row_per_checkpoint_in_the_order_given(tmp_path):
    names = ["main", "step20-tokens2B", "step3-tokens1B"]
    paths = [described(tmp_path, name) for name in names]
    assert [row["revision"] for row in rows_of(paths)] == names


def test_step_and_tokens_come_from_the_revision_and_are_empty_without(tmp_path):
    paths = [described(tmp_path, "stage1-step1000-tokens5B"), described(tmp_path, "main")]
    first, second = rows_of(paths)
    assert (first["stage"], first["step"], first["tokens"]) == ("1", "1000", "5000000000")
    assert (second["stage"], second["step"], second["tokens"]) == ("", "", "")


def test_warnings_of_all_stages_are_kept_each_once(tmp_path):
    path = described(tmp_path, "main")
    assert json.loads(path.read_text())["warnings"] == ["one, with a comma", "two"]
    assert rows_of([path])[0]["warnings"] == "one, with a comma; two"


def test_numbers_in_the_summary_are_those_of_the_description_to_the_last_digit(tmp_path):
    path = described(tmp_path, "main")
    geometry = json.loads(path.read_text())
    row = rows_of([path])[0]
    for name in ("condition_number", "effective_rank", "whitening_residual"):
        assert float(row[name]) == geometry[name]


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
    paths = [described(tmp_path, name) for name in revisions]
    names = ["spectrum", "effective_rank", "condition_number", "seconds"]
    first, second = (plot(tmp_path / attempt, paths, *names) for attempt in ("first", "second"))
    assert first == second
    for name in names:
        assert "model: " in first[name]
    assert revisions[0] in first["spectrum"]
    assert revisions[-1] in first["spectrum"]


def test_a_duplicate_names_the_first_revision_with_the_same_bytes(tmp_path):
    paths = results_of(tmp_path, step1=0, step2=1, step3=0, step4=0)
    assert [row["duplicate_of"] for row in rows_of(paths)] == ["", "", "m/step1", "m/step1"]


def test_duplicates_are_marked_in_the_plots(tmp_path):
    paths = results_of(tmp_path, step1=0, step2=1, step3=0)
    drawn = plot(tmp_path, paths, "spectrum", "effective_rank", "seconds")
    for name in ("spectrum", "seconds"):
        assert "step1 (= step3)" in drawn[name] and "step3 (= step1)" in drawn[name]
        assert "step2 (" not in drawn[name]
    assert "the same γ as another revision" in drawn["effective_rank"]


def test_each_run_of_a_stage_is_a_line_of_its_own(tmp_path):
    names = ["stage1-step9-tokens1B", "stage2-ingredient1-step1-tokens1B"]
    names += ["stage2-ingredient1-step2-tokens2B", "stage2-ingredient2-step1-tokens1B"]
    paths = results_of(tmp_path, **{name: seed for seed, name in enumerate(names)})
    drawn = plot(tmp_path, paths, "effective_rank")["effective_rank"]
    for run in ("stage1", "stage2-ingredient1", "stage2-ingredient2"):
        assert f">{run}<" in drawn


def test_names_are_shown_as_they_are_in_the_plots(tmp_path):
    names = ["step1-a$b_$", "_step2"]
    paths = results_of(tmp_path, "m$x$", **dict(zip(names, (0, 1), strict=True)))
    drawn = plot(tmp_path, paths, "spectrum")["spectrum"]
    assert all(name in drawn for name in [*names, "m$x$: eigenvalues"])


def exchanged(first, second):
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)


@pytest.mark.parametrize("what", ["unembedding", "decomposition", "causal", "factors"])
def test_a_description_of_another_file_than_the_one_beside_it_is_refused(tmp_path, what):
    paths = results_of(tmp_path, step1=0, step2=1)
    exchanged(*(path.with_name(f"{what}.safetensors") for path in paths))
    with pytest.raises(UserError, match=r"is not what m/step1 was described from"):
        read_geometry(paths[0])


def test_a_description_of_another_commit_than_is_pinned_is_refused(tmp_path):
    _, path = results_of(tmp_path, step1=0, step2=1)
    pin(tmp_path / "m", step1="c" * 40, step2="d" * 40)
    with pytest.raises(UserError, match=r"step2/geometry.json is of the commit c+, .* pins d+\."):
        read_geometry(path)


def test_a_description_in_the_folder_of_another_checkpoint_is_named(tmp_path):
    one, other = results_of(tmp_path, step1=0, step2=1)
    shutil.copy(one, other)
    with pytest.raises(UserError, match=f"{other} describes another checkpoint, m/step1"):
        read_geometry(other)


def test_folders_of_two_models_that_were_exchanged_are_named(tmp_path):
    [path] = results_of(tmp_path, "m", step1=0)
    [other] = results_of(tmp_path, "n", step1=1)
    path.parents[1].rename(tmp_path / "x")
    other.parents[1].rename(tmp_path / "m")
    (tmp_path / "x").rename(tmp_path / "n")
    with pytest.raises(UserError, match=r"m/step1/geometry\.json describes another checkpoint, n/"):
        read_geometry(path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("repo", "lab/other"),
        ("commit", "b" * 40),
        ("tensor", "other.weight"),
        ("state", "0123"),
        ("precision", "float32"),
        ("rows", 80),
        ("on_rank_deficient", "pseudo_inverse"),
        ("step", "(1)"),
    ],
)
def test_a_checkpoint_made_with_what_is_not_asked_for_is_refused(tmp_path, key, value):
    path = described(tmp_path, "step1")
    asked = replace(read_geometry(path).asked, **{key: value})
    told = f"^model/step1 was made with {key} .*, and {re.escape(repr(value))} is asked for"
    with pytest.raises(UserError, match=told):
        read_geometry(path, asked)


def test_a_checkpoint_of_some_rows_is_refused_where_all_are_asked_for(tmp_path):
    path = described(tmp_path, "step1", rows=80)
    asked = read_geometry(path).asked
    read_geometry(path, asked)
    with pytest.raises(UserError, match="with rows 80, and None is asked for"):
        read_geometry(path, replace(asked, rows=None))


def test_what_a_job_of_an_earlier_run_wrote_is_not_described(tmp_path):
    asked, made = stages(GeometryResults(tmp_path), "m", "step1")
    with pytest.raises(UserError, match=r"precision .float64., and .float32. is asked for\. A job"):
        describe(replace(asked, precision="float32"), *made)


def test_stages_of_different_matrices_are_not_described_together(tmp_path):
    asked, (extract, *others) = stages(GeometryResults(tmp_path), "m", "main")
    other = replace(extract, facts=replace(extract.facts, digest="0" * 64))
    with pytest.raises(UserError, match="m/main are not of the same matrix"):
        describe(asked, other, *others)


def test_facts_about_another_decomposition_are_refused(tmp_path):
    asked, (extract, decompose, transform) = stages(GeometryResults(tmp_path), "m", "step1")
    other = replace(decompose, facts=replace(decompose.facts, decomposition_digest="c"))
    with pytest.raises(UserError, match=r"decompose.json of m/step1 is about another decompo"):
        describe(asked, extract, other, transform)


def test_facts_of_another_revision_are_not_described(tmp_path):
    asked, made = stages(GeometryResults(tmp_path), "m", "step1")
    with pytest.raises(UserError, match="m/step2 was made with revision 'step1', and 'step2'"):
        describe(replace(asked, revision="step2"), *made)


def test_one_bad_description_leaves_the_others(tmp_path):
    one, other = results_of(tmp_path, step1=0, step2=1)
    one.write_text('{"model":')
    geometries, mistakes = read_all([(one, None), (other, None)])
    assert [geometry.revision for geometry in geometries] == ["step2"]
    assert len(mistakes) == 1 and f"{one} cannot be read" in mistakes[0]


def test_rows_of_models_that_are_not_configured_are_kept_and_marked(tmp_path):
    [path] = results_of(tmp_path, "b", step1=0)
    results_of(tmp_path, "a", step1=1)
    warnings = write_summary(tmp_path / "summary.csv", [read_geometry(path)], ["b"])
    with (tmp_path / "summary.csv").open() as file:
        found = [(row["model"], row["asked"]) for row in csv.DictReader(file)]
    assert found == [("a", "false"), ("b", "true")]
    assert warnings == []


def rows_like(path, *changes):
    geometry = read_geometry(path)
    [row] = summarize([geometry], [geometry.model])
    return [replace(row, **{"warnings": [], **change}) for change in changes]


@pytest.mark.parametrize(
    ("names", "order"),
    [
        (["step1-tokens1B", "step20-tokens2B"], "revision, from early (pale) to late (dark)"),
        (["v1", "final"], "revision, in the order asked for"),
        (["main", "step20-tokens2B"], "revision"),
        (
            ["main", "step20-tokens2B", "step3-tokens1B"],
            "revision, from early (pale) to late (dark); those without a step are darkest",
        ),
    ],
)
def test_the_legend_of_the_spectra_tells_no_order_that_is_not_known(tmp_path, names, order):
    paths = [described(tmp_path, name, seed) for seed, name in enumerate(names)]
    drawn = plot(tmp_path, paths, "spectrum")["spectrum"]
    assert f">{order}<" in drawn


def test_the_findings_compare_the_first_step_with_the_last(tmp_path):
    early = {"step": 0, "revision": "step0", "effective_rank": 62.0, "condition_number": 2.66}
    late = {"step": 9, "revision": "step9", "effective_rank": 7.5, "condition_number": 3177.3}
    no_step = {"step": None, "revision": "main"}
    rows = rows_like(described(tmp_path, "step1"), late, early, no_step)
    first, *_ = findings([replace(row, model="olmo", width=64) for row in rows])
    assert first == (
        "olmo, from step0 to step9: the effective rank falls from 62 to 7.5 of 64, and the "
        "condition number rises from 2.66 to 3177."
    )


def test_the_findings_of_a_checkpoint_without_a_step_are_its_figures(tmp_path):
    figures = {"effective_rank": 12.34, "condition_number": None, "width": 16, "step": None}
    rows = rows_like(described(tmp_path, "main"), figures)
    assert (
        "main has the effective rank 12.3 of 16 and the condition number none." in findings(rows)[0]
    )


def test_the_findings_name_warnings_copies_and_the_largest_residual(tmp_path):
    poor = {"whitening_residual": 0.02, "warnings": ["w"], "revision": "step2"}
    rows = rows_like(
        described(tmp_path, "step1"),
        {"whitening_residual": 1e-7},
        poor,
        {"duplicate_of": "m/step1", "revision": "step3"},
        {"asked": False, "revision": "step4", "whitening_residual": 1.0},
    )
    *_, residual, warned, copies = findings(rows)
    assert residual.endswith("/step2, is 2.0e-02.")
    assert warned.startswith("1 with warnings:") and "/step2" in warned
    assert copies.startswith("1 with the γ of another one") and "/step3" in copies
    assert findings([]) == []


def test_what_cannot_be_read_of_other_models_costs_only_its_own_rows(tmp_path):
    [path] = results_of(tmp_path, "b", step1=0)
    results_of(tmp_path, "a", step1=1)
    (tmp_path / "a/revisions.tsv").write_text("nonsense")
    [warning] = write_summary(tmp_path / "summary.csv", [read_geometry(path)], ["b"])
    assert "a/revisions.tsv is damaged" in warning
    assert len((tmp_path / "summary.csv").read_text().splitlines()) == 2


def test_the_summary_is_rebuilt_from_the_results_alone(tmp_path):
    results_of(tmp_path, "a", step20=0, main=1)
    results_of(tmp_path, "b", step3=2)
    write_summary(tmp_path / "summary.csv", [], [])
    command = [sys.executable, "-m", "unembedding.records.summary", str(tmp_path)]
    done = subprocess.run(command, env={"PYTHONPATH": str(SOURCES)}, capture_output=True, text=True)
    assert done.stdout == (tmp_path / "summary.csv").read_text(), done.stderr
    assert len(done.stdout.splitlines()) == 4


def test_a_record_is_read_as_it_was_written(tmp_path):
    write_record(tmp_path / "f.json", RUN)
    assert read_record(tmp_path / "f.json", Run) == RUN


def test_every_flipped_byte_of_a_record_is_noticed_or_changes_nothing(tmp_path):
    path = tmp_path / "f.json"
    write_record(path, RUN)
    sound = path.read_bytes()
    for position in range(len(sound)):
        path.write_bytes(sound[:position] + bytes([sound[position] ^ 1]) + sound[position + 1 :])
        try:
            assert read_record(path, Run) == RUN  # white space, or another name of a character
        except UserError as error:
            assert str(path) in str(error)


def test_a_record_without_a_checksum_is_refused(tmp_path):
    write_json(tmp_path / "f.json", asdict(RUN))
    with pytest.raises(UserError, match=r"f\.json is damaged"):
        read_record(tmp_path / "f.json", Run)


def test_a_record_with_other_keys_than_it_should_have_is_refused(tmp_path):
    write_record(tmp_path / "f.json", RUN.compute)
    with pytest.raises(UserError, match=r"f\.json was written by another version.*seconds"):
        read_record(tmp_path / "f.json", Run)


@pytest.mark.parametrize("content", ["[" * 100_000, "", "\0"])
def test_a_record_that_is_no_json_is_named(tmp_path, content):
    path = tmp_path / "facts.json"
    path.write_text(content)
    with pytest.raises(UserError, match=f"{path} cannot be read .* Delete it and run again"):
        read_record(path, Run)


def test_made_with_tells_versions_code_and_configuration():
    made = made_with("0123", {"b": 1, "a": {"path": "x"}})
    assert made["packages"]["numpy"] == np.__version__
    assert made["code"] == "0123"
    assert made["config"] == config_digest({"a": {"path": "x"}, "b": 1})
    assert made["config"] != config_digest({"a": {"path": "y"}, "b": 1})


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, []),
        ({"whitening_residual": 0.004}, ["gᵀg / V is the identity to 4.0e-03 only"]),
        ({"mean_of_g": 0.01}, ["E[g] is zero to 1.0e-02 only"]),
        ({"reproducibility": 0.5}, ["g may differ by about 5.0e-01 between machines"]),
    ],
)
def test_a_poor_g_is_told_with_its_condition_number(tmp_path, changes, told):
    geometry = replace(read_geometry(described(tmp_path, "step1")), **changes)
    found = doubts(geometry)
    assert [line.partition(" (condition")[0].partition(":")[0] for line in found] == told
    assert all("(condition number 1.0e+01 in float64)" in line for line in found)


def test_reproducibility_grows_with_the_condition_number():
    assert reproducibility(1e6, "float32") == pytest.approx(0.119, rel=0.01)
    assert reproducibility(1e6, "float64") == pytest.approx(2.2e-10, rel=0.01)
    assert reproducibility(None, "float64") is None
