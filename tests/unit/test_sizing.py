"""What a job asks for, from the width of its matrix."""

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from unembedding.errors import GeometryError
from unembedding.results import RevisionResults
from unembedding.workflow.sizing import (
    DEFAULT_WIDTH,
    mamba_mb,
    matrix_width,
    memory_mb,
    require_memory,
    runtime_minutes,
)


def write(path, **tensors):
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors, path)


def test_the_width_stands_in_the_header_of_gamma(tmp_path):
    write(tmp_path / "step1/unembedding.safetensors", unembedding=np.zeros((5, 3)))
    write(tmp_path / "step0/decomposition.safetensors", eigenvalues=np.zeros(4))
    assert matrix_width(RevisionResults(tmp_path / "step1")) == 3


def test_another_revision_of_the_model_tells_the_width_before_gamma_is_there(tmp_path):
    write(tmp_path / "step0/decomposition.safetensors", eigenvalues=np.zeros(4))
    assert matrix_width(RevisionResults(tmp_path / "step1")) == 4


def test_a_width_whose_matrices_do_not_fit_is_refused():
    require_memory(4096, "float64", 2000)
    with pytest.raises(GeometryError, match=r"width of 16384 takes 6,644 MB .* use 6,000"):
        require_memory(16384, "float64", 6000)
    require_memory(16384, "float32", 6000)


@pytest.mark.parametrize("key", ["hidden_size", "d_model", "n_embd"])
def test_the_configuration_of_a_local_checkpoint_tells_the_width(tmp_path, key):
    (tmp_path / "config.json").write_text(json.dumps({key: 64}))
    assert matrix_width(RevisionResults(tmp_path / "results/step1"), tmp_path) == 64


@pytest.mark.parametrize("content", ["", "[]", "{", '{"hidden_size": "64"}'])
def test_what_cannot_be_read_leaves_the_default(tmp_path, content):
    step = tmp_path / "model/step1"
    step.mkdir(parents=True)
    (step / "config.json").write_text(content)
    (step / "unembedding.safetensors").write_text(content)
    assert matrix_width(RevisionResults(step), step) == DEFAULT_WIDTH


def test_what_is_asked_for_grows_with_the_width():
    assert memory_mb(64) == 1000
    assert memory_mb(4096) == 1000 + 6 * 128
    assert memory_mb(4096, on_gpu=True) > memory_mb(4096)
    assert runtime_minutes(8192) - 5 == 8 * (runtime_minutes(4096) - 5)


SMALL = {"path": None, "layers": 1, "width": 256, "state": 16, "vocabulary": 1024}


@pytest.mark.parametrize(
    ("layers", "width", "state", "vocabulary", "length", "measured"),
    [
        (1, 256, 16, 1024, 8192, 1358),
        (3, 256, 16, 1024, 8192, 1454),
        (1, 512, 4, 1024, 8192, 1114),
        (1, 512, 16, 50280, 4096, 1697),
        (1, 128, 16, 1024, 16384, 1365),
    ],
)
def test_a_mamba_asks_for_more_than_it_was_measured_to_take_but_not_for_much_more(
    layers, width, state, vocabulary, length, measured
):
    shape = dict(layers=layers, width=width, state=state, vocabulary=vocabulary)
    assert measured < mamba_mb({**SMALL, **shape}, length) < 2 * measured


def test_a_mamba_asks_for_more_for_a_longer_sequence_and_not_for_its_logits():
    one, two = (mamba_mb(SMALL, length) for length in (2**16, 2**17))
    assert two - 1000 == pytest.approx(2 * (one - 1000), rel=0.02)
    assert mamba_mb({**SMALL, "vocabulary": 50280}, 2**16) < one + 4 * 2**16 * 50280 / 2**20


def test_a_mamba_in_a_folder_asks_for_what_its_config_says_and_a_repositorys_is_guessed(tmp_path):
    config = {"num_hidden_layers": 1, "hidden_size": 256, "state_size": 16, "vocab_size": 1024}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert mamba_mb({**SMALL, "path": str(tmp_path)}, 512) == mamba_mb(SMALL, 512)
    # mamba-130m on lambda's 48502 bases: 4 arrays of 48502 × 1536 × 16 floats alone take 18 GB.
    guessed = mamba_mb({**SMALL, "path": "state-spaces/mamba-130m-hf"}, 48502)
    assert 20_000 < guessed < 30_000
