"""safetensors files written in pieces and read in blocks."""

import hashlib
import io
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from unembedding.errors import UserError
from unembedding.files import checksum, replacing, write_json, write_text
from unembedding.tensors.files import LARGE, TensorFile, TensorWriter
from unembedding.tensors.uncached import ALIGNMENT, CHUNK, UncachedFile


def write(path, close=True):
    with replacing(path) as file:
        writer = TensorWriter(file, {"m": ("F32", (5, 3)), "v": ("F64", (2,))}, {"who": "γ"})
        writer.write(np.arange(6, dtype=np.float32))
        writer.write(np.arange(6, 15, dtype=np.float32).reshape(3, 3))
        writer.write(np.array([1.5, -2.5]))
        if close:
            writer.close({"late": "known at the end"})
    return path


def test_the_safetensors_library_reads_what_was_written(tmp_path):
    with safe_open(write(tmp_path / "f.safetensors"), "numpy") as file:
        np.testing.assert_array_equal(file.get_tensor("m"), np.arange(15).reshape(5, 3))
        np.testing.assert_array_equal(file.get_tensor("v"), [1.5, -2.5])
        metadata = file.metadata()
    assert metadata["who"] == "γ"
    assert metadata["late"] == "known at the end"


def test_what_the_safetensors_library_wrote_is_read(tmp_path):
    values = np.random.default_rng(0).standard_normal((7, 4)).astype(np.float16)
    save_file({"m": values, "other": np.ones(3)}, tmp_path / "f.safetensors")
    file = TensorFile(tmp_path / "f.safetensors")
    np.testing.assert_array_equal(np.concatenate(list(file.blocks("m"))), values)


def test_the_digest_is_that_of_the_data(tmp_path):
    file = TensorFile(write(tmp_path / "f.safetensors"))
    file.verify()


def test_every_flipped_byte_is_noticed(tmp_path):
    path = write(tmp_path / "f.safetensors")
    sound = path.read_bytes()
    for position in (i for i, byte in enumerate(sound) if byte != ord(" ")):  # the header's padding
        path.write_bytes(sound[:position] + bytes([sound[position] ^ 1]) + sound[position + 1 :])
        with pytest.raises(UserError, match=str(path)):
            TensorFile(path).verify()


@pytest.mark.parametrize("rows", [5, 2])
def test_every_flipped_byte_is_noticed_when_all_blocks_have_been_read(tmp_path, rows):
    path = tmp_path / "f.safetensors"
    values = np.arange(15, dtype=np.float32).reshape(5, 3)
    with replacing(path) as file:
        writer = TensorWriter(file, {"m": ("F32", values.shape)}, {})
        writer.write(values)
        writer.close()
    (block,) = TensorFile(path).verified_blocks("m", rows)
    np.testing.assert_array_equal(block, values[:rows])
    sound = path.read_bytes()
    for position in (i for i, byte in enumerate(sound) if byte != ord(" ")):  # the header's padding
        path.write_bytes(sound[:position] + bytes([sound[position] ^ 1]) + sound[position + 1 :])
        with pytest.raises(UserError, match=str(path)):
            list(TensorFile(path).verified_blocks("m", rows))


def test_the_reason_why_a_write_failed_is_raised_by_the_next_call():
    with Path("/dev/full").open("r+b", buffering=0) as full:
        writer = TensorWriter(io.BytesIO(), {"m": ("F32", (3,))}, {})
        writer.file = full
        writer.write(np.zeros(3, np.float32))
        with pytest.raises(OSError, match="No space left"):
            writer.close()


@pytest.mark.parametrize("start", [ALIGNMENT, 8])  # the latter no file system takes directly
@pytest.mark.parametrize("sizes", [[3 * CHUNK + 5], [CHUNK - 1, 2, ALIGNMENT], [7], []])
def test_what_is_written_past_the_cache_reads_back(tmp_path, start, sizes):
    rng = np.random.default_rng(0)
    pieces = [rng.bytes(size) for size in sizes]
    with (tmp_path / "f").open("xb") as file:
        file.write(b"h" * start)
        file.flush()
        uncached = UncachedFile(file, start)
        for piece in pieces:
            uncached.write(memoryview(piece))
        uncached.flush()
        file.seek(0)
        file.write(b"H")
    assert (tmp_path / "f").read_bytes() == b"H" + b"h" * (start - 1) + b"".join(pieces)


