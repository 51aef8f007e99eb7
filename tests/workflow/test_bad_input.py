"""Each mistake ends in a message that a person can act on, and no result that could be believed."""

import csv
import json
import re
from types import SimpleNamespace

import pytest
import torch
from checkpoints import by_hand, matrix, random_matrix
from running import snakemake

SCREEN = 60  # lines, of which Snakemake's own about the job take half
MODEL = {"path": "models/good"}
ODD = {"some.matrix": random_matrix(6, 64, 8), "some.vector": torch.zeros(8)}

# Configuration, and what the message has to say.
CONFIGURATIONS = {
    "unknown key": ({"models": {"m": MODEL}, "precison": "float32"}, ["precison", "'precision'"]),
    "unknown key of a model": ({"models": {"m": {**MODEL, "row": 3}}}, ["models.m.row", "'rows'"]),
    "unknown backend": ({"models": {"m": MODEL}, "backend": "jax"}, ["backend", "'cupy'", "'jax'"]),
    "repo and path": ({"models": {"m": {**MODEL, "repo": "a/b"}}}, ["models.m", "`path:`", "both"]),
    "neither": ({"models": {"m": {"rows": 3}}}, ["models.m", "`repo:`", "neither"]),
    "one folder": ({"models": {"OLMo": MODEL, "olmo": MODEL}}, ["'OLMo'", "'olmo'", "share"]),
    "no folder": ({"models": {"a/b": MODEL}}, ["a/b", "folder"]),
    "no models": ({"backend": "numpy"}, ["models", "missing"]),
}


@pytest.mark.parametrize("mistake", CONFIGURATIONS)
def test_a_wrong_configuration_is_told_before_any_job(tmp_path, mistake):
    config, said = CONFIGURATIONS[mistake]
    run = snakemake(tmp_path, config)
    assert run.code != 0
    assert all(words in run.output for words in said), run.output
    assert "Traceback" not in run.output
    assert len(run.output.splitlines()) < 20
    assert run.jobs == set()


def test_all_mistakes_are_told_at_once(tmp_path):
    models = {"m": {"rows": 0}, "n": {"path": "models/nowhere", "tokenizer": "none.json"}}
    config = {"models": models, "backend": "jax", "colour": "red"}
    output = snakemake(tmp_path, config).output
    absent = ("path: there is no folder models/nowhere", "tokenizer: there is no file none.json")
    mistakes = ("models.m", "backend", "colour", *(f"models.n.{what}" for what in absent))
    assert all(mistake in output for mistake in mistakes), output


@pytest.mark.parametrize("file", ["revisions.tsv", "local/geometry.json", "plots/spectrum.svg"])
def test_a_result_of_a_model_that_nobody_configured_is_refused_in_a_line(tmp_path, file):
    matrix(tmp_path / MODEL["path"], random_matrix(1))
    run = snakemake(tmp_path, {"models": {"good": MODEL}}, f"results/geometry/unasked/{file}")
    assert run.code != 0
    assert "\nThere is no model 'unasked' in the configuration, only good.\n" in run.output
    assert "Traceback" not in run.output
    assert len(run.output.splitlines()) < 25


# A damaged checkpoint by its builder, what the configuration adds, and what the message says.
def truncated(folder):
    matrix(folder, random_matrix(1, 64, 8))
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])


def not_finite(folder):
    gamma = random_matrix(1, 64, 8)
    gamma[3, 5], gamma[40, 0] = torch.nan, torch.inf
    matrix(folder, gamma)


def config_only(folder):
    by_hand(folder, {}, "weights.pt", model_type="olmo")
    (folder / "weights.pt").unlink()


