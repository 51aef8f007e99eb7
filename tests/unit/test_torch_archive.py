"""A PyTorch archive tells where its tensors are, without PyTorch and without running it."""

import builtins
import os
import pickle
import subprocess
import sys
import tracemalloc
import zipfile
import zlib
from argparse import Namespace
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.serialization import get_crc32_options, set_crc32_options

from unembedding.checkpoints.formats import torch_pickle as tensor_pickle
from unembedding.checkpoints.formats.torch_zip import locate, read_archive
from unembedding.checkpoints.sources import LocalFolder, read
from unembedding.errors import GeometryError

FILE = "pytorch_model.bin"
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 4096\n"
SCRIPTS = Path(__file__).parents[2] / "src"


def matrix(rows=5, width=4, dtype=torch.float32):
    return torch.arange(rows * width).reshape(rows, width).to(dtype) / 7


def saved(folder, state, **options):
    torch.save(state, folder / FILE, **options)
    return folder


def tensors_of(folder):
    """The tensors of the archive, each with its offset in the file."""
    source = LocalFolder(folder)
    return {n: locate(source, tensor) for n, tensor in read_archive(source, FILE).items()}


def stored_bytes(folder, tensor):
    return read(LocalFolder(folder), FILE, tensor.start, tensor.stop)


def bytes_of(tensor):
    return tensor.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes()


def refusal(folder):
    with pytest.raises(GeometryError) as caught:
        tensors_of(folder)
    message = str(caught.value)
    assert message.startswith(str(folder / FILE))
    return message.removeprefix(str(folder / FILE)).lstrip(": ")


def rewritten(folder, change, compression=zipfile.ZIP_STORED):
    """Write the archive anew, each entry as ``change(name, content)`` has it; None leaves it out.

    ``change`` is asked for entry names without the folder that is around them.
    """
    with zipfile.ZipFile(folder / FILE) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(folder / FILE, "w", compression) as archive:
        for name, content in entries.items():
            changed = change(name.partition("/")[2], content)
            if changed is not None:
                archive.writestr(name, changed)
    return folder


def with_pickle(folder, content):
    saved(folder, {"lm_head.weight": matrix()})
    return rewritten(folder, lambda name, old: content if name == "data.pkl" else old)


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        (torch.float64, "F64"),
        (torch.float32, "F32"),
        (torch.float16, "F16"),
        (torch.bfloat16, "BF16"),
    ],
)
def test_a_matrix_is_where_its_bytes_are(tmp_path, dtype, name):
    gamma = matrix(dtype=dtype)
    saved(tmp_path, {"ids": torch.arange(3), "lm_head.weight": gamma, "bias": torch.ones(2)})
    found = tensors_of(tmp_path)["lm_head.weight"]
    assert (found.dtype, found.shape, found.contiguous) == (name, (5, 4), True)
    assert stored_bytes(tmp_path, found) == bytes_of(gamma)


def test_every_offset_is_the_one_torch_computes(tmp_path):
    shared = matrix(7, 3)
    state = OrderedDict(
        a=matrix(100, 30, torch.bfloat16),
        b=torch.ones(1),
        c=shared,
        d=shared,
        e=shared[2:5],
        f=matrix(3, 3, torch.float16),
        g=torch.zeros(0, 4),
        h=torch.nn.Parameter(matrix()),
    )
    saved(tmp_path, state)
    with FakeTensorMode():
        fake = torch.load(tmp_path / FILE, weights_only=True)
    assert {name: tensor.start for name, tensor in tensors_of(tmp_path).items()} == {
        name: t.untyped_storage()._checkpoint_offset + t.storage_offset() * t.itemsize
        for name, t in fake.items()
    }


def test_a_module_s_state_dict_is_read(tmp_path):
    module = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.LayerNorm(5))
    saved(tmp_path, module.state_dict())
    found = tensors_of(tmp_path)
    assert {name: tensor.shape for name, tensor in found.items()} == {
        "0.weight": (5, 4),
        "0.bias": (5,),
        "1.weight": (5,),
        "1.bias": (5,),
    }
    assert stored_bytes(tmp_path, found["0.weight"]) == bytes_of(module[0].weight)


