"""Names of revisions: what they say of training, which are chosen, and how they are kept."""

import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from unembedding.checkpoints.revisions import (
    TAKEN,
    by_step,
    folder_name,
    format_revisions,
    local_revisions,
    parse_progress,
    read_revisions,
    select_revisions,
)
from unembedding.errors import GeometryError
from unembedding.resolution import resolve_revisions

SOURCES = Path(__file__).parents[2] / "src"


@pytest.mark.parametrize(
    ("name", "run"),
    [
        ("step512", ""),
        ("step1000-tokens4B", ""),
        ("step-1000_tokens_2.5T", ""),
        ("stage1-step1000-tokens5B", "stage1"),
        ("stage2-ingredient3-step23852-tokens51B", "stage2-ingredient3"),
        ("seed3/step10", "seed3"),
        ("seed-1-step-10", "seed-1"),
        ("7/step100", "7"),
        ("epoch=3-step=400", ""),
        ("model--val_loss=2.34-step=1000-consumed_samples=32000", "model"),
        ("lr1e-4-step100", "lr1e-4"),
        ("lc-4k-to-32k-step-20000", "lc-4k-to-32k"),
    ],
)
def test_checkpoints_of_one_run_share_its_name(name, run):
    assert parse_progress(name).run == run


def told(name, pattern=None):
    progress = parse_progress(name, pattern)
    return progress and (progress.stage, progress.step, progress.tokens)


OLMO = [
    "main",
    "step10000-tokens44B",
    "step1000-tokens4B",
    "step2000-tokens9B",
    "step0-tokens0B",
    "step3000-tokens13B",
]
BY_STEP = [OLMO[4], OLMO[2], OLMO[3], OLMO[5], OLMO[1], "main"]


@pytest.mark.parametrize(
    ("name", "progress"),
    [
        ("step1000-tokens4B", (0, 1000, 4 * 10**9)),
        ("step0-tokens0B", (0, 0, 0)),
        ("step738020-tokens3094B", (0, 738020, 3094 * 10**9)),
        ("step100-tokens410K", (0, 100, 410_000)),
        ("step500-tokens2M", (0, 500, 2 * 10**6)),
        ("step500-tokens1.5T", (0, 500, 1_500_000_000_000)),
        ("step500-tokens4.1b", (0, 500, 4_100_000_000)),
        ("step500-tokens4096", (0, 500, 4096)),
        ("stage1-step1000-tokens5B", (1, 1000, 5 * 10**9)),
        ("stage2-ingredient1-step1000-tokens3B", (2, 1000, 3 * 10**9)),
        ("stage1_step1000_tokens5B", (1, 1000, 5 * 10**9)),
        ("step143000", (0, 143000, None)),
        ("step-1000", (0, 1000, None)),
        ("step_1000", (0, 1000, None)),
        ("global_step1000", (0, 1000, None)),
        ("seed-0/step1000-tokens4B", (0, 1000, 4 * 10**9)),
        ("step1000-tokens4B-unsharded", (0, 1000, 4 * 10**9)),
        ("checkpoint-500", (0, 500, None)),
        ("iter_0000100", (0, 100, None)),
        ("ckpt_100", (0, 100, None)),
        ("epoch-2", (0, 2, None)),
        ("step=400", (0, 400, None)),
        ("global_step400", (0, 400, None)),
        ("12000", (0, 12000, None)),
        ("step-10k", (0, 10_000, None)),
        ("100M", (0, 100_000_000, None)),
        ("10.49B", (0, 10_490_000_000, None)),
        ("chck_100M", (0, 100_000_000, None)),
        ("train_00220B", (0, 220 * 10**9, None)),
        ("tokens100M", (0, 100_000_000, 100_000_000)),
        ("100B-tokens", (0, 100 * 10**9, None)),
        ("10k-steps", (0, 10_000, None)),
        ("step-955k-token-2T", (0, 955_000, 2 * 10**12)),
        ("ep0-ba1000", (0, 1000, None)),
        ("epoch=3-step=400", (0, 400, None)),
        ("epoch_2_checkpoint_400", (0, 400, None)),
        ("model--val_loss=2.34-step=1000-consumed_samples=32000", (0, 1000, None)),
        ("phase2_checkpoint_213600", (2, 213_600, None)),
        ("iter-100-ckpt", (0, 100, None)),
        ("step=400.ckpt", (0, 400, None)),
    ],
)
def test_a_name_tells_how_far_training_had_come(name, progress):
    assert told(name) == progress


