"""What may stand in the configuration, and what it says of every mistake."""

import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from unembedding.workflow.configuration import ConfigurationError, load, schema

CONFIG_FOLDER = Path(__file__).parents[2] / "config"

LOCAL = {"path": "resources/tiny-olmo"}


def config(**changes):
    return {"models": {"tiny": LOCAL}, **changes}


def mistakes(values, *files):
    """The lines of the message below its heading."""
    with pytest.raises(ConfigurationError) as caught:
        load(values, files)
    return [line.strip() for line in str(caught.value).splitlines()[1:]]


def mistake_of(**model):
    (line,) = mistakes({"models": {"tiny": model}})
    return line


def test_everything_but_the_models_has_a_default():
    found = load(config())
    assert found.model_dump(exclude={"models", "backends", "mamba", "concepts"}) == {
        "backend": "auto",
        "precision": "float64",
        "on_rank_deficient": "error",
        "residual": "estimate",
        "write": ["g", "factors"],
        "download": "tensor",
        "keep_unembedding": True,
    }
    assert found.models["tiny"].model_dump() == {
        "path": Path("resources/tiny-olmo"),
        "repo": None,
        "revisions": ["*"],
        "every": 1,
        "step": None,
        "rows": None,
        "unembedding": None,
        "subfolder": None,
        "tokenizer": None,
    }


def test_the_example_of_the_documentation_is_read_as_it_stands():
    found = load(
        yaml.safe_load(
            """
            models:
              tiny-olmo:
                path: resources/tiny-olmo
                revisions: all
              olmo-7b:
                repo: allenai/OLMo-7B
                revisions: [step1000-tokens4B, "step*0000-*", main]
                every: 10
                rows: 50280
                unembedding: lm_head.weight
            backend: cupy
            precision: float32
            on_rank_deficient: pseudo_inverse
            download: checkpoint
            keep_unembedding: false
            """
        )
    )
    olmo = found.models["olmo-7b"]
    assert olmo.repo == "allenai/OLMo-7B"
    assert olmo.revisions == ["step1000-tokens4B", "step*0000-*", "main"]
    assert (olmo.every, olmo.rows, olmo.unembedding) == (10, 50280, "lm_head.weight")
    assert (found.backend, found.precision) == ("cupy", "float32")
    assert (found.on_rank_deficient, found.download) == ("pseudo_inverse", "checkpoint")
    assert found.keep_unembedding is False


@pytest.mark.parametrize(
    ("given", "meant"),
    [("all", ["*"]), ("main", ["main"]), ("step*", ["step*"]), (["a", "b"], ["a", "b"])],
)
def test_revisions_may_be_one_name_or_a_list_or_all(given, meant):
    found = load({"models": {"tiny": {**LOCAL, "revisions": given}}})
    assert found.models["tiny"].revisions == meant


@pytest.mark.parametrize("given", ["all", None])
def test_all_rows_is_no_limit(given):
    assert load({"models": {"tiny": {**LOCAL, "rows": given}}}).models["tiny"].rows is None


def test_every_mistake_is_reported_at_once_by_its_dotted_path(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text("backend: numpy\nbackend: jax\n")
    values = {
        "backend": "jax",
        "precison": "float32",
        "keep_unembedding": "maybe",
        "models": {
            "both": {"path": "here", "repo": "a/b", "rows": 0},
            "neither": {"every": 0, "row": 5},
            "a/b": LOCAL,
            "Tiny": {**LOCAL, "revisions": []},
            "tiny": {**LOCAL, "revisions": [1000]},
        },
    }
    lines = mistakes(values, file)
    assert {line.split(":")[0] for line in lines} == {
        str(file),
        "backend",
        "precison",
        "keep_unembedding",
        "models",
        "models.both.repo",
        "models.both.rows",
        "models.neither.repo",
        "models.neither.every",
        "models.neither.row",
        "models.a/b",
        "models.Tiny.revisions",
        "models.tiny.revisions.0",
    }
    assert len(lines) == 13


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (config(precison="float32"), "precison: unknown key; did you mean 'precision'?"),
        (config(zzz=1), "zzz: unknown key"),
        ({"model": {}, **config()}, "model: unknown key; did you mean 'models'?"),
        (
            {"models": {"tiny": {**LOCAL, "revision": "main"}}},
            "models.tiny.revision: unknown key; did you mean 'revisions'?",
        ),
        (
            {"models": {"tiny": {**LOCAL, "unembeding": "x"}}},
            "models.tiny.unembeding: unknown key; did you mean 'unembedding'?",
        ),
        (
            {"models": {"rows": {**LOCAL, "evry": 2}}},
            "models.rows.evry: unknown key; did you mean 'every'?",
        ),
    ],
)
def test_an_unknown_key_comes_with_the_nearest_known_one(values, message):
    assert mistakes(values) == [message]


