"""The concepts branch from the configuration to its page, on two checkpoints of the small OLMo."""

import csv
import json
import os
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hub import LoopbackHub
from running import REPOSITORY, snakemake, succeed
from safetensors.numpy import load_file

OLMO = REPOSITORY / "resources/tiny-olmo"
REVISIONS = ["step0-tokens0M", "step2500-tokens10M"]
TARGET = ("concepts",)


def configured(path="olmo", **concepts):
    olmo = {"path": path, "revisions": REVISIONS}
    return {"models": {"olmo": olmo}, "concepts": {"minimum": 10, **concepts}}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("concepts")
    for name in REVISIONS:
        shutil.copytree(OLMO / name, folder / "olmo" / name)
    shutil.copy2(OLMO / "tokenizer.json", folder / "olmo")
    run = succeed(folder, configured(), *TARGET)
    results = folder / "results/concepts"
    return SimpleNamespace(folder=folder, run=run, results=results, model=results / "olmo")


@pytest.fixture
def workspace(made, tmp_path):
    """A copy of the finished run that a test may change."""
    return Path(shutil.copytree(made.folder, tmp_path / "workspace"))


def rows_of(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_each_row_of_g_has_its_token(made):
    lines = (made.folder / "results/geometry/olmo/tokens.tsv").read_text().splitlines()
    tokens = {int(i): json.loads(text) for i, text, _ in (line.split("\t") for line in lines[1:])}
    pieces = json.loads((OLMO / "tokenizer.json").read_text())["model"]["vocab"]
    assert tokens[pieces["Ġbird"]] == " bird"
    assert len(tokens) == len(load_file(g_of(made.folder, REVISIONS[0]))["g"])


def g_of(folder, revision):
    return folder / "results/geometry/olmo" / revision / "causal.safetensors"


def test_directions_are_those_of_the_formulas_on_the_rows_of_the_members(made):
    stored = load_file(made.model / "categories.safetensors")
    found = load_file(made.model / REVISIONS[1] / "directions.safetensors")
    g = load_file(g_of(made.folder, REVISIONS[1]))["g"].astype(float)
    for synset in range(0, len(found["directions"]), 5):
        members = stored["token_ids"][stored["offsets"][synset] : stored["offsets"][synset + 1]]
        rows = g[members]
        mean, x = rows.mean(axis=0), rows - rows.mean(axis=0)
        s, identity = x.T @ x / len(x), np.eye(64)
        mu = np.trace(s) / 64
        distance = ((s - mu * identity) ** 2).sum()
        error = (((x**2).sum(axis=1) ** 2).mean() - (s**2).sum()) / len(x)
        delta = min(error, distance) / distance
        v = np.linalg.pinv((1 - delta) * s + delta * mu * identity, hermitian=True) @ mean
        expected = mean @ v / (v @ v) * v
        np.testing.assert_allclose(
            found["directions"][synset], expected, atol=1e-4 * np.abs(expected).max()
        )


def test_concepts_emerge_where_shuffled_labels_stay_at_chance(made):
    early, late = rows_of(made.results / "summary.csv")
    assert (early["revision"], late["revision"], late["step"]) == (*REVISIONS, "2500")
    assert float(early["auc"]) == pytest.approx(0.521, abs=0.02)
    assert float(late["auc"]) == pytest.approx(0.891, abs=0.02)
    assert float(late["auc_null"]) == pytest.approx(0.5, abs=0.05)
    assert (late["synsets"], late["pos"], late["minimum"]) == ("42", "noun", "10")


def test_scores_have_a_row_for_each_synset(made):
    synsets = rows_of(made.model / "synsets.csv")
    scores = rows_of(made.model / REVISIONS[0] / "scores.csv")
    assert [row["name"] for row in scores] == [row["name"] for row in synsets]
    assert scores[0]["name"] == "entity.n.01"
    matrices = load_file(made.model / REVISIONS[0] / "matrices.safetensors")
    assert {m.shape for m in matrices.values()} == {(len(synsets), len(synsets))}


def test_the_last_checkpoint_agrees_with_itself(made):
    early, late = rows_of(made.model / "agreement.csv")
    assert float(late["alignment"]) == pytest.approx(1) == float(late["eigenspaces"])
    assert float(early["alignment"]) < 0.2


@pytest.mark.parametrize(
    "plot", ["scores", "matrices", "synsets", "projections", "planes", "agreement"]
)
def test_plots_are_drawn(made, plot):
    assert "olmo" in (made.model / f"plots/{plot}.svg").read_text()


def shown(page, fragment):
    """Return the text that a headless browser shows of a page, after its scripts have run."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        pytest.skip("there is no chromium")
    options = ("--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=20000")
    dumped = subprocess.run(
        [browser, *options, f"--user-data-dir={page.parent}/browser", "--dump-dom",
         f"file://{page}#{fragment}"],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    return dumped.stdout


def test_the_page_shows_a_synset_and_the_neighbours_of_a_token(made, tmp_path):
    page = Path(shutil.copy(made.results / "explorer.html", tmp_path))
    text = shown(page, "model=olmo&checkpoint=step2500-tokens10M&synset=person.n.01&token=bird")
    assert 'data-ready="true"' in text
    assert "person.n.01: 29 tokens, 6 of them held out" in text
    near = text.partition("Nearest to")[2].partition("</table>")[0]
    assert near.index("␣fish") < near.index("␣plant")
    assert "AUC of held-out members" in text and "<polyline" in text


def test_the_page_says_which_token_it_does_not_know(made, tmp_path):
    page = Path(shutil.copy(made.results / "explorer.html", tmp_path))
    assert "“qqqq” is not among the" in shown(page, "token=qqqq")


def test_the_page_needs_nothing_from_elsewhere(made):
    text = (made.results / "explorer.html").read_text()
    assert "src=" not in text and "http" not in text.replace("http://www.w3.org/2000/svg", "")


def test_a_second_run_has_nothing_to_do(made):
    assert succeed(made.folder, configured(), *TARGET).jobs == set()


def test_what_is_deleted_is_made_again(workspace):
    results = workspace / "results"
    gone = [results / f"concepts/olmo/{name}" for name in ("agreement.csv", "synsets.csv")]
    gone.append(results / "geometry/olmo/tokens.tsv")
    for path in gone:
        path.unlink()
    succeed(workspace, configured(), *TARGET)
    assert all(path.exists() for path in gone)


def test_other_settings_are_not_taken_for_done_where_the_record_is_gone(workspace):
    shutil.rmtree(workspace / ".snakemake")
    run = snakemake(workspace, configured(minimum=15), *TARGET)
    assert run.code == 1 and "was made with minimum 10, and 15 is asked for" in run.output


def test_a_tokenizer_replaced_under_an_older_date_is_noticed(workspace):
    path = workspace / "olmo/tokenizer.json"
    tokenizer = json.loads(path.read_text())
    tokenizer["model"]["vocab"]["Ġqqqq"] = tokenizer["model"]["vocab"].pop("Ġbird")
    path.write_text(json.dumps(tokenizer))
    os.utime(path, (1e9, 1e9))
    assert "list_tokens olmo" in succeed(workspace, configured(), *TARGET).jobs


def test_another_minimum_leaves_the_geometry_alone(workspace):
    run = succeed(workspace, configured(minimum=20), *TARGET)
    assert not {job for job in run.jobs if "extract" in job or "transform" in job}
    assert {row["minimum"] for row in rows_of(workspace / "results/concepts/summary.csv")} == {"20"}


def test_concepts_of_factors_are_those_of_g(workspace):
    before = rows_of(workspace / "results/concepts/summary.csv")
    g = load_file(g_of(workspace, REVISIONS[1]))["g"]
    small = {**configured(), "write": "factors", "keep_unembedding": False}
    succeed(workspace, small, *TARGET)
    place = g_of(workspace, REVISIONS[1]).parent
    assert not list(place.glob("[cu]*.safetensors"))
    for old, new in zip(before, rows_of(workspace / "results/concepts/summary.csv"), strict=True):
        for score in ("linear", "auc", "auc_words", "held_out_cosine", "separability"):
            assert float(new[score]) == pytest.approx(float(old[score]), abs=1e-4)
    assert succeed(workspace, small, *TARGET).jobs == set()
    succeed(workspace, configured(), *TARGET)
    np.testing.assert_array_equal(load_file(g_of(workspace, REVISIONS[1]))["g"], g)


def test_verbs_have_rows_of_their_own(workspace):
    succeed(workspace, configured(pos=["noun", "verb"]), *TARGET)
    rows = rows_of(workspace / "results/concepts/summary.csv")
    assert [row["pos"] for row in rows] == ["noun", "verb"] * 2


def test_other_weights_leave_no_concept_of_the_old_ones_behind_where_they_fail(workspace):
    weights = workspace / "olmo" / REVISIONS[1] / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    run = snakemake(workspace, configured(), *TARGET)
    assert run.code == 1
    place = workspace / "results/concepts/olmo" / REVISIONS[1]
    assert not list(place.glob("*"))
    rows = rows_of(workspace / "results/concepts/summary.csv")
    assert [row["revision"] for row in rows] == REVISIONS[:1]


def test_a_model_without_a_tokenizer_is_named_and_costs_only_its_own_rows(workspace):
    (workspace / "bare").mkdir()
    shutil.copy2(OLMO / REVISIONS[0] / "model.safetensors", workspace / "bare")
    shutil.copy2(OLMO / REVISIONS[0] / "config.json", workspace / "bare")
    config = configured()
    config["models"]["bare"] = {"path": "bare"}
    (workspace / "results/concepts/summary.csv").unlink()
    run = snakemake(workspace, config, *TARGET)
    assert run.code == 1
    assert "There is no tokenizer.json in bare" in run.output
    assert (workspace / "results/geometry/bare/local/geometry.json").exists()
    assert len(rows_of(workspace / "results/concepts/summary.csv")) == 2


def test_a_tokenizer_that_breaks_later_takes_its_own_rows_with_it(workspace):
    shutil.copytree(workspace / "olmo", workspace / "other")
    config = configured()
    config["models"]["other"] = {"path": "other", "revisions": REVISIONS[:1]}
    succeed(workspace, config, *TARGET)
    (workspace / "other/tokenizer.json").write_text("{}")
    run = snakemake(workspace, config, *TARGET)
    assert run.code == 1 and "is not a tokenizer" in run.output
    assert {row["model"] for row in rows_of(workspace / "results/concepts/summary.csv")} == {"olmo"}
    assert (workspace / "results/concepts/explorer.html").exists()
    shutil.copy2(OLMO / "tokenizer.json", workspace / "other")
    succeed(workspace, config, *TARGET)
    assert len(rows_of(workspace / "results/concepts/summary.csv")) == 3


def test_rows_of_models_that_are_no_longer_asked_for_are_kept_and_marked(workspace):
    shutil.copytree(workspace / "olmo", workspace / "other")
    config = configured()
    config["models"] = {"other": {"path": "other", "revisions": REVISIONS[:1]}}
    succeed(workspace, config, *TARGET)
    rows = rows_of(workspace / "results/concepts/summary.csv")
    assert [(r["model"], r["asked"]) for r in rows] == [("olmo", "false")] * 2 + [("other", "true")]


def test_tokens_of_another_tokenizer_are_refused_without_a_record(workspace):
    test = workspace / "olmo/tokenizer.json"
    test.write_text(test.read_text().replace('"Ġbird"', '"Ġqqqq"'))
    os.utime(test, (1e9, 1e9))
    shutil.rmtree(workspace / ".snakemake")
    run = snakemake(workspace, configured(), *TARGET)
    assert run.code == 1 and "tokens.tsv is not of olmo/tokenizer.json" in run.output
    (workspace / "results/geometry/olmo/tokens.tsv").unlink()
    succeed(workspace, configured(), *TARGET)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda folder: shutil.rmtree(folder), "concepts.wordnet: there is no folder"),
        (lambda folder: (folder / "index.noun.gz").unlink(), "There is no index.noun"),
        (lambda folder: cut(folder / "data.noun.gz"), "data.noun.gz cannot be read"),
    ],
)
def test_a_wordnet_that_cannot_be_used_is_named(workspace, spoil, said):
    shutil.copytree(REPOSITORY / "resources/wordnet", workspace / "wordnet")
    spoil(workspace / "wordnet")
    run = snakemake(workspace, configured(wordnet="wordnet"), *TARGET)
    assert run.code == 1 and said in run.output
    assert "Traceback" not in run.output


def cut(path):
    path.write_bytes(path.read_bytes()[:-1000])


def test_a_tokenizer_of_another_model_is_named(workspace):
    vocab = {f"Ġ{word}": i for i, word in enumerate(["dog", "cat", "fish"] * 3)}
    vocab |= {f"Ġ{name}": 5000 + i for i, name in enumerate(["cow", "horse", "bird", "ant", "bee"])}
    tokenizer = {"model": {"vocab": vocab}, "pre_tokenizer": {"type": "ByteLevel"}}
    (workspace / "other.json").write_text(json.dumps(tokenizer))
    config = configured(minimum=4)
    config["models"]["olmo"]["tokenizer"] = "other.json"
    run = snakemake(workspace, config, *TARGET)
    assert run.code == 1
    assert "The tokenizer has 5,005 tokens" in run.output and "only 1,024 rows" in run.output


def test_results_that_were_made_with_other_settings_are_refused_without_a_record(workspace):
    shutil.rmtree(workspace / ".snakemake")
    for table in (workspace / "results/concepts").glob("summary.csv"):
        table.unlink()
    run = snakemake(workspace, configured(seed=1), *TARGET, "--rerun-triggers", "mtime")
    assert run.code == 1
    assert "was made with seed 0, and 1 is asked for" in run.output


def test_the_tokenizer_of_a_repository_is_fetched_from_the_commit(tmp_path):
    with LoopbackHub() as hub:
        for revision in REVISIONS:
            files = {path.name: path for path in (OLMO / revision).iterdir()}
            hub.add("some/olmo", revision, files | {"tokenizer.json": OLMO / "tokenizer.json"})
        config = configured()
        config["models"]["olmo"] = {"repo": "some/olmo", "revisions": REVISIONS}
        succeed(tmp_path, config, "results/geometry/olmo/tokens.tsv", HF_ENDPOINT=hub.endpoint)
    assert '\t" bird"\t0' in (tmp_path / "results/geometry/olmo/tokens.tsv").read_text()


def test_a_repository_without_a_tokenizer_is_named(tmp_path):
    with LoopbackHub() as hub:
        hub.add("some/olmo", "main", OLMO / REVISIONS[0])
        config = {"models": {"olmo": {"repo": "some/olmo"}}}
        target = "results/geometry/olmo/tokens.tsv"
        run = snakemake(tmp_path, config, target, HF_ENDPOINT=hub.endpoint)
    assert run.code == 1
    assert "some/olmo@main has no tokenizer.json" in run.output
