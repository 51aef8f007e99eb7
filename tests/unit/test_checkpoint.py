"""A checkpoint's tensors are found in whatever files they lie."""

import json

import pytest
import torch
from safetensors.torch import save_file

from unembedding.checkpoints.checkpoint import Checkpoint
from unembedding.checkpoints.sources import LocalFolder, read
from unembedding.errors import GeometryError

HEAD = "lm_head.weight"
SHARDS = {
    1: {"model.embed_tokens.weight": torch.zeros(6, 2)},
    2: {HEAD: torch.arange(12.0).reshape(6, 2), "model.norm.weight": torch.ones(2)},
}
FORMATS = {"safetensors": "model", "bin": "pytorch_model"}
WRITE = {"safetensors": save_file, "bin": torch.save, "pt": torch.save}


def write(folder, name, tensors):
    WRITE[name.rpartition(".")[2]](tensors, folder / name)


def shard(suffix, number):
    return f"{FORMATS[suffix]}-0000{number}-of-00002.{suffix}"


def sharded(folder, suffix, **changes):
    """Write two shards and their index, in which ``changes`` name other files for the tensors."""
    weight_map = {}
    for number, tensors in SHARDS.items():
        write(folder, shard(suffix, number), tensors)
        weight_map |= dict.fromkeys(tensors, shard(suffix, number))
    weight_map |= changes
    index(folder, suffix, {"metadata": {"total_size": 104}, "weight_map": weight_map})
    return folder


def index(folder, suffix, content):
    text = content if isinstance(content, str) else json.dumps(content)
    (folder / f"{FORMATS[suffix]}.{suffix}.index.json").write_text(text)


def open_checkpoint(folder):
    return Checkpoint(LocalFolder(folder))


def values(checkpoint, name=HEAD):
    tensor = checkpoint.find(name)
    return read(checkpoint.source, tensor.file, tensor.start, tensor.stop)


def refusal(call):
    with pytest.raises(GeometryError) as caught:
        call()
    return str(caught.value)


@pytest.mark.parametrize("file", ["model.safetensors", "pytorch_model.bin", "model.pt"])
def test_a_tensor_of_a_single_file_is_found(tmp_path, file):
    write(tmp_path, file, SHARDS[2])
    checkpoint = open_checkpoint(tmp_path)
    assert set(checkpoint.weight_map) == {HEAD, "model.norm.weight"}
    assert checkpoint.find(HEAD).file == file
    assert values(checkpoint) == SHARDS[2][HEAD].numpy().tobytes()


@pytest.mark.parametrize("suffix", FORMATS)
def test_a_tensor_of_a_shard_is_found_and_only_that_shard_is_read(tmp_path, suffix):
    sharded(tmp_path, suffix)
    (tmp_path / shard(suffix, 1)).write_bytes(b"not read")
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.choose().tensor == HEAD
    assert checkpoint.find(HEAD).file == shard(suffix, 2)
    assert values(checkpoint) == SHARDS[2][HEAD].numpy().tobytes()
    assert checkpoint.source.warnings == []


@pytest.mark.parametrize("suffix", FORMATS)
def test_shards_without_an_index_are_all_looked_at(tmp_path, suffix):
    sharded(tmp_path, suffix)
    (tmp_path / f"{FORMATS[suffix]}.{suffix}.index.json").unlink()
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.choose().tensor == HEAD
    assert values(checkpoint) == SHARDS[2][HEAD].numpy().tobytes()


@pytest.mark.parametrize("suffix", FORMATS)
def test_a_shard_that_is_missing_without_an_index_is_told(tmp_path, suffix):
    write(tmp_path, shard(suffix, 1), SHARDS[1])
    message = refusal(lambda: open_checkpoint(tmp_path).choose())
    assert f"neither an index nor all 2 files that '{shard(suffix, 1)}' is one of" in message