def test_an_unknown_value_comes_with_the_known_ones():
    assert mistakes(config(backend="jax")) == [
        "backend: should be 'auto', 'numpy', 'torch' or 'cupy', not 'jax'"
    ]


def test_a_model_is_either_local_or_on_the_hub():
    both = mistake_of(path="here", repo="a/b")
    assert both == "models.tiny.repo: give either `path:` or `repo:`; both are there"
    neither = mistake_of(revisions="all")
    assert neither == "models.tiny.repo: give either `path:` or `repo:`; neither is there"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rows", 0),
        ("rows", -1),
        ("rows", 1.5),
        ("rows", "a hundred"),
        ("rows", True),
        ("every", 0),
        ("every", True),
        ("every", "ten"),
        ("revisions", 5),
        ("revisions", []),
        ("revisions", {"a": 1}),
        ("path", 5),
        ("unembedding", 5),
    ],
)
def test_a_value_of_the_wrong_type_is_a_mistake(key, value):
    assert mistake_of(**{**LOCAL, key: value}).startswith(f"models.tiny.{key}: ")


def test_a_repository_of_the_wrong_type_is_a_mistake():
    mistake = mistake_of(repo=["a/b"])
    assert mistake.startswith("models.tiny.repo: should be text") and mistake.endswith("['a/b']")


@pytest.mark.parametrize("value", ["maybe", 0, 0.5, None])
def test_only_true_and_false_switch(value):
    (line,) = mistakes(config(keep_unembedding=value))
    assert line == f"keep_unembedding: should be true or false, not {value!r}"


@pytest.mark.parametrize("name", ["a/b", "..", ".hidden", "", "-x", "a b", "größe", "{a}"])
def test_a_name_is_one_folder(name):
    (line,) = mistakes({"models": {name: LOCAL}})
    assert "cannot be a folder" in line


def test_a_name_is_a_string():
    (line,) = mistakes({"models": {7: LOCAL}})
    assert line == "models.7: should be text, in quotes where it looks like a number, not 7"


def test_names_that_differ_in_case_only_would_share_a_folder():
    (line,) = mistakes({"models": {"OLMo": LOCAL, "olmo": LOCAL}})
    assert line.startswith("models: 'OLMo' and 'olmo' would share a folder")


def test_the_name_of_the_summary_is_taken():
    (line,) = mistakes({"models": {"Summary.csv": LOCAL}})
    assert line == "models.Summary.csv: this name is taken by the summary"


@pytest.mark.parametrize("models", [None, [], "tiny"])
def test_models_are_a_mapping(models):
    (line,) = mistakes({"models": models})
    assert line == f"models: should be a mapping of names to models, not {models!r}"


@pytest.mark.parametrize("model", [None, "here", ["here"]])
def test_a_model_has_keys_and_some_are_named(model):
    (line,) = mistakes({"models": {"tiny": model}})
    assert line == f"models.tiny: should have keys such as `path:` or `repo:`, not be {model!r}"


@pytest.mark.parametrize("section", [None, 3, []])
def test_a_section_has_keys_and_some_are_named(section):
    (line,) = mistakes(config(mamba={"scan": section}))
    assert line.startswith("mamba.scan: should have keys such as `lengths:` or `batch:`, not ")


@pytest.mark.parametrize(
    "values",
    [
        {"models": {}},
        {"models": {"tiny": {**LOCAL, "revisions": []}}},
        config(backends={"sizes": []}),
    ],
)
def test_what_may_not_be_empty_is_told(values):
    (line,) = mistakes(values)
    assert line.endswith(": should not be empty")


PYTHONS = ("dict", "<class", "instance", "Input", "item", "boolean", "integer", "string")


@pytest.mark.parametrize(
    "values",
    [
        config(backend=None, precision=64, keep_unembedding="yes", mamba=None, backends=[]),
        config(mamba={"scan": {"dim": 7, "seconds_per_call": "long", "lengths": 8}}),
        {"models": {"m": {"path": 5, "rows": "all of them", "every": 1.5, "unembedding": 5}}},
        {"models": {"m": {"repo": 5, "revisions": [1000]}, "n": 5}},
    ],
)
def test_no_mistake_is_told_in_words_of_python(values):
    for line in mistakes(values):
        told = line.partition(", not ")[0]
        assert not [word for word in PYTHONS if word in told], line