def test_a_parameter_is_its_tensor(tmp_path):
    gamma = torch.nn.Parameter(matrix(dtype=torch.bfloat16))
    found = tensors_of(saved(tmp_path, {"lm_head.weight": gamma}))["lm_head.weight"]
    assert stored_bytes(tmp_path, found) == bytes_of(gamma)


def test_tied_tensors_are_in_one_place(tmp_path):
    gamma = matrix()
    found = tensors_of(saved(tmp_path, {"wte.weight": gamma, "lm_head.weight": gamma}))
    assert found["wte.weight"].start == found["lm_head.weight"].start


def test_some_rows_of_a_larger_storage_are_found_within_it(tmp_path):
    whole = matrix(9, 4, torch.float16)
    found = tensors_of(saved(tmp_path, {"lm_head.weight": whole[3:7]}))["lm_head.weight"]
    assert (found.shape, found.contiguous) == ((4, 4), True)
    assert stored_bytes(tmp_path, found) == bytes_of(whole[3:7])


@pytest.mark.parametrize(
    "view",
    [
        lambda whole: whole.t(),
        lambda whole: whole[:, :2],
        lambda whole: whole[::2],
        lambda whole: whole[:1].expand(6, -1),
    ],
    ids=["transposed", "columns", "every second row", "expanded"],
)
def test_numbers_in_another_order_are_marked(tmp_path, view):
    tensor = view(matrix())
    found = tensors_of(saved(tmp_path, {"lm_head.weight": tensor}))["lm_head.weight"]
    assert found.shape == tuple(tensor.shape)
    assert not found.contiguous


