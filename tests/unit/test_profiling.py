"""Profiles: the table, the flame graph, and their survival."""

import json
import os
import pstats
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from scipy.linalg import eigh

from unembedding.errors import UserError
from unembedding.stopwatch import Stopwatch
from unembedding.workflow.profiles import profiled
from unembedding.workflow.profiles.flamegraph import (
    MARGIN,
    WIDTH,
    call_tree,
    depth,
    flame_graph,
    flame_page,
)
from unembedding.workflow.profiles.stacks import module_of

SVG = "{http://www.w3.org/2000/svg}"
SCRIPTS = Path(__file__).parents[2] / "src"


def spin(seconds):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        sum(range(50))


def first_caller():
    spin(0.15)


def second_caller():
    spin(0.05)


@pytest.fixture
def profile(tmp_path):
    with profiled("stage", tmp_path / "profiles/stage", tmp_path / "log"):
        first_caller()
        second_caller()
    return tmp_path / "profiles"


def boxes(svg: Path) -> dict[str, list[tuple[float, float]]]:
    """Return {function: [(x, width) of each of its boxes]}."""
    found: dict[str, list[tuple[float, float]]] = {}
    for group in ElementTree.parse(svg).iter(f"{SVG}g"):
        name = group.findtext(f"{SVG}title", "").split(" (")[0].split(":")[0]
        box = group.find(f"{SVG}rect")
        found.setdefault(name, []).append((float(box.get("x")), float(box.get("width"))))
    return found


def test_the_four_files_are_written(profile):
    suffixes = {path.suffix for path in profile.iterdir()}
    assert suffixes == {".prof", ".txt", ".svg", ".html"}


def test_the_statistics_open_with_pstats(profile):
    functions = {name for _, _, name in pstats.Stats(str(profile / "stage.prof")).stats}
    assert {"first_caller", "second_caller", "spin"} <= functions


def test_the_table_is_sorted_by_cumulative_time(profile):
    rows = re.findall(
        r"^ *[\d/]+ +[\d.]+ +[\d.]+ +([\d.]+) ", (profile / "stage.txt").read_text(), re.M
    )
    seconds = [float(row) for row in rows]
    assert len(seconds) > 3
    assert seconds == sorted(seconds, reverse=True)


def test_two_callers_of_one_function_stay_apart_in_the_flame_graph(profile):
    found = boxes(profile / "stage.svg")
    assert len(found["spin"]) == 2
    widths = sorted(width for _, width in found["spin"])
    assert 1.8 < widths[1] / widths[0] < 4.5  # 0.15 s and 0.05 s, on a busy machine


def test_the_widths_of_the_flame_graph_add_up_to_the_total(profile):
    found = boxes(profile / "stage.svg")
    (_, total) = found["all"][0]
    assert total == WIDTH - 2 * MARGIN
    callers = sum(found[name][0][1] for name in ("first_caller", "second_caller"))
    assert callers == pytest.approx(total, rel=0.1)
    assert sum(width for _, width in found["spin"]) == pytest.approx(callers, rel=0.1)


def test_a_call_tree_keeps_paths_apart_and_adds_their_seconds():
    tree = call_tree({("a", "c"): 1.0, ("b", "c"): 2.0, ("a",): 0.5}, "all")
    assert tree.seconds == 3.5
    assert tree.callees["a"].seconds == 1.5
    assert tree.callees["a"].callees["c"].seconds == 1.0
    assert tree.callees["b"].callees["c"].seconds == 2.0


def test_names_in_a_flame_graph_are_escaped():
    ElementTree.fromstring(flame_graph({("<lambda> & co",): 1.0}, "a < b"))


def test_a_failed_stage_leaves_its_profile_beside_the_log(tmp_path):
    with (
        pytest.raises(ZeroDivisionError),
        profiled("stage", tmp_path / "out/stage", tmp_path / "stage.log"),
    ):
        first_caller()
        1 / 0  # noqa: B018
    assert "first_caller" in (tmp_path / "stage.log.txt").read_text()
    assert not (tmp_path / "out").exists()


def test_a_terminated_stage_leaves_its_profile_beside_the_log(tmp_path):
    code = f"""
import sys, time
sys.path.insert(0, {str(SCRIPTS)!r})
from pathlib import Path
from unembedding.workflow.profiles import profiled
def working():
    print("working", flush=True)
    time.sleep(60)
with profiled("stage", Path({str(tmp_path / "out")!r}), Path({str(tmp_path / "stage.log")!r})):
    working()
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "working\n"
    time.sleep(0.2)
    os.kill(process.pid, signal.SIGTERM)
    assert process.wait(timeout=20) == 128 + signal.SIGTERM
    process.stdout.close()
    assert "working" in (tmp_path / "stage.log.txt").read_text()
    assert "working" in (tmp_path / "stage.log.svg").read_text()


def test_the_signal_handler_is_put_back(profile):
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def alarmed():
    """What a client that bounds its own time may do: use the process's only timer."""
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 10)
    try:
        spin(0.2)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_what_takes_the_timer_is_in_the_flame_graph_all_the_same(tmp_path):
    with profiled("stage", tmp_path / "stage", tmp_path / "log"):
        alarmed()
    found = boxes(tmp_path / "stage.svg")
    assert found["spin"][0][1] == pytest.approx(found["all"][0][1], rel=0.1)


