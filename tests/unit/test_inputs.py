"""What the rules ask of a checkpoint, without Snakemake."""

import os
import shutil

import pytest
from checkpoints import matrix, random_matrix
from test_records import described, pin

from unembedding.errors import UserError
from unembedding.records.geometry import read_geometry
from unembedding.records.pins import read_pins, read_resolution, renewing
from unembedding.workflow import inputs
from unembedding.workflow.configuration import load


@pytest.fixture
def config(tmp_path):
    for name in ("step1", "step2"):
        matrix(tmp_path / "m" / name, random_matrix(1))
    return load({"models": {"m": {"path": str(tmp_path / "m"), "rows": 5}}, "precision": "float32"})


def test_a_model_that_is_not_configured_is_named_with_those_that_are(config):
    with pytest.raises(UserError, match="There is no model 'n' in the configuration, only m"):
        inputs.model_of(config, "n")


def test_the_request_of_a_local_model_has_the_revisions_that_are_there(config):
    request = inputs.request_of(config.models["m"])
    assert request["present"] == ["step1", "step2"]
    assert (request["revisions"], request["every"], request["repo"]) == (["*"], 1, None)


def test_the_files_of_a_checkpoint_are_its_weights_and_descriptions_that_can_be_read(config):
    folder = config.models["m"].path / "step1"
    (folder / "broken.json").symlink_to("nowhere")
    (folder / "notes.txt").write_text("")
    (folder / "optimizer.bin").write_text("")
    found = [file.name for file in inputs.checkpoint_files(config.models["m"], "step1")]
    assert found == ["config.json", "model.safetensors"]


def test_what_is_asked_of_a_checkpoint_is_all_that_its_numbers_depend_on(config):
    asked = inputs.asked(config, "m", "step1", "local")
    assert (asked.rows, asked.precision, asked.commit) == (5, "float32", "local")
    assert inputs.asked(config, "m", "step1", "local") == asked
    weights = config.models["m"].path / "step1/model.safetensors"
    state = weights.stat()
    matrix(weights.parent, random_matrix(2))
    os.utime(weights, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert inputs.asked(config, "m", "step1", "local").state != asked.state, (
        "the same size and date"
    )


def test_a_copy_of_a_checkpoint_is_asked_for_as_the_checkpoint_is(config, tmp_path):
    asked = inputs.asked(config, "m", "step1", "local")
    shutil.copytree(tmp_path / "m", tmp_path / "copy")
    shutil.rmtree(tmp_path / "m")
    (tmp_path / "copy").rename(tmp_path / "m")
    assert inputs.asked(config, "m", "step1", "local") == asked


def made(tmp_path):
    path = described(tmp_path, "step1", model="m")
    return path, vars(read_geometry(path).asked)


@pytest.mark.parametrize("recorded", [None, [], ["'something else'"]])
def test_a_result_that_snakemake_would_keep_and_nobody_asks_for_is_an_error(tmp_path, recorded):
    path, asked = made(tmp_path)
    other = {**asked, "rows": 7}
    with pytest.raises(UserError, match="m/step1 was made with rows None, and 7 is asked for"):
        inputs.require_made_as_asked([(path, other)], lambda _: recorded)


def test_a_result_that_snakemake_makes_again_is_none(tmp_path):
    path, asked = made(tmp_path)
    inputs.require_made_as_asked([(path, {**asked, "rows": 7})], lambda _: [repr(asked)])
    inputs.require_made_as_asked([(path, asked)], lambda _: None)
    inputs.require_made_as_asked([(path.with_name("absent"), asked)], lambda _: None)


def test_pins_stay_where_they_cannot_be_renewed_and_the_failure_is_counted(tmp_path):
    pinned = tmp_path / "revisions.tsv"
    with renewing(pinned, {"every": 1}) as (before, write):
        assert before == {}
        write({"step1": "c" * 40})
    assert (read_resolution(pinned).failures, read_resolution(pinned).done) == (0, True)
    with pytest.raises(ZeroDivisionError), renewing(pinned, {"every": 2}):
        raise ZeroDivisionError
    assert read_pins(pinned) == {"step1": "c" * 40}
    assert read_resolution(pinned).request == {"every": 1}
    assert (read_resolution(pinned).failures, read_resolution(pinned).done) == (1, False)
    with renewing(pinned, {"every": 2}) as (_, write):
        write({"step1": "c" * 40})
    assert (read_resolution(pinned).failures, read_resolution(pinned).done) == (1, True)


def test_pins_of_another_request_that_snakemake_would_keep_are_an_error(tmp_path):
    pinned = tmp_path / "revisions.tsv"
    with renewing(pinned, {"every": 1}) as (_, write):
        write({"step1": "c" * 40})
    inputs.require_resolved(pinned, {"every": 1}, lambda _: None)
    inputs.require_resolved(pinned, {"every": 2}, lambda _: [repr({"every": 1})])
    with pytest.raises(UserError, match="was made for every 1, and 2 is asked for"):
        inputs.require_resolved(pinned, {"every": 2}, lambda _: None)


def test_a_revision_of_the_comparison_that_does_not_exist_is_named_with_those_that_do(tmp_path):
    pin(tmp_path, step1="c" * 40)
    known = read_pins(tmp_path / "revisions.tsv")
    inputs.require_revision("step1", known, "m")
    with pytest.raises(UserError, match=r"'step2' is none of the revisions of m \(step1\)"):
        inputs.require_revision("step2", known, "m")