@settings(derandomize=True, max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_a_tensor_is_contiguous_where_torch_says_so(tmp_path_factory, shape, random):
    order = list(range(len(shape)))
    random.shuffle(order)
    tensor = torch.arange(torch.Size(shape).numel(), dtype=torch.float32).reshape(shape)
    tensor = tensor.permute(order)
    folder = saved(tmp_path_factory.mktemp("views"), {"x": tensor})
    found = tensors_of(folder)["x"]
    assert found.contiguous == tensor.is_contiguous()
    if found.contiguous:
        assert stored_bytes(folder, found) == bytes_of(tensor)


@pytest.mark.parametrize("wrap", ["model", "state_dict"])
def test_the_state_dict_inside_a_training_checkpoint_is_found(tmp_path, wrap):
    gamma = matrix()
    saved(tmp_path, {wrap: OrderedDict({"lm_head.weight": gamma}), "step": 1000, "lr": 1e-4})
    found = tensors_of(tmp_path)
    assert set(found) == {"lm_head.weight"}
    assert stored_bytes(tmp_path, found["lm_head.weight"]) == bytes_of(gamma)


@pytest.mark.parametrize("other", [None, "state_dict"])
def test_two_tensors_of_one_name_in_a_training_checkpoint_are_refused(tmp_path, other):
    first, second = ({"lm_head.weight": matrix()} for _ in range(2))
    content = {other: first, "model": second} if other else {**first, "model": second}
    message = refusal(saved(tmp_path, content))
    assert "holds 'lm_head.weight' twice" in message


def test_types_that_are_no_plain_numbers_do_not_hide_the_others(tmp_path):
    gamma = matrix()
    rotations = torch.ones(3, dtype=torch.complex64)
    saved(tmp_path, {"freqs_cis": rotations, "mask": torch.ones(3, dtype=torch.bool), "w": gamma})
    found = tensors_of(tmp_path)
    assert stored_bytes(tmp_path, found["w"]) == bytes_of(gamma)
    assert found["freqs_cis"].dtype == "ComplexFloat"


def test_only_the_directory_and_the_pickle_of_a_large_archive_are_read(tmp_path):
    asked = []

    class Counting(LocalFolder):
        def stream(self, name, start, stop):
            asked.append(stop - start)
            return super().stream(name, start, stop)

    saved(tmp_path, {"a": torch.zeros(2**20), "lm_head.weight": torch.zeros(1000, 1000)})
    locate(source := Counting(tmp_path), read_archive(source, FILE)["lm_head.weight"])
    assert (tmp_path / FILE).stat().st_size > 8_000_000
    assert sum(asked) < 300_000


def test_torch_is_not_imported(tmp_path):
    saved(tmp_path, {"lm_head.weight": matrix()})
    program = (
        "import sys; from pathlib import Path;"
        "from unembedding.checkpoints.sources import LocalFolder;"
        "from unembedding.checkpoints.formats.torch_zip import read_archive;"
        f"found = read_archive(LocalFolder(Path({str(tmp_path)!r})), {FILE!r});"
        "print(*found, 'torch' in sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": str(SCRIPTS)}
    found = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert found.stdout == "lm_head.weight False\n"


def test_the_format_before_torch_1_6_is_refused_with_a_way_out(tmp_path):
    saved(tmp_path, {"lm_head.weight": matrix()}, _use_new_zipfile_serialization=False)
    message = refusal(tmp_path)
    assert message.startswith("is no zip archive. Checkpoints from before PyTorch 1.6")
    assert "save it again" in message


def test_a_git_lfs_pointer_is_told_from_weights(tmp_path):
    (tmp_path / FILE).write_bytes(POINTER)
    message = refusal(tmp_path)
    assert message.startswith(f"is a Git LFS pointer, not weights: {len(POINTER)} bytes of text.")


@pytest.mark.parametrize("left", [30, 1000, -1, -100])
def test_a_truncated_archive_is_called_that_with_its_size(tmp_path, left):
    saved(tmp_path, {"lm_head.weight": matrix(100, 100)})
    content = (tmp_path / FILE).read_bytes()[:left]
    (tmp_path / FILE).write_bytes(content)
    assert refusal(tmp_path) == (
        f"is truncated: a zip archive whose directory is missing after {len(content)} bytes."
    )


@pytest.mark.parametrize("content", [b"", b"PK", bytes(1000), b"PK\x05\x06"])
def test_what_is_no_archive_is_refused(tmp_path, content):
    (tmp_path / FILE).write_bytes(content)
    assert refusal(tmp_path).startswith("is no zip archive.")


class Calls:
    """Pickles as a call, as a malicious file would."""

    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize(
    ("wrap", "protocol"),
    [
        (lambda evil: evil, 2),
        (lambda evil: {"lm_head.weight": evil}, 2),
        (lambda evil: {"model": OrderedDict(deep=[(1, {"x": evil})])}, 4),
        (lambda evil: [evil, {"lm_head.weight": 1}], 5),
    ],
    ids=["alone", "as a tensor", "deep inside", "first in a list"],
)
@pytest.mark.parametrize(
    ("evil", "name"),
    [
        (Calls(os.system, "mkdir ran"), "posix.system"),
        (Calls(os.mkdir, "ran"), "posix.mkdir"),
        (Calls(builtins.eval, "__import__('os').mkdir('ran')"), "(__builtin__|builtins).eval"),
    ],
    ids=["system", "mkdir", "eval"],
)
def test_a_malicious_pickle_is_refused_by_name_and_never_run(
    tmp_path, monkeypatch, evil, name, wrap, protocol
):
    monkeypatch.chdir(tmp_path)
    content = pickle.dumps(wrap(evil), protocol)
    with_pickle(tmp_path, content)
    with pytest.raises(GeometryError, match=f"its pickle asks for {name}, .* refused"):
        tensors_of(tmp_path)
    assert not Path("ran").exists()
    with suppress(TypeError):  # it would have run
        pickle.loads(content)
    assert Path("ran").exists()


@pytest.mark.parametrize(
    ("module", "attribute"),
    [
        ("torch", "load"),
        ("torch._utils", "sys"),
        ("torch._utils", "_rebuild_tensor_v2.__globals__"),
    ],
)
def test_only_the_names_of_tensors_are_looked_up(tmp_path, module, attribute):
    strings = [b"\x8c" + bytes([len(text)]) + text.encode() for text in (module, attribute)]
    with_pickle(tmp_path, b"\x80\x04" + b"".join(strings) + b"\x93.")  # STACK_GLOBAL
    message = refusal(tmp_path)
    assert message.startswith(f"its pickle asks for {module}.{attribute}, which no weights need")


def test_a_training_checkpoint_with_its_arguments_is_refused_with_a_way_out(tmp_path):
    saved(tmp_path, {"model": {"lm_head.weight": matrix()}, "args": Namespace(lr=1)})
    message = refusal(tmp_path)
    assert message.startswith("its pickle asks for argparse.Namespace")
    assert "save its state dict" in message


REBUILD = b"ctorch._utils\n_rebuild_tensor_v2\n"
STORAGE = (
    b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x14tQ"
)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x80\x02",
        b"not a pickle",
        b"\x80\x02}",
        b"\x80\x02K\x01Q.",  # a persistent id that is a number
        b"\x80\x02X\x05\x00\x00\x00otherQ.",
        REBUILD + b"(tR.",
        REBUILD + b"(K\x01K\x00K\x02K\x03\x86K\x03K\x01\x86tR.",
        REBUILD + b"(X\x03\x00\x00\x00F32X\x01\x00\x00\x000\x86K\x00K\x02\x85K\x01\x85tR.",
        REBUILD + b"(" + STORAGE + b"J\xff\xff\xff\xffK\x02\x85K\x01\x85tR.",  # offset −1
        REBUILD + b"(" + STORAGE + b"K\x00J\xfe\xff\xff\xff\x85K\x01\x85tR.",  # length −2
        REBUILD + b"(" + STORAGE + b"K\x00K\x02\x85)tR.",  # no stride
        REBUILD + b"(" + STORAGE + b"K\x00K\x02\x85K\x01\x85tR}X\x05\x00\x00\x00shapeK\x01sb.",
    ],
    ids=range(13),
)
def test_a_pickle_that_builds_no_tensors_is_broken_or_refused(tmp_path, content):
    message = refusal(with_pickle(tmp_path, content))
    assert "pickle" in message