@pytest.mark.parametrize(
    "name",
    [
        *("main", "", "v1.0", "steps", "step", "footstep5", "refs/pr/1", "1" * 40, "step1.5"),
        *("0.5", "2024-01-01", "seed-1", "train_3", "step_1e4", "model_500", "checkpoint-best"),
    ],
)
def test_a_name_without_a_step_tells_nothing(name):
    assert parse_progress(name) is None


@settings(derandomize=True, max_examples=50)
@given(
    st.integers(1, 9), st.integers(0, 10**7), st.integers(0, 9999), st.sampled_from(["M", "B", "T"])
)
def test_a_name_is_read_as_it_was_written(stage, step, tokens, unit):
    name = f"stage{stage}-step{step}-tokens{tokens}{unit}"
    scale = {"M": 10**6, "B": 10**9, "T": 10**12}[unit]
    assert told(name) == (stage, step, tokens * scale)


def test_steps_are_ordered_as_numbers_by_stage_and_names_without_a_step_come_last():
    names = ["main", "step900", "stage2-step5", "step1000", "stage1-step70", "aside", "step0"]
    assert sorted(names, key=by_step) == [
        "step0",
        "step900",
        "step1000",
        "stage1-step70",
        "stage2-step5",
        "aside",
        "main",
    ]


def test_names_are_given_in_the_order_they_are_asked_for():
    asked = ["main", "step2000-tokens9B", "step0-tokens0B"]
    assert select_revisions(asked, OLMO) == asked


def test_a_pattern_gives_what_it_matches_in_order_of_step():
    assert select_revisions(["*"], OLMO) == BY_STEP
    assert select_revisions(["step?000-*"], OLMO) == BY_STEP[1:4]
    assert select_revisions(["step[13]000-*"], OLMO) == [BY_STEP[1], BY_STEP[3]]


def test_every_thins_what_a_pattern_matches_to_the_last_and_never_a_name():
    assert select_revisions(["step*"], OLMO, every=2) == BY_STEP[:5:2]
    assert select_revisions([*BY_STEP[:3], "step*"], OLMO, every=4) == [*BY_STEP[:3], BY_STEP[4]]
    assert select_revisions(["step*"], OLMO, every=3) == [BY_STEP[0], BY_STEP[3], BY_STEP[4]]
    assert select_revisions(["*"], OLMO, every=1000) == [BY_STEP[0], BY_STEP[4], "main"]


def test_every_goes_by_the_number_of_a_step_whatever_it_is_called():
    names = [f"checkpoint-{n}" for n in (500, 1000, 1500, 2000, 10_000)]
    assert select_revisions(["*"], names, every=2) == [names[0], names[2], names[4]]


def test_every_thins_within_each_run():
    names = [f"stage2-ingredient{i}-step{n}-tokens{n}B" for i in (1, 2, 3) for n in (1, 2, 3, 4)]
    kept = [name for name in names if "-step1-" in name or "-step4-" in name]
    assert sorted(select_revisions(["*"], names, every=3)) == sorted(kept)


def test_every_without_steps_is_an_error_that_a_pattern_of_ones_own_mends():
    names = ["kept.30", "kept.1", "kept.20"]
    with pytest.raises(GeometryError, match=r"needs a training step in the names.*kept\.1"):
        select_revisions(["*"], names, every=2, where="m")
    found = select_revisions(["*"], names, every=2, step=r"\.(\d+)")
    assert found == ["kept.1", "kept.30"]
    assert told("kept.20", r"\.(\d+)") == (0, 20, None)
    assert told("kept.20k", r"\.(\w+)") == (0, 20_000, None)
    assert told("kept.last", r"\.(\w+)") is None