@pytest.mark.parametrize("suffix", FORMATS)
def test_without_an_index_one_tensor_in_two_files_is_refused(tmp_path, suffix):
    sharded(tmp_path, suffix)
    (tmp_path / f"{FORMATS[suffix]}.{suffix}.index.json").unlink()
    write(tmp_path, shard(suffix, 1), {HEAD: torch.ones(6, 2)})
    message = refusal(lambda: open_checkpoint(tmp_path).choose())
    assert f"'{shard(suffix, 1)}' and '{shard(suffix, 2)}' both hold '{HEAD}'" in message


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize("named", ["the other shard", "model-00003-of-00002", "../elsewhere"])
def test_a_tensor_is_found_where_it_is_whatever_the_index_says(tmp_path, suffix, named):
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    wrong = shard(suffix, 1) if named == "the other shard" else f"{named}.{suffix}"
    write(tmp_path, f"elsewhere.{suffix}", {HEAD: torch.full((6, 2), 9.0)})
    sharded(folder, suffix, **{HEAD: wrong})
    checkpoint = open_checkpoint(folder)
    assert values(checkpoint) == SHARDS[2][HEAD].numpy().tobytes()
    (warning,) = checkpoint.source.warnings
    assert warning == (
        f"The index puts {HEAD!r} in {wrong!r}; it was found in {shard(suffix, 2)!r}."
    )


@pytest.mark.parametrize("suffix", FORMATS)
def test_a_tensor_of_a_missing_shard_is_not_taken_from_a_file_that_the_index_does_not_name(
    tmp_path, suffix
):
    sharded(tmp_path, suffix)
    (tmp_path / shard(suffix, 2)).unlink()
    write(tmp_path, f"ema_weights.{suffix}", {HEAD: torch.ones(6, 2)})
    message = refusal(lambda: open_checkpoint(tmp_path).find(HEAD))
    assert f"the index puts tensor {HEAD!r} in {shard(suffix, 2)!r}, which is missing" in message


@pytest.mark.parametrize("suffix", FORMATS)
def test_a_tensor_of_a_missing_shard_is_named_with_its_shard(tmp_path, suffix):
    sharded(tmp_path, suffix)
    (tmp_path / shard(suffix, 2)).unlink()
    message = refusal(lambda: open_checkpoint(tmp_path).find(HEAD))
    assert f"the index puts tensor {HEAD!r} in {shard(suffix, 2)!r}, which is missing" in message
    assert "no other of the 1 files of weights that it names has it" in message


def test_a_tensor_that_no_shard_holds_is_named_with_its_shard(tmp_path):
    sharded(tmp_path, "safetensors")
    write(tmp_path, shard("safetensors", 2), {"model.norm.weight": torch.ones(2)})
    message = refusal(lambda: open_checkpoint(tmp_path).find(HEAD))
    assert f"in {shard('safetensors', 2)!r}, which does not hold it" in message


@pytest.mark.parametrize(
    "content",
    ["", "[]", "5", "{}", '{"weight_map": []}', '{"weight_map": {"a": 1}}', '{"weight_map": null}'],
)
def test_an_index_without_a_map_of_files_is_named(tmp_path, content):
    sharded(tmp_path, "safetensors")
    index(tmp_path, "safetensors", content)
    message = refusal(lambda: open_checkpoint(tmp_path).choose())
    assert message.startswith(str(tmp_path / "model.safetensors.index.json"))


@pytest.mark.parametrize(
    ("files", "taken"),
    [
        (["pytorch_model.bin", "model.safetensors"], "model.safetensors"),
        (["model.pt", "pytorch_model.bin"], "pytorch_model.bin"),
        (["adapter_model.safetensors", "pytorch_model.bin"], "pytorch_model.bin"),
        (["model.safetensors", "consolidated.safetensors"], "model.safetensors"),
        (["consolidated.00.pt", "weights.safetensors"], "weights.safetensors"),
    ],
)
def test_of_several_files_the_usual_name_comes_first_and_then_safetensors(tmp_path, files, taken):
    for file in files:
        write(tmp_path, file, SHARDS[2])
    assert open_checkpoint(tmp_path).find(HEAD).file == taken