def test_a_pickle_that_contains_itself_is_read_to_an_end(tmp_path):
    state = {"lm_head.weight": 1}
    state["model"] = state
    assert tensors_of(with_pickle(tmp_path, pickle.dumps(state, 2))) == {}


@pytest.mark.parametrize("content", [1, [1, 2], "text", None, {1: 2}, {}])
def test_an_archive_without_tensors_has_none(tmp_path, content):
    assert tensors_of(saved(tmp_path, content)) == {}


def test_a_compressed_pickle_is_refused(tmp_path):
    saved(tmp_path, {"lm_head.weight": matrix()})
    rewritten(tmp_path, lambda name, content: content, zipfile.ZIP_DEFLATED)
    assert "is compressed" in refusal(tmp_path)


def test_a_compressed_tensor_is_refused_by_name(tmp_path):
    saved(tmp_path, {"lm_head.weight": matrix()})
    with zipfile.ZipFile(tmp_path / FILE) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(tmp_path / FILE, "w") as archive:
        for name, content in entries.items():
            archive.writestr(name, content, zipfile.ZIP_DEFLATED if "/data/" in name else None)
    assert refusal(tmp_path).startswith("is compressed (tensor 'lm_head.weight')")


def test_a_bomb_is_not_unpacked(tmp_path):
    with zipfile.ZipFile(tmp_path / FILE, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", bytes(2**27))
    assert (tmp_path / FILE).stat().st_size < 200_000
    assert "is compressed" in refusal(tmp_path)


def test_an_implausibly_large_pickle_is_not_read(tmp_path):
    with (
        zipfile.ZipFile(tmp_path / FILE, "w") as archive,
        archive.open("archive/data.pkl", "w") as entry,
    ):
        for _ in range(65):
            entry.write(bytes(2**20))
    assert refusal(tmp_path).startswith(f"claims {65 * 2**20} bytes for archive/data.pkl")


def test_an_archive_without_a_pickle_is_no_checkpoint(tmp_path):
    saved(tmp_path, {"lm_head.weight": matrix()})
    rewritten(tmp_path, lambda name, content: None if name == "data.pkl" else content)
    assert refusal(tmp_path) == "is a zip archive without data.pkl, so no PyTorch checkpoint."


def test_a_missing_storage_is_named(tmp_path):
    saved(tmp_path, {"bias": torch.ones(2), "lm_head.weight": matrix()})
    rewritten(tmp_path, lambda name, content: None if name == "data/1" else content)
    assert refusal(tmp_path) == "lacks the storage of tensor 'lm_head.weight'."


@pytest.mark.parametrize("change", [lambda content: content[:-4], lambda content: content * 2])
def test_a_storage_of_another_size_is_named_with_its_bytes(tmp_path, change):
    saved(tmp_path, {"lm_head.weight": matrix()})
    rewritten(tmp_path, lambda name, content: change(content) if name == "data/0" else content)
    size = len(change(bytes(80)))
    assert refusal(tmp_path) == (
        f"is broken: the storage of tensor 'lm_head.weight' has {size} bytes; 80 were expected."
    )


def test_a_tensor_that_ends_behind_its_storage_is_named(tmp_path):
    tensor = REBUILD + b"(" + STORAGE + b"K\x00K\x19\x85K\x01\x85tR"  # 25 numbers of 20
    with_pickle(tmp_path, b"}X\x01\x00\x00\x00w" + tensor + b"s.")
    assert refusal(tmp_path) == ("is broken: tensor 'w' needs 100 bytes of a storage that has 80.")


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("name", ["archive/data/0", "archive2/data.pkl", "archive2/data/0"])
def test_an_archive_with_an_entry_that_nobody_asked_for_is_refused(tmp_path, name):
    saved(tmp_path, {"lm_head.weight": matrix()})
    root = zipfile.ZipFile(tmp_path / FILE).namelist()[0].partition("/")[0]
    with zipfile.ZipFile(tmp_path / FILE, "a") as archive:
        archive.writestr(name.replace("archive", root), bytes(80))
    assert "have the same name, or lie outside" in refusal(tmp_path)


def test_a_pickle_deeper_in_the_archive_is_not_taken_for_its_own(tmp_path):
    gamma = matrix()
    saved(tmp_path, {"lm_head.weight": gamma})
    with zipfile.ZipFile(tmp_path / FILE) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    root = next(iter(entries)).partition("/")[0]
    with zipfile.ZipFile(tmp_path / FILE, "w") as archive:
        for name in (f"{root}/a/data.pkl", *entries):
            archive.writestr(name, entries.get(name, b"\x80\x02}."))
    assert stored_bytes(tmp_path, tensors_of(tmp_path)["lm_head.weight"]) == bytes_of(gamma)


LONG_TUPLE = b"(" + b"K\x00" * 100_000 + b"tq\x01"


@pytest.mark.parametrize(
    "content",
    [
        b"ctorch\n" + b"x" * 1_000_000 + b"Storage\n.",
        LONG_TUPLE + b"h\x01Q.",
        REBUILD + LONG_TUPLE + b"R.",
    ],
    ids=["name", "storage", "arguments"],
)
def test_a_pickle_whose_steps_would_take_long_each_is_refused_at_the_first(tmp_path, content):
    assert "pickle" in refusal(with_pickle(tmp_path, content))


def test_big_endian_numbers_are_refused(tmp_path):
    saved(tmp_path, {"lm_head.weight": matrix()})
    rewritten(tmp_path, lambda name, content: b"big" if name == "byteorder" else content)
    assert refusal(tmp_path) == "is stored in big-endian order, which is not supported."


def test_a_directory_that_points_elsewhere_is_broken(tmp_path):
    saved(tmp_path, {"lm_head.weight": matrix()})
    content = (tmp_path / FILE).read_bytes()
    header = content.rindex(b"PK\x03\x04", 0, content.index(b"/data/0"))
    (tmp_path / FILE).write_bytes(content[:header] + b"XXXX" + content[header + 4 :])
    assert "where there is no zip entry" in refusal(tmp_path)


@pytest.mark.parametrize("shift", [-1000, 10, 1000])
def test_a_directory_that_points_outside_the_file_is_broken(tmp_path, shift):
    saved(tmp_path, {"lm_head.weight": matrix(100, 100)})
    rewritten(tmp_path, lambda name, content: content)
    content = bytearray((tmp_path / FILE).read_bytes())
    end = content.rindex(b"PK\x05\x06")
    directory = int.from_bytes(content[end + 16 : end + 20], "little")
    content[end + 16 : end + 20] = (directory + shift).to_bytes(4, "little")
    (tmp_path / FILE).write_bytes(content)
    assert "where there is no zip entry" in refusal(tmp_path)


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    folder = tmp_path_factory.mktemp("real")
    saved(folder, {"a": matrix(), "b": torch.nn.Parameter(matrix(dtype=torch.bfloat16))})
    return (folder / FILE).read_bytes()


@settings(derandomize=True, max_examples=200, deadline=None)
@given(st.data())
def test_no_damage_makes_it_fail_in_another_way(tmp_path_factory, real, data):
    content = bytearray(real)
    places = [i for i in range(len(real)) if real[i]]  # most of an archive is padding
    for position in data.draw(st.lists(st.sampled_from(places), min_size=1, max_size=4)):
        content[position] = data.draw(st.integers(0, 255))
    folder = tmp_path_factory.mktemp("damaged")
    (folder / FILE).write_bytes(content)
    try:
        tensors_of(folder)
    except GeometryError as error:
        assert str(folder / FILE) in str(error)


COPY = b"ccollections\nOrderedDict\nh\0\x85R"  # of what was remembered first
TUPLES = b"2\x86" * 60  # each holds the last one twice: 2^60 to whoever looks at all of it


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\2}r\xff\xff\xff\xff.",
        b"\x80\2}K\1" + TUPLES + b"K\1s.",
        b"\x80\2((X\7\0\0\0storagectorch\nFloatStorage\nK\1" + TUPLES + b"tQ.",
        b"\x80\2ctorch\nSize\n(" + b"K\1" * 10_000 + b"t\x85R.",
        b"\x80\4\x96\xff\xff\xff\xff\xff\xff\xff\0.",
        b"\x80\4K\1" + TUPLES + b"\x8c\1x\x93.",
        b"\x80\4K\1" + b"\x85" * 20_000 + b"\x8c\1x\x93.",
        b"\x80\2ccollections\nOrderedDict\nK\1" + TUPLES + b"K\1\x86\x85\x85R.",
        b"\x80\2ccollections\nOrderedDict\nK\1" + b"\x85" * 20_000 + b"K\1\x86\x85\x85R.",
        b"\x80\2](" + b"K\1K\2\x86" * 20_000 + b"eq\0" + COPY * 20_000 + b".",
    ],
    ids=[
        *("memo index", "key", "storage", "shape", "length"),
        *("name", "deep name", "pairs", "deep pairs", "copies"),
    ],
)
def test_a_small_pickle_takes_little_time_and_memory(tmp_path, content):
    tracemalloc.start()
    try:
        with suppress(GeometryError):
            tensors_of(with_pickle(tmp_path, content))
        assert tracemalloc.get_traced_memory()[1] < 20 * 2**20
    finally:
        tracemalloc.stop()