def endless(folder):
    """A checkpoint whose index names a shard by a million letters."""
    by_hand(folder, ODD, "model-00001-of-00001.safetensors")
    index = {"weight_map": {"lm_head.weight": "x" * 10**6}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def of_shape(*shape):
    return lambda folder: matrix(folder, torch.randn(*shape))


CHECKPOINTS = {
    "no-revision": (
        lambda folder: matrix(folder / "step10", random_matrix(1)),
        {"revisions": ["step11"]},
        ["'step11': the nearest are step10"],
    ),
    "braces": (
        lambda folder: matrix(folder / "step{1}", random_matrix(1)),
        {},
        ["models/braces/step{1}", "braces"],
    ),
    "no-weights": (config_only, {}, ["no weights", "config.json"]),
    "vector": (of_shape(64), {}, ["'lm_head.weight'", "[64]", "matrix"]),
    "zero": (
        lambda folder: matrix(folder, torch.zeros(64, 8)),
        {},
        ["rank 0 of 8 (all 64 rows are equal to within rounding,", "`unembedding:`"],
    ),
    "flat": (of_shape(6, 8), {}, ["rank 5 of 8", "6 rows", "pseudo_inverse"]),
    "nan": (not_finite, {}, ["'lm_head.weight'", "2 values", "nan at row 3, column 5"]),
    "truncated": (truncated, {}, ["truncated", "model.safetensors", "1948"]),
    "endless": (endless, {}, ["'lm_head.weight' in 'xxx", "xxx', which is missing"]),
    "rows": (of_shape(64, 8), {"rows": 65}, ["`rows: 65`", "64 rows"]),
    "unknown": (lambda folder: by_hand(folder, ODD), {}, ["some.matrix  64 × 8", "`unembedding:`"]),
}


@pytest.fixture(scope="module")
def kept_going(tmp_path_factory):
    """One run of all of them beside a good model."""
    folder = tmp_path_factory.mktemp("bad")
    matrix(folder / "models/good", random_matrix(1))
    models = {"good": MODEL}
    for name, (build, adds, _) in CHECKPOINTS.items():
        build(folder / "models" / name)
        models[name] = {"path": f"models/{name}", **adds}
    run = snakemake(folder, {"models": models})
    return SimpleNamespace(folder=folder, run=run, results=folder / "results/geometry")


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_bad_checkpoint_is_explained_on_the_terminal_and_in_the_log(kept_going, name):
    said = CHECKPOINTS[name][2]
    log = "\n".join(
        f.read_text() for f in (kept_going.folder / f"logs/geometry/{name}").rglob("*.log")
    )
    assert all(words in kept_going.run.output for words in said), kept_going.run.output
    assert all(words in log for words in said), log


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_bad_checkpoint_leaves_no_result(kept_going, name):
    found = {path.name for path in (kept_going.results / name).rglob("*") if path.is_file()}
    assert not found & {"causal.safetensors", "geometry.json", "summary.csv", "spectrum.svg"}
    assert not [path for path in found if path.endswith(".tmp")]


def test_the_other_models_finish(kept_going):
    assert (kept_going.results / "good/local/geometry.json").exists()
    assert (kept_going.results / "good/plots/spectrum.svg").exists()


def test_the_exit_status_tells_of_the_failure(kept_going):
    assert kept_going.run.code != 0


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_the_end_of_the_run_names_what_is_absent_and_the_log_that_says_why(kept_going, name):
    absent = kept_going.run.output.partition("\nAbsent")[2]
    [log] = re.findall(rf"^  {name}(?:/\S+)?: (\S+)$", absent, re.MULTILINE)
    assert "Error: " in (kept_going.folder / log).read_text()


def test_the_summary_has_the_checkpoints_that_are_finished(kept_going):
    with (kept_going.results / "summary.csv").open() as file:
        assert [row["model"] for row in csv.DictReader(file)] == ["good"]


def test_nobody_sees_a_traceback(kept_going):
    assert "Traceback" not in kept_going.run.output
    assert not [log for log in kept_going.folder.rglob("*.log") if "Traceback" in log.read_text()]


def test_nobody_sees_all_of_a_name_of_a_million_letters(kept_going):
    log = kept_going.folder / "logs/geometry/endless/local/extract.log"
    assert all(len(text) < 10**5 for text in (kept_going.run.output, log.read_text()))


def test_nobody_hears_of_a_backup_that_there_never_was(kept_going):
    assert "backup" not in kept_going.run.output


def test_one_mistake_fits_on_a_screen(tmp_path):
    truncated(tmp_path / "models/bad")
    run = snakemake(tmp_path, {"models": {"bad": {"path": "models/bad"}}})
    after = run.output[run.output.index("Error: ") :]
    assert len(after.splitlines()) < SCREEN, after


def test_cupy_without_a_graphics_card_is_an_error_in_plain_words(workspace, config):
    target = "results/geometry/second/local/decomposition.safetensors"
    asked = {**config, "backend": "cupy"}
    run = snakemake(workspace, asked, target, CUDA_VISIBLE_DEVICES="")
    assert run.code != 0
    assert "Error: CuPy" in run.output
    assert "Traceback" not in run.output
    assert not (workspace / target).exists()


def test_a_bug_leaves_its_traceback_in_the_log_and_says_where(workspace, config, home):
    module = home / "src/unembedding/covariance.py"
    module.write_text(
        module.read_text().replace("    gamma = Tensor", "    1 / 0\n    gamma = Tensor", 1)
    )
    target = "results/geometry/second/local/decomposition.safetensors"
    run = snakemake(workspace, config, target, home=home)
    log = "logs/geometry/second/local/decompose.log"
    assert run.code != 0
    assert "ZeroDivisionError: division by zero" in run.output
    assert log in run.output
    traceback = (workspace / log).read_text()
    assert "Traceback" in traceback and "covariance.py" in traceback


def test_a_failed_import_is_in_the_log_too(workspace, config, home):
    module = home / "src/unembedding/covariance.py"
    module.write_text(module.read_text() + "import no_such_module\n")
    target = "results/geometry/second/local/decomposition.safetensors"
    run = snakemake(workspace, config, target, home=home)
    assert run.code != 0
    log = (workspace / "logs/geometry/second/local/decompose.log").read_text()
    assert "ModuleNotFoundError: No module named 'no_such_module'" in log