@pytest.mark.parametrize(
    "other",
    [
        "training_args.bin",
        "optimizer.bin",
        "optimizer.pt",
        "optimizer.safetensors",
        "optim.pt",
        "scheduler.pt",
        "scaler.pt",
        "train.pt",
        "rng_state_0.pt",
        "random_states_0.bin",
    ],
)
def test_what_training_leaves_beside_the_weights_is_not_looked_at(tmp_path, other):
    (tmp_path / other).write_bytes(b"no weights")
    assert "holds no weights" in refusal(lambda: open_checkpoint(tmp_path).choose())
    write(tmp_path, f"part.{other.rpartition('.')[2]}", SHARDS[2])
    assert open_checkpoint(tmp_path).choose().tensor == HEAD


def test_a_checkpoint_without_weights_says_what_it_holds(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "tf_model.h5").touch()
    message = refusal(lambda: open_checkpoint(tmp_path).choose())
    assert f"{tmp_path} holds no weights this workflow reads" in message
    assert message.endswith("It holds: config.json, tf_model.h5.")


@pytest.mark.parametrize("suffix", FORMATS)
def test_the_candidates_of_an_unknown_layout_have_shapes_also_in_shards(tmp_path, suffix):
    sharded(tmp_path, suffix)
    message = refusal(lambda: open_checkpoint(tmp_path).choose("head"))
    assert message.splitlines()[1:] == [
        "  lm_head.weight  6 × 2",
        "  model.embed_tokens.weight  6 × 2",
    ]


def test_the_candidates_of_a_missing_shard_are_named_without_shapes(tmp_path):
    sharded(tmp_path, "safetensors")
    (tmp_path / shard("safetensors", 2)).unlink()
    lines = refusal(lambda: open_checkpoint(tmp_path).choose("head")).splitlines()
    assert "  model.embed_tokens.weight  6 × 2" in lines
    assert "  lm_head.weight" in [line.rstrip() for line in lines]


def test_config_json_decides_between_head_and_embedding(tmp_path):
    write(tmp_path, "model.safetensors", SHARDS[1])
    (tmp_path / "config.json").write_text('{"tie_word_embeddings": true}')
    assert open_checkpoint(tmp_path).choose().tensor == "model.embed_tokens.weight"
    (tmp_path / "config.json").write_text('{"model_type": "olmo"}')
    assert "holds no unembedding" in refusal(lambda: open_checkpoint(tmp_path).choose())


@pytest.mark.parametrize("text", ["[]", "null"])
def test_a_config_json_that_is_no_mapping_says_nothing(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    assert open_checkpoint(tmp_path).config == {}


@pytest.mark.parametrize("content", [b"{", b"\xff", b"[" * 100_000])
def test_a_config_json_that_is_no_json_is_named(tmp_path, content):
    (tmp_path / "config.json").write_bytes(content)
    message = refusal(lambda: open_checkpoint(tmp_path).config)
    assert message.startswith(f"{tmp_path / 'config.json'} is not valid JSON")


def test_a_config_json_of_gigabytes_is_not_read(tmp_path):
    with (tmp_path / "config.json").open("wb") as file:
        file.truncate(2**32)  # sparse
    message = refusal(lambda: open_checkpoint(tmp_path).config)
    assert message.endswith(f"has {2**32} bytes; that is no JSON description.")


def test_a_folder_with_weights_in_its_sub_folders_alone_is_answered_with_these(tmp_path):
    for folder in ("a", "b", "c"):
        (tmp_path / folder).mkdir()
    write(tmp_path / "a", "model.safetensors", SHARDS[2])
    write(tmp_path / "b", "model.pt", SHARDS[2])
    (tmp_path / "c/README.md").touch()
    message = refusal(lambda: open_checkpoint(tmp_path).choose())
    assert "It holds: no files, and weights in the folders a, b. Give one of these" in message
