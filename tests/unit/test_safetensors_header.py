"""The header of a safetensors file tells where its tensors are, or why it cannot be trusted."""

import json
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save, save_file

from unembedding.checkpoints.formats.safetensors import read_header
from unembedding.checkpoints.sources import LocalFile, LocalFolder, read
from unembedding.errors import GeometryError

FILE = "model.safetensors"
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 4096\n"
ENTRY = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}


class CountingFolder(LocalFolder):
    """A folder that notes which bytes are asked for."""

    def __init__(self, folder):
        super().__init__(folder)
        self.asked = []

    def stream(self, name, start, stop):
        self.asked.append((start, stop))
        return super().stream(name, start, stop)


def header_of(folder):
    return read_header(LocalFolder(folder), FILE)


def written(folder, header, data=bytes(24)):
    """Write a file with this header, valid or not, in front of the data."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    (folder / FILE).write_bytes(len(text).to_bytes(8, "little") + text + data)
    return folder


def refusal(folder):
    with pytest.raises(GeometryError) as caught:
        header_of(folder)
    message = str(caught.value)
    assert message.startswith(str(folder / FILE))
    return message.removeprefix(str(folder / FILE)).strip()


def test_each_tensor_is_where_the_library_wrote_it(tmp_path):
    arrays = {
        "wide": np.arange(12, dtype=np.float64).reshape(3, 4),
        "lm_head.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
        "half": np.arange(5, dtype=np.float16),
        "ids": np.arange(7, dtype=np.int64),
        "scalar": np.array(3.5, np.float32),
        "empty": np.zeros((0, 4), np.float32),
    }
    save_file(arrays, tmp_path / FILE, metadata={"format": "pt"})
    source = LocalFolder(tmp_path)
    tensors, metadata = read_header(source, FILE)
    assert metadata == {"format": "pt"}
    assert set(tensors) == set(arrays)
    for name, array in arrays.items():
        tensor = tensors[name]
        assert (tensor.name, tensor.file, tensor.shape) == (name, FILE, array.shape)
        stored = read(source, FILE, tensor.start, tensor.start + array.nbytes)
        assert stored == array.tobytes()
    assert {name: tensor.dtype for name, tensor in tensors.items()} == {
        "wide": "F64",
        "lm_head.weight": "F32",
        "half": "F16",
        "ids": "I64",
        "scalar": "F32",
        "empty": "F32",
    }


def test_a_type_that_is_not_known_is_described_and_not_judged(tmp_path):
    written(tmp_path, {"scale": {**ENTRY, "dtype": "F8_E8M0"}, "lm_head.weight": ENTRY | {
        "data_offsets": [24, 48]}}, bytes(48))  # fmt: skip
    tensors, _ = header_of(tmp_path)
    assert tensors["scale"].dtype == "F8_E8M0"
    assert tensors["lm_head.weight"].stop == (tmp_path / FILE).stat().st_size


def test_only_the_header_is_read(tmp_path):
    save_file({"lm_head.weight": np.zeros((1000, 1000), np.float32)}, tmp_path / FILE)
    source = CountingFolder(tmp_path)
    tensors, _ = read_header(source, FILE)
    assert max(stop for _, stop in source.asked) <= tensors["lm_head.weight"].start
    assert len(source.asked) == 2


def test_a_git_lfs_pointer_is_told_from_weights(tmp_path):
    (tmp_path / FILE).write_bytes(POINTER)
    message = refusal(tmp_path)
    assert message.startswith(f"is a Git LFS pointer, not weights: {len(POINTER)} bytes of text.")
    assert "git lfs pull" in message


@pytest.mark.parametrize("size", [0, 1, 7])
def test_a_file_too_short_for_a_length_is_refused(tmp_path, size):
    (tmp_path / FILE).write_bytes(bytes(size))
    assert refusal(tmp_path) == f"has {size} bytes; a safetensors file has at least 8."


@pytest.mark.parametrize("length", [2**60, 2**64 - 1, 100_000_001, 17])
def test_a_header_that_runs_past_the_end_is_refused_unread(tmp_path, length):
    (tmp_path / FILE).write_bytes(length.to_bytes(8, "little") + bytes(16))
    assert f"announces a header of {length} bytes and has 24 bytes in all" in refusal(tmp_path)


def test_a_header_larger_than_any_real_one_is_refused_unread(tmp_path):
    with (tmp_path / FILE).open("wb") as file:
        file.write((2**24 + 1).to_bytes(8, "little"))
        file.truncate(2**30)  # sparse
    assert "has a header of 16777217 bytes; up to 16777216 are read" in refusal(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[]",
        b"5",
        b"null",
        b'"text"',
        b"\xff\xfe\xfd",
        b"[" * 100_000,
        b'{"a": 1}',
        b'{"a": []}',
        b'{"a": {}}',
        b'{"__metadata__": "text"}',
        b'{"__metadata__": [1]}',
        b'{"a": {"dtype": "F32", "shape": [1e400], "data_offsets": [0, 24]}}',
        b'{"a": {"dtype": "F32", "shape": [' + b"9" * 5000 + b'], "data_offsets": [0, 24]}}',
    ],
    ids=range(15),
)
def test_a_header_that_describes_no_tensors_is_broken(tmp_path, text):
    assert "has a broken safetensors header" in refusal(written(tmp_path, text))


@pytest.mark.parametrize(
    "change",
    [
        {"shape": None},
        {"shape": 6},
        {"shape": "23"},
        {"shape": [2.0, 3]},
        {"shape": [True, 6]},
        {"shape": [-2, -3]},
        {"shape": [[2, 3]]},
        {"data_offsets": None},
        {"data_offsets": [0]},
        {"data_offsets": [0, 12, 24]},
        {"data_offsets": [0, 24.0]},
        {"data_offsets": ["0", "24"]},
        {"data_offsets": "01"},
    ],
    ids=str,
)
def test_a_tensor_described_in_another_type_is_broken(tmp_path, change):
    written(tmp_path, {"lm_head.weight": {**ENTRY, **change}})
    assert "has a broken safetensors header" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data_offsets": [-24, 0]}, "lies from byte -24 to 0"),
        ({"data_offsets": [24, 0]}, "lies from byte 24 to 0"),
        ({"data_offsets": [0, 23]}, "of shape [2, 3] and type F32 cannot have 23 bytes"),
        ({"shape": [2, 4]}, "of shape [2, 4] and type F32 cannot have 24 bytes"),
        ({"shape": [2**40, 2**40]}, "cannot have 24 bytes"),
        ({"shape": []}, "of shape [] and type F32 cannot have 24 bytes"),
        ({"dtype": "BF16"}, "of shape [2, 3] and type BF16 cannot have 24 bytes"),
        ({"data_offsets": [8, 32]}, "ends at byte 32 of the data, and the file holds 24 bytes"),
        ({"data_offsets": [2**62, 2**62 + 24]}, f"ends at byte {2**62 + 24} of the data"),
    ],
    ids=str,
)
def test_a_tensor_that_cannot_be_where_it_is_said_to_be_is_named(tmp_path, change, message):
    written(tmp_path, {"lm_head.weight": {**ENTRY, **change}})
    found = refusal(tmp_path)
    assert "tensor 'lm_head.weight'" in found
    assert message in found


def test_a_truncated_file_tells_the_expected_and_the_actual_bytes(tmp_path):
    content = save({"lm_head.weight": np.ones((2, 3), np.float32)})
    (tmp_path / FILE).write_bytes(content[:-1])
    message = refusal(tmp_path)
    assert message.startswith("is truncated: tensor 'lm_head.weight' ends at byte 24 of the data")
    assert "holds 23 bytes of data" in message


def test_tensors_that_overlap_are_named(tmp_path):
    other = {**ENTRY, "data_offsets": [20, 44]}
    written(tmp_path, {"b": other, "a": ENTRY}, bytes(44))
    assert refusal(tmp_path) == "is broken: tensors 'a' and 'b' overlap."


def test_bytes_between_tensors_and_behind_the_last_are_refused(tmp_path):
    later = {**ENTRY, "data_offsets": [27, 51]}
    written(tmp_path, {"b": later, "a": ENTRY}, bytes(51))
    assert refusal(tmp_path) == "is broken: 3 bytes before 'b' are no tensor's."
    written(tmp_path, {"a": ENTRY}, bytes(26))
    assert refusal(tmp_path) == "is broken: its last 2 bytes are no tensor's."


def test_a_name_that_stands_twice_is_refused(tmp_path):
    entry = json.dumps(ENTRY).encode()
    written(tmp_path, b'{"a": ' + entry + b', "a": ' + entry + b"}")
    assert refusal(tmp_path) == "has a broken safetensors header: 'a' stands twice"


def test_a_file_without_tensors_has_none(tmp_path):
    assert header_of(written(tmp_path, {}, b"")) == ({}, {})


REAL = save({"a": np.ones((4, 3), np.float32), "b": np.ones(5, np.float16)}, {"format": "pt"})


@settings(derandomize=True, max_examples=300)
@given(st.lists(st.tuples(st.integers(0, len(REAL) - 1), st.integers(0, 255)), max_size=3),
       st.integers(0, len(REAL)))  # fmt: skip
def test_no_damage_makes_it_read_outside_the_file(tmp_path_factory, changes, size):
    folder = tmp_path_factory.mktemp("damaged")
    content = bytearray(REAL)
    for position, byte in changes:
        content[position] = byte
    (folder / FILE).write_bytes(content[:size])
    try:
        tensors, _ = header_of(folder)
    except GeometryError as error:
        assert str(folder / FILE) in str(error)
        return
    for tensor in tensors.values():
        if tensor.dtype in ("F32", "F16"):
            assert 8 <= tensor.start <= tensor.stop <= size


def test_the_header_of_one_file_is_read_whatever_lies_beside_it(tmp_path):
    save_file({"a": np.ones((3, 2))}, tmp_path / "one.safetensors")
    (tmp_path / "lost.json").symlink_to("nowhere")
    (tmp_path / os.fsdecode(b"odd\xff")).touch()
    tensors, _ = read_header(LocalFile(tmp_path / "one.safetensors"), "one.safetensors")
    assert tensors["a"].shape == (3, 2)
