"""What a job asks for, from the width of its matrix."""

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from unembedding.results import RevisionResults
from unembedding.workflow.sizing import DEFAULT_WIDTH, matrix_width, memory_mb, runtime_minutes


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
