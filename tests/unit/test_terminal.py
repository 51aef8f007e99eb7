"""What a run says on the terminal."""

from test_records import described, pin, results_of

from unembedding.records.geometry import read_geometry
from unembedding.records.summary import write_summary
from unembedding.results import GeometryResults
from unembedding.workflow.terminal import MOST_ROWS, finished_line, is_noise, table


def test_a_finished_checkpoint_is_a_line_that_counts_those_of_its_model(tmp_path):
    path, _ = results_of(tmp_path, step1=0, step2=1)
    pin(tmp_path / "m", **dict.fromkeys(("step1", "step2", "step3"), "c" * 40))
    results = GeometryResults(tmp_path).model("m").revision("step1")
    line = finished_line(read_geometry(path), results, tmp_path / "m/revisions.tsv")
    assert line == "m/step1: 2 of 3, 1.5 s, condition number 10, effective rank 7.1"


def test_the_table_has_what_was_asked_for_and_no_empty_column(tmp_path):
    paths = results_of(tmp_path, step1=0, step2=0)
    results_of(tmp_path, "other", step1=1)
    write_summary(tmp_path / "summary.csv", [read_geometry(path) for path in paths], ["m"])
    head, first, second = table(tmp_path / "summary.csv")
    assert head.split("  ")[1] == "checkpoint" and "same γ as" in head
    assert first.split()[:3] == ["m/step1", "10", "7.11"]
    assert second.split()[4] == "m/step1"
    assert "warnings" in head and first.split()[-1] == "2"


def test_a_sweep_is_cut_to_a_screen(tmp_path):
    paths = [described(tmp_path, f"step{n}", model="m") for n in range(MOST_ROWS + 2)]
    write_summary(tmp_path / "summary.csv", [read_geometry(path) for path in paths], ["m"])
    lines = table(tmp_path / "summary.csv")
    assert len(lines) == MOST_ROWS + 2 and lines[-1] == "  … and 2 more"


def test_lines_that_tell_nothing_are_left_out_and_errors_never():
    assert is_noise("Execute 2 jobs...")
    assert not is_noise("Error in rule extract_unembedding:")