def test_a_large_file_written_past_the_cache_is_verified(tmp_path):
    values = np.random.default_rng(0).standard_normal((LARGE // 4000 + 1, 1000), np.float32)
    with replacing(tmp_path / "g.safetensors") as file:
        writer = TensorWriter(file, {"g": ("F32", values.shape)}, {}, uncached=True)
        for first in range(0, len(values), 777):
            writer.write(values[first : first + 777])
        writer.close()
    found = TensorFile(tmp_path / "g.safetensors")
    found.verify()
    np.testing.assert_array_equal(found.read("g", 2), values)
    np.testing.assert_array_equal(load_file(found.path)["g"], values)


def test_what_the_disk_has_no_room_for_is_not_begun(tmp_path):
    larger = shutil.disk_usage(tmp_path).free // 4096 + 1
    said = r"m\.safetensors: No space left on device: it takes [\d,]+ bytes, and [\d,]+ are free"
    with pytest.raises(UserError, match=said), replacing(tmp_path / "m.safetensors") as file:
        TensorWriter(file, {"m": ("F32", (larger, 1024))}, {})
    assert not list(tmp_path.iterdir())


def test_the_data_are_aligned_to_eight_bytes(tmp_path):
    file = TensorFile(write(tmp_path / "f.safetensors"))
    assert file.tensors["m"].start % 8 == 0


def test_a_file_whose_tensors_are_incomplete_is_never_put_in_place(tmp_path):
    with (
        pytest.raises(RuntimeError, match="8 bytes were written of 60"),
        replacing(tmp_path / "f") as file,
    ):
        writer = TensorWriter(file, {"m": ("F32", (5, 3))}, {})
        writer.write(b"too few.")
        writer.close()
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_created_is_told_by_its_own_name(tmp_path):
    path = tmp_path / ("x" * 250)  # too long with what makes a temporary name of it
    with pytest.raises(UserError, match=f"Could not write {path}: File name too long"):
        write_text(path, "text")


def test_an_exception_leaves_the_old_file_and_nothing_else(tmp_path):
    write_text(tmp_path / "f", "old")
    with pytest.raises(KeyError), replacing(tmp_path / "f") as file:
        file.write(b"new")
        raise KeyError
    assert [p.read_text() for p in tmp_path.iterdir()] == ["old"]


def test_a_read_only_folder_is_an_error_in_plain_words(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(UserError, match=r"Could not write .*below: "):
        write_text(blocked / "below", "text")


def test_json_has_no_not_a_number(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "f.json", {"x": float("nan")})
    assert list(tmp_path.iterdir()) == []


def test_a_tensor_that_is_absent_or_of_other_rank_is_named(tmp_path):
    file = TensorFile(write(tmp_path / "f.safetensors"))
    with pytest.raises(UserError, match="no tensor 'absent'"):
        file.tensor("absent", 2)
    with pytest.raises(UserError, match=r"'v' has the shape \[2\]; 2 dimensions"):
        file.tensor("v", 2)


def test_what_a_killed_job_left_goes_when_its_file_is_written_again(tmp_path):
    left = tmp_path / ".f.0123abcd.tmp"
    left.write_text("half")
    write_text(tmp_path / "f", "whole")
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


def test_what_a_living_job_is_writing_stays(tmp_path):
    with replacing(tmp_path / "f") as slow:
        write_text(tmp_path / "f", "first")
        slow.write(b"second")
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("f", "second")]


def test_temporary_files_of_other_names_stay(tmp_path):
    names = [".other.0123abcd.tmp", ".f.safetensors.0123abcd.tmp", ".f.tmp", "f.0123abcd.tmp"]
    for name in names:
        (tmp_path / name).write_text("")
    write_text(tmp_path / "f", "whole")
    assert {p.name for p in tmp_path.iterdir()} == {"f", *names}


@pytest.mark.parametrize("content", [b"", b"garbage" * 10])
def test_a_file_of_tensors_that_is_none_is_named_with_what_to_do(tmp_path, content):
    path = tmp_path / "f.safetensors"
    path.write_bytes(content)
    with pytest.raises(UserError, match=f"^{path} .* Delete it and run again"):
        TensorFile(path)


def test_a_file_with_the_sha256_of_version_0_2_still_verifies(tmp_path):
    values = np.arange(15, dtype=np.float32).reshape(5, 3)
    metadata = {"sha256": hashlib.sha256(values.tobytes()).hexdigest()}
    checked = checksum([[["m", "F32", [5, 3]]], metadata])
    save_file({"m": values}, tmp_path / "f", {**metadata, "checksum": checked})
    file = TensorFile(tmp_path / "f")
    file.verify()
    assert file.digest == f"sha256:{metadata['sha256']}"
    np.testing.assert_array_equal(next(file.verified_blocks("m", 2)), values[:2])
    content = bytearray((tmp_path / "f").read_bytes())
    content[-1] ^= 1
    (tmp_path / "f").write_bytes(content)
    with pytest.raises(UserError, match="damaged: its bytes have the digest sha256:"):
        TensorFile(tmp_path / "f").verify()