def decomposing(matrix):
    return eigh(matrix, driver="evd")  # LAPACK, which lets no other thread in meanwhile


def test_a_long_call_counts_where_it_was_made(tmp_path):
    matrix = np.random.default_rng(0).standard_normal((900, 900))
    with profiled("stage", tmp_path / "stage", tmp_path / "log"):
        decomposing(matrix + matrix.T)
        spin(0.01)
    found = boxes(tmp_path / "stage.svg")
    assert found["decomposing"][0][1] > 0.8 * found["all"][0][1]


def test_a_stopwatch_adds_up_the_seconds_of_a_step():
    clock = Stopwatch()
    for _ in range(2):
        with clock("sleep"):
            time.sleep(0.02)
    record = clock.record()
    assert record["steps"]["sleep"] >= 0.04
    assert record["seconds"] >= record["steps"]["sleep"]


def test_files_of_one_name_in_different_folders_stay_apart_in_the_table(tmp_path, monkeypatch):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("import time\ntime.sleep(0.02)\n")
    monkeypatch.syspath_prepend(tmp_path)
    with profiled("stage", tmp_path / "stage", tmp_path / "log"):
        import one  # noqa: F401
        import two  # noqa: F401
    table = (tmp_path / "stage.txt").read_text()
    assert " one/__init__.py:1(<module>)" in table
    assert " two/__init__.py:1(<module>)" in table


def test_no_row_of_the_table_took_longer_than_the_whole(profile):
    table = (profile / "stage.txt").read_text()
    total = float(re.search(r"in ([\d.]+) seconds", table)[1])
    rows = re.findall(r"^ *[\d/]+ +[\d.]+ +[\d.]+ +([\d.]+) ", table, re.MULTILINE)
    assert max(map(float, rows)) <= total + 0.001


def tree_in(page: str) -> dict:
    """Return the tree of calls that a page draws."""
    return json.loads(page.partition("const tree = ")[2].partition(";\n")[0])


def names_in(node: dict) -> list[str]:
    return [node["name"], *(n for child in node.get("children", []) for n in names_in(child))]


def test_the_page_holds_every_path_of_calls_with_its_seconds():
    drawn = tree_in(flame_page({("a", "c"): 1.0, ("b", "c"): 2.0}, "extract"))
    assert drawn["value"] == 3.0
    paths = {c["name"]: (c["value"], c["children"][0]["value"]) for c in drawn["children"]}
    assert paths == {"a": (1.0, 1.0), "b": (2.0, 2.0)}


def test_the_page_needs_no_other_file_and_no_network():
    page = flame_page({("a",): 1.0}, "extract")
    assert not re.search(r"""(src|href)=|@import|url\(""", page.partition("<script>")[0])
    assert page.count("<script>") == 2
    assert len(page) < 100_000


def test_names_cannot_end_the_script_of_the_page():
    page = flame_page({("</script><b>",): 1.0}, "a < b")
    assert page.count("</script>") == 2
    assert tree_in(page)["children"][0]["name"] == "</script><b>"


def test_functions_are_named_with_their_whole_module(profile):
    names = names_in(tree_in((profile / "stage.html").read_text()))
    here = f"{Path(__file__).stem}:{spin.__code__.co_firstlineno}"
    assert any(name.startswith("spin (") and name.endswith(f"{here})") for name in names)
    assert module_of(json.__file__) == "json"
    assert module_of(np.linalg._linalg.__file__) == "numpy.linalg._linalg"
    assert module_of("/nowhere/one/two.py") == "one/two.py"


def test_what_is_too_thin_to_draw_does_not_make_the_picture_taller():
    thin = {("a",): 1.0, ("a", *"bcdefgh"): 1e-9}
    assert flame_graph(thin, "t").count("<rect") == 3  # the background, all, and a
    assert call_tree(thin, "all").seconds == pytest.approx(1.0)
    assert depth(call_tree(thin, "all"), 1e-6) == 1


def test_a_profile_that_cannot_be_written_is_an_error_in_plain_words(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(UserError, match=r"Could not write .*extract\.prof"),
        profiled("extract", tmp_path / "file" / "extract", tmp_path / "log"),
    ):
        pass