@pytest.fixture
def warnings_of(caplog):
    """Returns what is said of a call."""

    def warnings(call, *arguments, **options):
        caplog.clear()
        call(*arguments, **options)
        return caplog.messages

    return warnings


def test_names_that_tell_no_step_are_said_to_be_in_order_of_name(warnings_of):
    names = ["kept.1", "kept.2", "kept.10", "kept.20"]
    (warning,) = warnings_of(select_revisions, ["*"], names, where="m")
    assert warning.startswith(
        "m: no training step is known in kept.1, kept.10, kept.2, …, so plots are in order of name"
    )
    assert warnings_of(select_revisions, ["*"], ["main", "step1"]) == []
    assert warnings_of(select_revisions, ["*"], ["main"]) == []
    assert warnings_of(select_revisions, ["*"], names, step=r"\.(\d+)") == []


def test_every_that_leaves_out_nothing_says_so(warnings_of):
    names = [f"step-{n}k-{n * 2}b" for n in (50, 100, 150, 200)]
    (warning,) = warnings_of(select_revisions, ["*"], names, every=2, where="m")
    assert "m: `every: 2` left out nothing, since step-50k-100b, step-100k-200b," in warning
    assert select_revisions(["*"], names, every=2, step=r"step-(\d+k)-.*") == [
        *names[::2],
        names[-1],
    ]
    assert warnings_of(select_revisions, ["*"], [f"step{n}" for n in range(4)], every=2) == []


def test_what_is_asked_for_twice_is_given_once():
    assert select_revisions(["main", "*", "main"], OLMO) == ["main", *BY_STEP[:5]]


def test_a_name_with_the_characters_of_a_pattern_is_a_name_first():
    assert select_revisions(["run[1]"], ["run[1]", "run1"]) == ["run[1]"]


def test_upper_and_lower_case_differ():
    with pytest.raises(GeometryError):
        select_revisions(["STEP*"], OLMO)


def nearest(asked, available):
    with pytest.raises(GeometryError) as caught:
        select_revisions([asked], available, where="allenai/OLMo-7B")
    heading, line = str(caught.value).splitlines()
    assert heading == f"allenai/OLMo-7B has {len(available)} revisions, and none of these:"
    assert line.startswith(f"  {asked!r}: ")
    return line.partition("the nearest are ")[2].split(", ")


def test_a_missing_step_is_answered_with_the_nearest_steps():
    near = nearest("step2100-tokens9B", OLMO)
    assert near == ["step2000-tokens9B", "step3000-tokens13B", "step1000-tokens4B"]


def test_a_name_that_is_one_token_off_is_answered_with_the_right_one():
    assert nearest("step1000-tokens5B", OLMO)[0] == "step1000-tokens4B"


def test_the_nearest_step_is_of_the_same_stage_if_there_is_one():
    assert nearest("stage2-step90", ["stage1-step90", "stage2-step10"])[0] == "stage2-step10"


def test_a_missing_name_is_answered_with_those_spelt_most_alike():
    assert nearest("mian", OLMO)[0] == "main"


def test_a_pattern_that_matches_nothing_is_missing():
    assert nearest("step9*", OLMO)[0] == "step0-tokens0B"


def test_all_missing_revisions_are_named_at_once():
    with pytest.raises(GeometryError) as caught:
        select_revisions(["main", "nowhere", "step7", "ste?x"], OLMO)
    assert [line.split(":")[0].strip() for line in str(caught.value).splitlines()[1:]] == [
        "'nowhere'",
        "'step7'",
        "'ste?x'",
    ]


def test_a_repository_without_revisions_says_so():
    with pytest.raises(GeometryError, match=r"has 0 revisions(.|\n)*there are none at all"):
        select_revisions(["*"], [])


def test_a_folder_with_weights_is_one_checkpoint(tmp_path):
    (tmp_path / "pytorch_model.bin").touch()
    (tmp_path / "runs").mkdir()
    assert local_revisions(tmp_path) == {"local": tmp_path}