def test_there_must_be_models():
    assert mistakes({}) == ["models: missing"]


def test_a_key_that_stands_twice_is_found_in_the_file(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text(
        "models:\n"
        "  tiny:\n"
        "    path: here\n"
        "    rows: 5\n"
        "    rows: 6\n"
        "  other:\n"
        "    path: there\n"
        "  tiny:\n"
        "    path: elsewhere\n"
    )
    assert mistakes(yaml.safe_load(file.read_text()), file) == [
        f"{file}: models.tiny: stands twice, again in line 8",
        f"{file}: models.tiny.rows: stands twice, again in line 5",
    ]


def test_a_key_that_overrides_an_anchor_does_not_stand_twice(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text(
        "models:\n"
        "  one: &one {path: here, rows: 5}\n"
        "  two: &two\n"
        "    <<: *one\n"
        "    rows: 6\n"
        "  three: {<<: *two, rows: 7}\n"
    )
    found = load(yaml.safe_load(file.read_text()), [file])
    assert [model.rows for model in found.models.values()] == [5, 6, 7]


@pytest.mark.parametrize("text", ["", "? [a, b]\n: 1\n", "&a {x: *a}", '{\t"models": {}}'])
def test_a_file_without_keys_that_stand_twice_adds_no_mistake(tmp_path, text):
    file = tmp_path / "config.yaml"
    file.write_text(text)
    assert load(config(), [file]) == load(config())


def test_the_comparison_of_backends_has_defaults_and_is_known_to_be_asked_for():
    assert load(config()).backends == load(config(backends={})).backends
    assert load(config()).backends.sizes == [256, 512, 1024]
    assert "backends" not in load(config()).model_fields_set
    assert "backends" in load(config(backends={})).model_fields_set


@pytest.mark.parametrize(
    ("backends", "mistake"),
    [
        ({"size": [3]}, "backends.size: unknown key; did you mean 'sizes'?"),
        ({"sizes": [8, 8]}, "backends.sizes: one of them stands twice"),
        ({"sizes": [0]}, "backends.sizes.0: should be greater than or equal to 1, not 0"),
        ({"loads": ["calm"]}, "backends.loads.0: should be 'idle' or 'busy', not 'calm'"),
        ({"rows": 1}, "backends.rows: should be greater than or equal to 2, not 1"),
        ({"checkpoint": "tiny"}, "backends: `checkpoint: tiny` is no model/revision of these "
         "models (tiny)"),
        ({"checkpoint": "big/main"}, "backends: `checkpoint: big/main` is no model/revision of "
         "these models (tiny)"),
    ],
)  # fmt: skip
def test_mistakes_in_the_comparison_of_backends_are_named(backends, mistake):
    assert mistakes(config(backends=backends)) == [mistake]


def test_a_checkpoint_of_a_configured_model_can_be_compared():
    found = load(config(backends={"checkpoint": "tiny/refs/pr/1"}))
    assert found.backends.checkpoint == "tiny/refs/pr/1"


def test_a_sequence_from_a_file_needs_its_path():
    with pytest.raises(ConfigurationError, match=r"mamba\.sequence\.path.*`kind: fasta` needs"):
        load(config(mamba={"sequence": {"kind": "fasta"}}))


@pytest.mark.parametrize("path", ["{sample}.txt", "a}.fa", ""])
def test_a_sequence_whose_path_snakemake_would_read_as_a_pattern_is_refused(path):
    (line,) = mistakes(config(mamba={"sequence": {"kind": "text", "path": path}}))
    assert line.startswith("mamba.sequence.path: a path, without braces")


def test_mistakes_in_the_mamba_section_are_told_by_dotted_path():
    section = {"scan": {"dim": 100, "length": [512]}, "threads": 0}
    with pytest.raises(ConfigurationError) as raised:
        load(config(mamba=section))
    message = str(raised.value)
    assert "mamba.threads: should be greater than or equal to 1, not 0" in message
    assert "mamba.scan.dim: should be a multiple of 64, not 100" in message
    assert "mamba.scan.length: unknown key; did you mean 'lengths'?" in message


@pytest.mark.parametrize("repo", ["", "not a repo", "a/b/c", "https://hub/a"])
def test_a_name_that_no_repository_can_have_is_refused(repo):
    with pytest.raises(ConfigurationError, match=r"models\.m\.repo: a repository is called"):
        load({"models": {"m": {"repo": repo}}})


@pytest.mark.parametrize("path", ["", "a/{x}", "a/<b>"])
def test_a_path_that_no_folder_can_be_found_by_is_refused(path):
    with pytest.raises(ConfigurationError, match=r"models\.m\.path: a path, without braces"):
        load({"models": {"m": {"path": path}}})


def test_all_may_stand_in_a_list():
    found = load({"models": {"m": {"repo": "a/b", "revisions": ["all"]}}})
    assert found.models["m"].revisions == ["*"]


def test_keys_of_the_mamba_section_that_would_have_no_effect_are_mistakes():
    (line,) = mistakes(config(mamba={"model": {"revision": "main"}}))
    assert line.startswith("mamba.model.revision: there is no `path:`")
    (line,) = mistakes(config(mamba={"sequence": {"path": "lambda.fa"}}))
    assert line.startswith("mamba.sequence.path: random tokens are read from no file")


@pytest.mark.parametrize("section", ["mamba", "backends"])
def test_the_other_branches_need_no_model(section):
    assert load({section: {}}).models == {}


def test_the_schema_that_editors_read_is_that_of_the_configuration():
    assert (CONFIG_FOLDER / "config.schema.json").read_text() == schema(), (
        "python -m unembedding.workflow.configuration > config/config.schema.json, in src/"
    )


@pytest.mark.parametrize("file", sorted(CONFIG_FOLDER.glob("*.yaml")), ids=lambda file: file.name)
def test_a_shipped_configuration_names_the_schema_and_fits_it(file):
    text = file.read_text()
    assert text.startswith("# yaml-language-server: $schema=config.schema.json\n")
    jsonschema.validate(yaml.safe_load(text), json.loads(schema()))


@pytest.mark.parametrize(
    ("values", "read"),
    [
        ({"models": {"m": {"path": "m", "rows": "500"}}}, lambda c: c.models["m"].rows == 500),
        ({"models": {"m": {"path": "m", "every": "2"}}}, lambda c: c.models["m"].every == 2),
        ({"models": {}, "keep_unembedding": "false"}, lambda c: c.keep_unembedding is False),
        ({"mamba": {"scan": {"seconds_per_call": "0.5"}}}, lambda c: c.mamba.scan.seconds_per_call),
        ({"backends": {"sizes": ["64"], "rows": "99"}}, lambda c: c.backends.rows == 99),
    ],
)
def test_what_the_command_line_gives_as_text_is_read_as_yaml_would(values, read):
    values = {"models": {"m": {"path": "m"}}} | {k: v for k, v in values.items() if v}
    assert read(load(values))


def test_a_subfolder_is_a_place_in_a_repository():
    found = load({"models": {"m": {"repo": "a/b", "subfolder": "steps/10/"}}})
    assert found.models["m"].subfolder == "steps/10"
    for bad in ("", "/", "../x", "a//b", "a/./b"):
        (line,) = mistakes({"models": {"m": {"repo": "a/b", "subfolder": bad}}})
        assert line.startswith("models.m.subfolder: a folder of the repository, such as")
    assert mistake_of(**LOCAL, subfolder="x") == (
        "models.tiny.subfolder: is of a repository; make it a part of `path:`"
    )


@pytest.mark.parametrize(
    ("written", "meant"),
    [("~/runs", "/home/me/runs"), ("$DATA/runs", "/data/runs"), ("${DATA}/runs", "/data/runs")],
)
def test_home_and_variables_of_the_environment_stand_for_folders(monkeypatch, written, meant):
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("DATA", "/data")
    assert load({"models": {"m": {"path": written}}}).models["m"].path == Path(meant)


@pytest.mark.parametrize("path", ["$NOWHERE_SET/runs", "${NOWHERE_SET}/runs"])
def test_a_variable_that_is_not_set_is_named(path):
    assert mistake_of(path=path) == (
        f"models.tiny.path: $NOWHERE_SET is not set in the environment, in {path!r}"
    )


def test_absent_folders_are_told_with_the_other_mistakes(tmp_path):
    models = {
        "here": {"path": str(tmp_path)},
        "gone": {"path": str(tmp_path / "gone")},
        "nobody": {"path": "~nobody-of-this-name/runs", "every": 0},
    }
    with pytest.raises(ConfigurationError) as caught:
        load({"models": models, "backend": "abacus"}, folders=True)
    places = [line.strip().partition(": ")[0] for line in str(caught.value).splitlines()[1:]]
    assert sorted(places) == [
        "backend",
        "models.gone.path",
        "models.nobody.every",
        "models.nobody.path",
    ]
