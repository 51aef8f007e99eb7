"""What is recorded of a checkpoint, and the summary over all."""

import csv
import io
import json

import numpy as np
import pytest
from matrices import with_spectrum, write_gamma

from errors import UserError
from files import write_facts
from unembedding.backends.numpy_backend import NumpyBackend
from unembedding.decomposition import decompose
from unembedding.description import describe, gather, summary
from unembedding.plots import plot_model
from unembedding.transform import transform


def description(folder, revision, step_seconds=0.5):
    """Run the stages on a small matrix; return the paths of geometry.json and decomposition."""
    folder.mkdir()
    gamma = write_gamma(folder / "gamma", with_spectrum(90, np.geomspace(0.1, 1, 9)))
    timing = {"seconds": step_seconds, "steps": {}, "warnings": [], "made_with": {}, "job": {}}
    facts = decompose(gamma, folder / "decomposition", NumpyBackend(), "float64")
    facts |= {"backend": "numpy", "device": "a processor", "reason": "numpy was asked for"}
    facts |= {"threads": 1, "cpus_allowed": 2, "blas": []}
    extract = {"repo": "lab/model", "revision": revision, "commit": "c" * 40, "vocabulary": 90}
    extract |= {"tensor": "lm_head.weight", "file": "model.safetensors", "tied": False}
    extract |= {"dtype": "F64", "bytes_fetched": 6480, "verified": False}
    extract |= {"sha256": facts["unembedding_sha256"]}
    transformed = transform(gamma, folder / "decomposition", folder / "causal", NumpyBackend())
    geometry = describe(
        "model",
        extract | timing | {"warnings": ["one, with a comma", "two"]},
        facts | timing,
        transformed | timing | {"warnings": ["two"]},
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
