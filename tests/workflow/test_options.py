"""What the keys of the configuration do to the results."""

import json

import numpy as np
import pytest
import torch
from checkpoints import by_hand, matrix, random_matrix, values
from independent import assert_geometry, causal
from running import snakemake, succeed
from safetensors.numpy import load_file

LOCAL = "results/geometry/second/local"


@pytest.mark.parametrize(
    "place", ["first/step1-tokens2B", "first/step20-tokens40B", "second/local"]
)
def test_geometry_is_what_a_few_lines_of_numpy_say(finished, place):
    assert_geometry(finished.results / place, finished.gammas[place])


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """The first 60 rows of a matrix by `rows`, and a matrix of just these."""
    folder = tmp_path_factory.mktemp("rows")
    gamma = torch.cat([random_matrix(3, 60, 8), torch.zeros(4, 8)])
    matrix(folder / "models/padded", gamma)
    matrix(folder / "models/short", gamma[:60])
    models = {"cut": {"path": "models/padded", "rows": 60}, "short": {"path": "models/short"}}
    results = [f"results/geometry/{name}/local/geometry.json" for name in models]
    succeed(folder, {"models": models}, *results)
    return folder / "results/geometry"


@pytest.mark.parametrize("file", ["decomposition.safetensors", "causal.safetensors"])
def test_rows_give_exactly_what_the_first_rows_alone_give(rows, file):
    cut, short = (load_file(rows / name / "local" / file) for name in ("cut", "short"))
    assert cut.keys() == short.keys()
    assert all(cut[name].tobytes() == short[name].tobytes() for name in cut)


def test_rows_leave_the_unembedding_whole_and_both_counts_recorded(rows):
    results = rows / "cut/local"
    assert load_file(results / "unembedding.safetensors")["unembedding"].shape == (64, 8)
    recorded = json.loads((results / "geometry.json").read_text())
    assert (recorded["rows"], recorded["matrix_rows"]) == (60, 64)


def test_torch_and_numpy_agree(workspace, config):
    before = load_file(workspace / LOCAL / "decomposition.safetensors")
    succeed(workspace, {**config, "backend": "torch"}, f"{LOCAL}/geometry.json")
    after = load_file(workspace / LOCAL / "decomposition.safetensors")
    np.testing.assert_allclose(after["eigenvalues"], before["eigenvalues"], rtol=1e-12)
    same = np.abs(after["eigenvectors"].T @ before["eigenvectors"])
    np.testing.assert_allclose(same, np.eye(8), atol=1e-9)  # up to the sign of each column
    gamma = load_file(workspace / LOCAL / "unembedding.safetensors")["unembedding"]
    g = load_file(workspace / LOCAL / "causal.safetensors")["g"]
    np.testing.assert_allclose(g, causal(gamma), atol=1e-5)
    recorded = json.loads((workspace / LOCAL / "geometry.json").read_text())
    assert recorded["backend"] == "torch"


def test_a_rank_deficient_matrix_is_whitened_on_the_part_it_has(tmp_path):
    gamma = random_matrix(1, 64, 8)
    gamma[:, 5] = gamma[:, 2]
    matrix(tmp_path / "models/flat", gamma)
    config = {"models": {"flat": {"path": "models/flat"}}, "on_rank_deficient": "pseudo_inverse"}
    results = tmp_path / "results/geometry/flat/local"
    succeed(tmp_path, config, str(results.relative_to(tmp_path) / "geometry.json"))
    g = load_file(results / "causal.safetensors")["g"].astype(float)
    projector = np.eye(8)
    projector[np.ix_([2, 5], [2, 5])] = 0.5
    np.testing.assert_allclose(g.T @ g / 64, projector, atol=1e-5)
    assert json.loads((results / "geometry.json").read_text())["rank"] == 7


def test_the_tensor_may_be_named_where_the_layout_is_unknown(tmp_path):
    gamma = random_matrix(4)
    by_hand(tmp_path / "models/odd", {"my.head": gamma, "my.body": random_matrix(5)})
    config = {"models": {"odd": {"path": "models/odd", "unembedding": "my.head"}}}
    results = "results/geometry/odd/local"
    succeed(tmp_path, config, f"{results}/geometry.json")
    assert_geometry(tmp_path / results, values(gamma))


def test_until_a_stage_says_that_nothing_of_it_was_made_and_what_to_name(tmp_path):
    matrix(tmp_path / "models/only", random_matrix(1))
    config = {"models": {"only": {"path": "models/only"}}}
    run = snakemake(tmp_path, config, "--until", "extract_unembedding")
    assert "Nothing of extract_unembedding was made" in run.output
    assert "Name a target instead: `unembeddings`" in run.output
