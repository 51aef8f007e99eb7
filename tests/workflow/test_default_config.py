"""The default configuration runs offline, to the end, and keeps every promise of DESIGN.md."""

import csv
import json
import pstats
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest
from independent import assert_geometry
from running import REPOSITORY, environment, succeed
from safetensors import safe_open
from safetensors.numpy import load_file

CHECKPOINTS = REPOSITORY / "resources/tiny-olmo"
REVISIONS = [
    "step0-tokens0M", "step20-tokens82K", "step100-tokens410K", "step500-tokens2M",
    "step2500-tokens10M",
]  # fmt: skip
STAGES = ("extract", "decompose", "transform")


@pytest.fixture(scope="module")
def default(tmp_path_factory):
    folder = tmp_path_factory.mktemp("default")
    for name in ("config", "resources"):
        (folder / name).symlink_to(REPOSITORY / name)
    return SimpleNamespace(
        folder=folder, run=succeed(folder), results=folder / "results/geometry/tiny-olmo"
    )


def geometry(default, revision):
    return json.loads((default.results / revision / "geometry.json").read_text())


def test_it_ends_by_saying_where_the_results_are(default):
    assert "results/geometry/summary.csv" in default.run.output.partition("Done:")[2]


def test_revisions_are_pinned_in_the_order_of_training(default):
    lines = (default.results / "revisions.tsv").read_text().splitlines()
    assert lines == ["revision\tcommit", *(f"{name}\tlocal" for name in REVISIONS)]


@pytest.mark.parametrize("revision", REVISIONS)
def test_geometry_is_what_a_few_lines_of_numpy_say(default, revision):
    gamma = load_file(CHECKPOINTS / revision / "model.safetensors")["lm_head.weight"]
    assert_geometry(default.results / revision, gamma)


@pytest.mark.parametrize("revision", REVISIONS)
def test_unembedding_is_kept_bit_for_bit_with_its_provenance(default, revision):
    stored = load_file(CHECKPOINTS / revision / "model.safetensors")["lm_head.weight"]
    with safe_open(default.results / revision / "unembedding.safetensors", "np") as file:
        assert file.get_tensor("unembedding").tobytes() == stored.tobytes()
        metadata = file.metadata()
    expected = {"revision": revision, "commit": "local", "tensor": "lm_head.weight"}
    assert expected.items() <= metadata.items()
    assert metadata["repo"].endswith("resources/tiny-olmo")
    assert (metadata["file"], metadata["tied"]) == ("model.safetensors", "false")


def test_geometry_json_tells_what_was_found_and_by_what_means(default):
    found = geometry(default, REVISIONS[-1])
    assert (found["rows"], found["width"], found["rank"]) == (1024, 64, 64)
    assert found["condition_number"] >= 1
    assert 1 <= found["effective_rank"] <= 64
    assert found["whitening_residual"] <= 1e-5
    assert found["backend"] in ("numpy", "cupy")
    assert found["device"]
    assert set(found["seconds"]) == set(STAGES)
    assert found["bytes_fetched"] == 0
    assert found["warnings"] == []
    assert found["training"] == {"stage": 0, "step": 2500, "tokens": 10_000_000, "run": ""}


def test_blas_uses_the_threads_that_the_job_was_given(default):
    found = geometry(default, REVISIONS[0])
    assert found["threads"] == 2  # four, scaled down to --cores 2
    assert {library["threads"] for library in found["blas"]} == {2}


@pytest.mark.parametrize("stage", STAGES)
def test_every_stage_leaves_its_profile(default, stage):
    profiles = default.results / REVISIONS[0] / "profiles"
    assert pstats.Stats(str(profiles / f"{stage}.prof")).total_calls > 0
    assert "cumulative" in (profiles / f"{stage}.txt").read_text()
    assert (profiles / f"{stage}.svg").read_text().lstrip().startswith(("<svg", "<?xml"))


def test_summary_has_a_row_for_every_revision(default):
    with (default.folder / "results/geometry/summary.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["model"], row["revision"]) for row in rows] == [
        ("tiny-olmo", r) for r in REVISIONS
    ]
    assert [int(row["step"]) for row in rows] == [0, 20, 100, 500, 2500]
    assert all(float(row["whitening_residual"]) <= 1e-5 for row in rows)


@pytest.mark.parametrize("plot", ["spectrum", "effective_rank", "condition_number", "seconds"])
def test_plots_are_drawn_over_training(default, plot):
    assert "tiny-olmo" in (default.results / f"plots/{plot}.svg").read_text()


def test_a_second_run_has_nothing_to_do(default):
    run = succeed(default.folder)
    assert run.jobs == set()
    assert "Nothing to be done" in run.output


def test_nothing_half_written_lies_around(default):
    assert [path for path in default.folder.rglob("*.tmp")] == []


@pytest.fixture(scope="module")
def report(default):
    """Snakemake's report, made as a person may make it: without `--cores`."""
    run = subprocess.run(
        [sys.executable, "-m", "snakemake", "--snakefile", str(REPOSITORY / "Snakefile"),
         "--report", "report.html"],
        cwd=default.folder, env=environment(default.folder), capture_output=True, text=True,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert "<string>:" not in run.stderr, "docutils found fault with a caption"
    page = (default.folder / "report.html").read_text()

    def value(name):
        return json.loads(re.search(rf'^ *var {name} = ([{{"].*);$', page, re.MULTILINE)[1])

    return SimpleNamespace(page=page, results=value("results"), front=value("workflow_desc"))


def test_the_reports_front_page_says_what_was_found_and_shows_it(report):
    text = re.sub(r"\s+", " ", re.sub("<[^>]*>", "", report.front))
    assert (
        "tiny-olmo, from step0-tokens0M to step2500-tokens10M: the effective rank falls from 62 "
        "to 7.47 of 64, and the condition number rises from 2.66 to" in text
    )
    assert "A forward pass over" in text and "a call of parallel takes" in text
    assert "were eigh free" in text
    assert "held-out members of 42 noun synsets are told from other tokens" in text
    assert report.front.count("<svg") == 5  # spectrum, effective rank, scores, whole jobs, scans
    assert "<html" not in report.front and "<td" not in report.front


def test_each_result_of_the_report_has_a_title_and_a_caption_of_its_own(report):
    titles = [result["labels"]["result"] for result in report.results.values()]
    captions = [result["caption"] for result in report.results.values()]
    assert len(set(titles)) == len(titles) and not any("." in title for title in titles)
    assert all(captions) and len(set(captions)) == len(captions)


def test_all_that_is_in_the_report_opens_in_it(report):
    opened = {"text/html", "image/svg+xml"}
    assert {result["mime_type"] for result in report.results.values()} == opened
    assert {"summary.html", "eigh.html", "stages.html", "scan.html", "comparison.html"} <= {
        result["name"] for result in report.results.values()
    }


def test_the_report_says_of_the_machine_what_the_run_was_on(default, report):
    choice = json.loads((default.folder / "results/backends/choice.json").read_text())
    said = " ".join(result["caption"] for result in report.results.values())
    machine = choice["machine"]
    assert f"{choice['threads']} threads of {machine['cpu']} with {machine['cores']} cores" in (
        re.sub(r"\s+", " ", said)
    )
    assert not re.search(r"on \d+ cores", said)