def test_each_sub_folder_that_is_a_checkpoint_is_a_revision_in_order_of_step(tmp_path):
    for name, file in [
        ("step900", "model.pt"),
        ("step1000", "model.safetensors"),
        ("main", "config.json"),
        ("logs", "events.log"),
    ]:
        (tmp_path / name).mkdir()
        (tmp_path / name / file).touch()
    (tmp_path / "README.md").touch()
    found = local_revisions(tmp_path)
    assert list(found) == ["step900", "step1000", "main"]
    assert found["step900"] == tmp_path / "step900"


@pytest.mark.parametrize("make", [lambda path: None, lambda path: path.touch()])
def test_a_missing_folder_is_named(tmp_path, make):
    folder = tmp_path / "absent"
    make(folder)
    with pytest.raises(GeometryError, match=f"no folder {folder}"):
        local_revisions(folder)


def test_a_folder_without_checkpoints_is_named(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(GeometryError, match=f"{tmp_path} holds no checkpoint"):
        local_revisions(tmp_path)


def test_a_local_model_is_pinned_to_its_folder(tmp_path):
    for name in ("step10", "step9"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").touch()
    found = resolve_revisions(["*"], 1, None, None, tmp_path, {"step9": "f" * 40})
    assert list(found.items()) == [("step9", "local"), ("step10", "local")]


@pytest.mark.parametrize(
    "braced", ["step{1}/config.json", "step1/model{1}.safetensors", "<b>/config.json"]
)
def test_a_checkpoint_with_braces_is_left_out_with_a_word(tmp_path, warnings_of, braced):
    for file in (braced, "step1/config.json", "step2/config.json"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).touch()
    (warning,) = warnings_of(local_revisions, tmp_path)
    assert "was left out: Snakemake reads braces and <…>, as in" in warning
    found = resolve_revisions(["*"], 1, None, None, tmp_path, {})
    assert "step2" in found and (tmp_path / braced).parent.name not in found


def test_what_no_rule_reads_may_have_any_name(tmp_path):
    weights(tmp_path, tmp_path / "checkpoint-5")
    (tmp_path / "plots{1}").mkdir()
    (tmp_path / "checkpoint-5/notes{1}.txt").touch()
    found = resolve_revisions(["*"], 1, None, None, tmp_path, {})
    assert list(found) == ["checkpoint-5", "final"]


def test_a_folder_called_final_is_not_hidden_by_the_one_above(tmp_path):
    weights(tmp_path, tmp_path / "final", tmp_path / "checkpoint-5")
    assert local_revisions(tmp_path) == {
        "checkpoint-5": tmp_path / "checkpoint-5",
        "final": tmp_path / "final",
        "local": tmp_path,
    }


def test_a_folder_of_which_nothing_can_be_used_is_named(tmp_path):
    weights(tmp_path / "step{1}")
    with pytest.raises(GeometryError, match=f"{tmp_path}: none of the checkpoints below it can be"):
        local_revisions(tmp_path)


def test_a_lone_checkpoint_with_braces_is_refused(tmp_path):
    (tmp_path / "model{1}.safetensors").touch()
    with pytest.raises(GeometryError, match=r"model\{1\}\.safetensors: .* braces .* Rename"):
        resolve_revisions(["*"], 1, None, None, tmp_path, {})


@pytest.mark.parametrize(
    ("revision", "folder"),
    [("refs/pr/1", "refs%2Fpr%2F1"), ("step1-tokens4B", "step1-tokens4B"), ("50%", "50%25")],
)
def test_a_revision_is_percent_encoded_as_a_folder(revision, folder):
    assert folder_name(revision) == folder


@settings(derandomize=True, max_examples=100)
@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=19))
def test_no_two_revisions_share_a_folder(revision):
    assume(revision not in {".", "..", *TAKEN})  # refused
    folder = folder_name(revision)
    assert unquote(folder) == revision
    assert "/" not in folder


