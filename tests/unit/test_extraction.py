"""γ is copied out of a checkpoint bit for bit, with a note of where it came from, or not at all."""

import json
import os
import resource

import numpy as np
import pytest
import torch
import xxhash
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from unembedding.checkpoints.sources import LocalFolder
from unembedding.errors import GeometryError, UserError
from unembedding.extraction import extract_unembedding, open_source
from unembedding.tensors.files import TensorFile

PROVENANCE = {"repo": "allenai/tiny", "revision": "step1-tokens4K", "commit": "c" * 40}
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
TIED = {"tie_word_embeddings": True}


def every_bfloat16():
    return torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)


def checkpoint(folder, tensors, config=None, file="model.safetensors"):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config or {}))
    if file.endswith(".safetensors"):
        save_file({name: tensor.clone() for name, tensor in tensors.items()}, folder / file)
    else:
        torch.save(tensors, folder / file)
    return LocalFolder(folder)


def extract(tmp_path, tensors, config=None, file="model.safetensors", exact=None):
    source = checkpoint(tmp_path / "checkpoint", tensors, config, file)
    target = tmp_path / "results" / "unembedding.safetensors"
    return target, extract_unembedding(source, target, PROVENANCE, exact)


def bits(tensor):
    return tensor.flatten().view(torch.uint8).numpy().tobytes()


def metadata_of(target):
    with safe_open(target, "numpy") as file:
        return file.metadata()


@pytest.mark.parametrize("file", ["model.safetensors", "pytorch_model.bin"])
def test_every_bfloat16_is_copied_bit_for_bit(tmp_path, file):
    gamma = every_bfloat16().reshape(2048, 32)
    target, facts = extract(tmp_path, {HEAD: gamma}, file=file)
    found = load_file(target)
    assert set(found) == {"unembedding"}
    assert (found["unembedding"].dtype, found["unembedding"].shape) == (gamma.dtype, gamma.shape)
    assert bits(found["unembedding"]) == bits(gamma)
    assert (facts.dtype, facts.shape) == ("BF16", [2048, 32])