def test_a_pickle_has_a_bounded_number_of_steps(tmp_path, monkeypatch):
    monkeypatch.setattr(tensor_pickle, "MOST_OPCODES", 1000)
    message = refusal(with_pickle(tmp_path, b"\x80\2}" + b"N0" * 1000 + b"."))
    assert "more than 1000 steps" in message


def test_a_directory_that_claims_gigabytes_is_refused_unread(tmp_path):
    saved(tmp_path, {"lm_head.weight": matrix()})
    claimed = 3 * 2**30
    end = b"PK\5\6" + bytes(8) + claimed.to_bytes(4, "little") + bytes(6)
    with (tmp_path / FILE).open("r+b") as file:
        file.truncate(claimed + 100)  # a hole, which takes no room
        file.seek(0, 2)
        file.write(end)
    assert "broken zip directory" in refusal(tmp_path)


def test_a_damaged_pickle_is_refused(tmp_path):
    saved(tmp_path, {"lm_head.weight": matrix()})
    content = (tmp_path / FILE).read_bytes()
    (tmp_path / FILE).write_bytes(content.replace(b"FloatStorage", b"HalfStorage_"))
    assert "data.pkl are not those of its checksum" in refusal(tmp_path)


def test_a_tensor_has_the_checksum_of_its_storage_where_it_fills_it(tmp_path):
    whole = matrix()
    tensors = tensors_of(saved(tmp_path, {"whole": whole, "part": whole[1:]}))
    assert tensors["whole"].crc32 == zlib.crc32(bytes_of(whole))
    assert tensors["part"].crc32 is None


def test_an_archive_without_checksums_is_read(tmp_path):
    computed = get_crc32_options()
    set_crc32_options(False)
    try:
        saved(tmp_path, {"lm_head.weight": matrix()})
    finally:
        set_crc32_options(computed)
    assert tensors_of(tmp_path)["lm_head.weight"].crc32 is None


def test_a_tensor_that_is_negated_lazily_is_refused(tmp_path):
    saved(tmp_path, {"lm_head.weight": torch._neg_view(matrix())})
    assert "negated or conjugated lazily" in refusal(tmp_path)