@settings(derandomize=True, max_examples=100)
@given(
    st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1),
        st.text("0123456789abcdef", min_size=40, max_size=40) | st.just("local"),
        max_size=4,
    )
)
def test_pinned_revisions_are_read_as_they_were_written(tmp_path_factory, pinned):
    file = tmp_path_factory.mktemp("pins") / "revisions.tsv"
    file.write_bytes(format_revisions(pinned).encode())
    assert list(read_revisions(file).items()) == list(pinned.items())


def test_pinned_revisions_are_a_table_with_a_heading():
    table = format_revisions({"main": "a" * 40, "refs/pr/1": "b" * 40})
    assert table == f"revision\tcommit\nmain\t{'a' * 40}\nrefs/pr/1\t{'b' * 40}\n"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "main\tlocal\n",
        "revision\tcommit\n\n",
        "revision\tcommit\nmain\n",
        "revision\tcommit\nmain\tabc\n",
        f"revision\tcommit\nmain\t{'a' * 40}\tlocal\n",
    ],
)
def test_a_damaged_table_is_named(tmp_path, text):
    file = tmp_path / "revisions.tsv"
    file.write_text(text)
    with pytest.raises(GeometryError, match=f"{file} is damaged"):
        read_revisions(file)


def test_a_table_that_is_no_text_is_named(tmp_path):
    file = tmp_path / "revisions.tsv"
    file.write_bytes(b"revision\tcommit\nma\xff\xfein\tlocal\n\x00")
    with pytest.raises(GeometryError, match=f"{file} is damaged"):
        read_revisions(file)


@pytest.mark.parametrize("name", [".", ".."])
def test_a_revision_has_a_folder_of_its_own(name):
    with pytest.raises(GeometryError, match="another folder"):
        folder_name(name)


@pytest.mark.parametrize(
    "name", ["step" + "0" * 20, "x" * 200 + "é" * 10, "step1-" * 20, "plots", "revisions.tsv"]
)
def test_a_revision_that_can_have_no_folder_is_refused_by_name_and_else_left_out(name, warnings_of):
    with pytest.raises(GeometryError, match=f"A revision called '{name}' cannot have a folder"):
        select_revisions([name], [name, "main"])
    assert select_revisions(["*"], [name, "main"]) == ["main"]
    (warning,) = warnings_of(select_revisions, ["*"], [name, "main"], where="m")
    assert warning.startswith(f"m: A revision called '{name}' cannot") and "left out" in warning


def test_a_long_revision_can_have_a_folder():
    assert folder_name("step1-" * 19 + "0" * 19) == "step1-" * 19 + "0" * 19


def test_all_means_branches_and_tags_and_neither_commits_nor_pull_requests():
    commit = "0123456789" * 4
    available = ["main", "step1", "refs/pr/1", commit]
    assert select_revisions(["*"], available) == ["step1", "main"]
    assert select_revisions(["refs/pr/*"], available) == ["refs/pr/1"]
    assert select_revisions([commit, "*"], available) == [commit, "step1", "main"]


def weights(*folders):
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text("{}")
        (folder / "model.safetensors").write_text("")


def test_the_output_folder_of_a_trainer_is_its_checkpoints_and_the_model_it_ends_with(tmp_path):
    weights(tmp_path, tmp_path / "checkpoint-500", tmp_path / "checkpoint-1000")
    (tmp_path / "training_args.bin").write_text("")
    (tmp_path / "runs").mkdir()
    assert list(local_revisions(tmp_path)) == ["checkpoint-500", "checkpoint-1000", "final"]
    assert local_revisions(tmp_path)["final"] == tmp_path


def test_the_arguments_of_a_training_are_no_weights(tmp_path):
    weights(tmp_path / "checkpoint-500")
    (tmp_path / "training_args.bin").write_text("")
    assert list(local_revisions(tmp_path)) == ["checkpoint-500"]


def test_what_lies_below_a_checkpoint_is_another_if_it_has_a_config_or_a_step(tmp_path):
    weights(tmp_path, tmp_path / "best", tmp_path / "checkpoint-5")
    for file in ("checkpoint-9/model.safetensors", "adapter/model.safetensors", "1/config.json"):
        (tmp_path / file).parent.mkdir()
        (tmp_path / file).touch()
    assert list(local_revisions(tmp_path)) == ["checkpoint-5", "checkpoint-9", "best", "final"]