@pytest.mark.parametrize("file", ["model.safetensors", "pytorch_model.bin"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
def test_other_types_are_copied_bit_for_bit(tmp_path, dtype, file):
    size = 24 * torch.empty(0, dtype=dtype).itemsize
    noise = torch.randint(0, 256, (size,), generator=torch.Generator().manual_seed(0))
    gamma = noise.to(torch.uint8).view(dtype).reshape(6, 4)
    target, _ = extract(tmp_path, {HEAD: gamma}, file=file)
    assert load_file(target)["unembedding"].dtype == dtype
    assert bits(load_file(target)["unembedding"]) == bits(gamma)


def test_the_file_says_where_its_matrix_came_from_and_what_its_bytes_hash_to(tmp_path):
    gamma = torch.ones(6, 4)
    target, facts = extract(tmp_path, {HEAD: gamma, EMBEDDING: torch.zeros(6, 4)})
    origin = {**PROVENANCE, "tensor": HEAD, "file": "model.safetensors"}
    digest = f"xxh3:{xxhash.xxh3_128_hexdigest(gamma.numpy().tobytes())}"
    metadata = metadata_of(target)
    assert len(metadata.pop("checksum")) == 64
    assert metadata == {**origin, "tied": "false", "digest": digest}
    assert vars(facts) == {
        **origin,
        "tied": False,
        "dtype": "F32",
        "shape": [6, 4],
        "digest": digest,
        "verified": False,
        "vocabulary": None,
        "bytes_fetched": 0,
        "warnings": [],
    }


def test_the_file_passes_its_own_check_and_a_flipped_bit_does_not(tmp_path):
    target, _ = extract(tmp_path, {HEAD: torch.ones(6, 4)})
    TensorFile(target).verify()
    content = bytearray(target.read_bytes())
    content[-1] ^= 1
    target.write_bytes(content)
    with pytest.raises(GeometryError, match="is damaged"):
        TensorFile(target).verify()


@pytest.mark.parametrize(
    ("config", "vocabulary"),
    [
        ({"vocab_size": 5}, 5),
        ({"vocab_size": True}, None),
        ({"vocab_size": -5}, None),
        ({"vocab_size": "5"}, None),
        ({}, None),
    ],
)
def test_the_tokens_that_config_json_counts_are_recorded_beside_the_rows(
    tmp_path, config, vocabulary
):
    _, facts = extract(tmp_path, {HEAD: torch.ones(8, 4)}, config)
    assert (facts.vocabulary, facts.shape) == (vocabulary, [8, 4])


def test_a_tied_embedding_without_a_head_is_the_unembedding(tmp_path):
    gamma = torch.arange(24.0).reshape(6, 4)
    target, facts = extract(tmp_path, {EMBEDDING: gamma}, TIED)
    assert (facts.tensor, facts.tied, facts.warnings) == (EMBEDDING, True, [])
    assert metadata_of(target)["tied"] == "true"
    assert bits(load_file(target)["unembedding"]) == bits(gamma)


@pytest.mark.parametrize("file", ["model.safetensors", "pytorch_model.bin"])
def test_two_equal_matrices_are_tied(tmp_path, file):
    gamma = every_bfloat16().reshape(2048, 32)  # with NaN, which equals nothing as a number
    _, facts = extract(tmp_path, {HEAD: gamma, EMBEDDING: gamma.clone()}, TIED, file)
    assert (facts.tensor, facts.tied, facts.warnings) == (HEAD, True, [])


def test_one_storage_under_two_names_is_tied_and_read_once(tmp_path):
    gamma = torch.ones(6, 4)
    names = {HEAD: gamma, "backbone.embedding.weight": gamma}
    source = checkpoint(
        tmp_path, names, {"ssm_cfg": {}}, "pytorch_model.bin"
    )  # state-spaces' Mamba
    reads = []
    stream = source.stream

    def counting(name, start, stop):
        reads.append(stop - start)
        return stream(name, start, stop)

    source.stream = counting
    facts = extract_unembedding(source, tmp_path / "target", PROVENANCE)
    assert facts.tied is True
    assert reads.count(gamma.nbytes) == 1


@pytest.mark.parametrize(
    "other",
    [torch.ones(6, 4) * 2, torch.ones(6, 5), torch.ones(4, 6), torch.ones(6, 4).half()],
    ids=["values", "width", "shape", "type"],
)
def test_of_two_matrices_that_should_be_tied_and_differ_the_head_is_taken_with_a_warning(
    tmp_path, other
):
    gamma = torch.ones(6, 4)
    target, facts = extract(tmp_path, {EMBEDDING: other, HEAD: gamma}, TIED)
    assert bits(load_file(target)["unembedding"]) == bits(gamma)
    assert (facts.tied, metadata_of(target)["tied"]) == (False, "false")
    (warning,) = facts.warnings
    assert warning.startswith("config.json ties the embeddings, yet 'lm_head.weight' and")


def test_a_tensor_named_by_the_user_is_taken_from_a_layout_nobody_knows(tmp_path):
    gamma = torch.arange(24.0).reshape(6, 4)
    names = {"decoder.table": gamma, "other": torch.zeros(9, 4)}
    target, facts = extract(tmp_path, names, exact="decoder.table")
    assert facts.tensor == "decoder.table"
    assert bits(load_file(target)["unembedding"]) == bits(gamma)


def test_warnings_of_the_source_are_among_the_facts(tmp_path):
    _, facts = extract(tmp_path, {"wte.weight": torch.ones(6, 4)})
    (warning,) = facts.warnings
    assert "config.json does not say whether the embeddings are tied" in warning


def refused(tmp_path, tensors, config=None, file="model.safetensors", damage=None):
    """Return the message, having checked that nothing was left."""
    source = checkpoint(tmp_path / "checkpoint", tensors, config, file)
    if damage:
        damage(tmp_path / "checkpoint" / file)
    target = tmp_path / "results" / "unembedding.safetensors"
    target.parent.mkdir()
    with pytest.raises(GeometryError) as caught:
        extract_unembedding(source, target, PROVENANCE)
    assert list(target.parent.iterdir()) == []
    return str(caught.value)


@pytest.mark.parametrize("shape", [(24,), (2, 3, 4), (), (0, 4), (6, 0)])
def test_a_tensor_that_is_no_matrix_is_refused_with_its_shape(tmp_path, shape):
    message = refused(tmp_path, {HEAD: torch.ones(shape)})
    assert f"tensor '{HEAD}' has the shape {list(shape)}" in message
    assert str(tmp_path / "checkpoint" / "model.safetensors") in message


@pytest.mark.parametrize("dtype", [torch.int8, torch.bool, torch.float8_e4m3fn])
def test_a_matrix_of_quantised_numbers_is_refused_with_its_type(tmp_path, dtype):
    message = refused(tmp_path, {HEAD: torch.ones(6, 4).to(dtype)})
    assert f"model.safetensors: {HEAD}' is stored as " in message
    assert "dequantised" in message


def test_a_complex_matrix_in_an_archive_is_refused_with_its_type(tmp_path):
    message = refused(tmp_path, {HEAD: torch.ones(6, 4) * 1j}, file="pytorch_model.bin")
    assert f"pytorch_model.bin: {HEAD}' is stored as ComplexFloat;" in message


def test_a_transposed_matrix_is_refused(tmp_path):
    message = refused(tmp_path, {HEAD: torch.ones(4, 6).t()}, file="pytorch_model.bin")
    assert "is stored transposed or with gaps" in message


def test_an_untied_checkpoint_without_a_head_is_refused(tmp_path):
    message = refused(tmp_path, {EMBEDDING: torch.ones(6, 4)}, {"model_type": "olmo"})
    assert "holds no unembedding" in message


@pytest.mark.parametrize("file", ["model.safetensors", "pytorch_model.bin"])
def test_a_truncated_file_is_refused(tmp_path, file):
    def damage(path):
        path.write_bytes(path.read_bytes()[:-100])

    message = refused(tmp_path, {HEAD: torch.ones(600, 40)}, file=file, damage=damage)
    assert "is truncated" in message


@pytest.mark.parametrize("old", [None, b"what was there before"])
def test_a_file_that_shrinks_while_it_is_read_leaves_only_what_was_there(tmp_path, old):
    source = checkpoint(tmp_path / "checkpoint", {HEAD: torch.ones(600, 40)})
    sizes = source.sizes()
    source.sizes = lambda: sizes
    path = tmp_path / "checkpoint" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    target = tmp_path / "results" / "unembedding.safetensors"
    target.parent.mkdir()
    if old is not None:
        target.write_bytes(old)
    with pytest.raises(
        GeometryError, match=rf"ends at byte \d+; {sizes['model.safetensors']} were"
    ):
        extract_unembedding(source, target, PROVENANCE)
    assert [file.read_bytes() for file in target.parent.iterdir()] == ([old] if old else [])


def test_an_input_that_cannot_be_read_is_not_called_an_output_that_cannot_be_written(tmp_path):
    source = checkpoint(tmp_path / "checkpoint", {HEAD: torch.ones(600, 40)})
    stream = source.stream

    def lost_before_the_matrix(name, start, stop):
        if stop - start == 600 * 40 * 4:
            (tmp_path / "checkpoint" / name).unlink()
        return stream(name, start, stop)

    source.stream = lost_before_the_matrix
    with pytest.raises(GeometryError, match=r"model.safetensors cannot be read: No such file"):
        extract_unembedding(source, tmp_path / "target", PROVENANCE)


@pytest.fixture
def little_room():
    """Let no file grow beyond 50 kB, the nearest thing to a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_disk_that_fills_up_leaves_nothing(tmp_path, request):
    source = checkpoint(tmp_path / "checkpoint", {HEAD: torch.ones(600, 40)})
    target = tmp_path / "results" / "unembedding.safetensors"
    request.getfixturevalue("little_room")
    with pytest.raises(UserError, match=f"Could not write {target}: File too large"):
        extract_unembedding(source, target, PROVENANCE)
    assert list(target.parent.iterdir()) == []


def test_the_same_checkpoint_gives_the_same_bytes(tmp_path):
    source = checkpoint(tmp_path / "checkpoint", {HEAD: torch.ones(6, 4)})
    for name in ("a", "b"):
        extract_unembedding(source, tmp_path / name, PROVENANCE)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_matrix_larger_than_a_chunk_is_whole(tmp_path):
    gamma = np.random.default_rng(0).standard_normal((5000, 512), np.float32)  # 10 MB
    target, _ = extract(tmp_path, {HEAD: torch.from_numpy(gamma)})
    assert load_file(target)["unembedding"].numpy().tobytes() == gamma.tobytes()


def test_a_revision_of_a_local_model_is_its_sub_folder(tmp_path):
    for revision in ("step1", "local"):
        checkpoint(tmp_path / revision, {HEAD: torch.ones(2, 2)})
        source = open_source(tmp_path, None, revision, "local", "tensor")
        assert source.where() == str(tmp_path / revision)


def test_a_local_checkpoint_is_its_own_revision(tmp_path):
    checkpoint(tmp_path, {HEAD: torch.ones(2, 2)})
    assert open_source(tmp_path, None, "local", "local", "tensor").where() == str(tmp_path)


def test_a_revision_whose_folder_is_gone_is_named(tmp_path):
    checkpoint(tmp_path / "step1", {HEAD: torch.ones(2, 2)})
    with pytest.raises(GeometryError, match=f"no folder {tmp_path / 'step2'}"):
        open_source(tmp_path, None, "step2", "local", "tensor")


def test_numbers_that_differ_from_the_archive_s_checksum_are_not_kept(tmp_path):
    gamma = every_bfloat16().reshape(2048, 32)
    source = checkpoint(tmp_path / "checkpoint", {HEAD: gamma}, file="pytorch_model.bin")
    archive = tmp_path / "checkpoint" / "pytorch_model.bin"
    content = bytearray(archive.read_bytes())
    content[content.index(bits(gamma)) + 1000] ^= 1
    archive.write_bytes(content)
    with pytest.raises(GeometryError, match=f"tensor '{HEAD}' are not those of its checksum"):
        extract_unembedding(source, tmp_path / "unembedding.safetensors", PROVENANCE)
    assert list(tmp_path.iterdir()) == [tmp_path / "checkpoint"]


def test_a_file_whose_name_is_no_text_is_told(tmp_path):
    (tmp_path / os.fsdecode(b"a\xff.safetensors")).touch()
    with pytest.raises(GeometryError, match=r"holds 'a\\udcff.safetensors', whose name is no UTF"):
        open_source(tmp_path, None, "local", "local", "tensor").sizes()


def test_weights_that_are_overwritten_while_they_are_read_are_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr("unembedding.checkpoints.sources.CHUNK", 64)
    save_file({HEAD: torch.ones(64, 4)}, tmp_path / "model.safetensors")
    source = LocalFolder(tmp_path)
    chunks = source.stream("model.safetensors", 0, source.sizes()["model.safetensors"])
    next(chunks)
    save_file({HEAD: torch.zeros(64, 4)}, tmp_path / "model.safetensors")
    with pytest.raises(GeometryError, match=r"model\.safetensors was changed while it was read"):
        list(chunks)


@pytest.mark.parametrize("lost", ["config.json", "model.safetensors"])
def test_a_link_to_nowhere_is_named(tmp_path, lost):
    checkpoint(tmp_path, {HEAD: torch.ones(6, 4)})
    (tmp_path / lost).unlink()
    (tmp_path / lost).symlink_to("../blobs/absent")
    (tmp_path / "README.md").symlink_to("absent too")
    source = open_source(tmp_path, None, "local", "local", "tensor")
    with pytest.raises(GeometryError, match=f"{tmp_path / lost} is a link to nowhere"):
        extract_unembedding(source, tmp_path / "target", PROVENANCE)


def test_the_last_model_of_a_trainer_is_the_folder_of_its_checkpoints(tmp_path):
    for folder in (tmp_path, tmp_path / "checkpoint-5"):
        checkpoint(folder, {HEAD: torch.ones(6, 4)})
    assert open_source(tmp_path, None, "final", "local", "tensor").folder == tmp_path
    below = open_source(tmp_path, None, "checkpoint-5", "local", "tensor")
    assert below.folder == tmp_path / "checkpoint-5"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_what_was_extracted_is_read_as_numbers_that_numpy_has(tmp_path, dtype):
    import unembedding

    gamma = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    gamma = gamma[gamma.isfinite()].to(dtype).reshape(-1, 2)
    target, _ = extract(tmp_path, {HEAD: gamma})
    found = unembedding.read_unembedding(str(target))
    wide = gamma if dtype == torch.float64 else gamma.float()
    assert found.dtype == wide.numpy().dtype
    assert found.tobytes() == wide.numpy().tobytes()


def test_a_config_replaced_before_the_weights_are_read_is_an_error(tmp_path):
    source = checkpoint(tmp_path / "checkpoint", {HEAD: torch.ones(6, 4)}, {"model_type": "olmo"})
    stream = source.stream

    def saved_over(name, start, stop):
        if name == "model.safetensors":
            (tmp_path / "checkpoint/config.json").write_text(json.dumps(TIED))
        return stream(name, start, stop)

    source.stream = saved_over
    with pytest.raises(UserError, match=r"config\.json was changed while it was read"):
        extract_unembedding(source, tmp_path / "target", PROVENANCE)
    assert not (tmp_path / "target").exists()


@pytest.mark.parametrize("keep", ["size", "size and date", "all but the inode"])
def test_weights_replaced_between_header_and_matrix_are_an_error(tmp_path, keep):
    source = checkpoint(tmp_path / "checkpoint", {HEAD: torch.ones(6, 4)})
    path, size = tmp_path / "checkpoint/model.safetensors", 6 * 4 * 4
    old, stream = path.stat(), source.stream

    def replaced(name, start, stop):
        if stop - start == size:
            content = path.read_bytes()[:-size] + bytes(size)
            if keep == "all but the inode":
                path.with_name("new").write_bytes(content)
                path.with_name("new").rename(path)
            else:
                path.write_bytes(content)
            if keep != "size":
                os.utime(path, ns=(old.st_atime_ns, old.st_mtime_ns))
        return stream(name, start, stop)

    source.stream = replaced
    with pytest.raises(UserError, match=r"model\.safetensors was changed while it was read"):
        extract_unembedding(source, tmp_path / "target", PROVENANCE)