@pytest.mark.parametrize("inside", [".", "snapshots"])
def test_a_model_in_the_hubs_cache_is_its_snapshots(tmp_path, inside):
    first, second = "01234567" * 5, "89abcdef" * 5
    weights(tmp_path / "snapshots" / first, tmp_path / "snapshots" / second)
    folder = tmp_path / inside
    assert list(resolve_revisions(["*"], 1, None, None, folder, {})) == [first, second]
    (tmp_path / "refs").mkdir()
    (tmp_path / "refs/main").write_text(second)
    assert local_revisions(folder) == {
        "main": tmp_path / "snapshots" / second,
        first: tmp_path / "snapshots" / first,
    }
    assert list(resolve_revisions(["*"], 1, None, None, folder, {})) == ["main"]
    assert list(resolve_revisions([first], 1, None, None, folder, {})) == [first]


ODD_NAMES = ["step2\t", "step2\n", "step2\r", "step2\v", "step\udcff"]


@pytest.mark.parametrize(
    "name", ODD_NAMES, ids=["tab", "newline", "return", "vertical tab", "no text"]
)
def test_a_folder_whose_name_no_table_can_hold_costs_no_other(tmp_path, name, warnings_of):
    weights(tmp_path / "step1", tmp_path / name)
    (warning,) = warnings_of(local_revisions, tmp_path)
    assert "was left out" in warning and repr(name) in warning
    assert list(local_revisions(tmp_path)) == ["step1"]


def test_a_folder_that_may_not_be_read_costs_no_other(tmp_path, monkeypatch, warnings_of):
    weights(tmp_path / "step1", tmp_path / "step2")
    access = os.access  # root may read everything
    shut = tmp_path / "step2"
    monkeypatch.setattr(os, "access", lambda path, mode: path != shut and access(path, mode))
    (warning,) = warnings_of(local_revisions, tmp_path)
    assert warning == f"{shut} was left out: its permissions forbid to read it."
    assert list(local_revisions(tmp_path)) == ["step1"]


def test_files_that_cannot_be_read_are_left_to_the_job_of_their_checkpoint(tmp_path, warnings_of):
    weights(tmp_path / "step1")
    (tmp_path / "step2").mkdir()
    (tmp_path / "step2/model.safetensors").symlink_to("nowhere")
    (tmp_path / "step3").mkdir()
    (tmp_path / "step3/config.json").symlink_to("config.json")
    (tmp_path / "step4").symlink_to("nowhere")
    assert warnings_of(local_revisions, tmp_path) == []
    assert list(local_revisions(tmp_path)) == ["step1", "step2", "step3"]


def test_a_revision_whose_name_is_markup_is_one(tmp_path):
    weights(tmp_path / "a < b", tmp_path / "a&b")
    assert list(local_revisions(tmp_path)) == ["a < b", "a&b"]


def test_what_is_left_out_is_said_in_the_job_s_log_and_on_the_terminal_and_else_nowhere(tmp_path):
    weights(tmp_path / "m/step1", tmp_path / "m/step{2}")
    listing = (
        "from pathlib import Path; from unembedding.checkpoints.revisions import local_revisions"
    )
    script = f"{listing}\nlocal_revisions(Path('m'))\n"
    job = (
        "from unembedding.workflow.joblog import logged_to\n"
        f"with logged_to('job.log'):\n    {script.replace(chr(10), chr(10) + '    ', 1)}"
    )
    silent, told = (
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(SOURCES)},
            capture_output=True,
            text=True,
            check=True,
        )
        for code in (script, job)
    )
    warning = "Warning: m/step{2} was left out: Snakemake reads braces and <…>, as in 'step{2}'."
    assert silent.stderr == silent.stdout == told.stdout == ""
    assert told.stderr.startswith(warning)
    assert (tmp_path / "job.log").read_text(encoding="utf-8").startswith(warning)
