"""Feeds a reader broken files, in a process with little memory: `python fuzzing.py READER COUNT`.

Inputs are changes to real files, or put together from pieces that are well formed and hostile, all
from a seed. Ends with an error where a reader raises anything but GeometryError, runs code, opens a
file, takes more than `LONGEST` seconds for one input, or memory without bound.
"""

import codecs
import io
import json
import pickle
import random
import resource
import signal
import sys
import time
import zipfile
from collections import Counter, OrderedDict
from collections.abc import Callable
from pathlib import Path

from unembedding.checkpoints.checkpoint import Checkpoint
from unembedding.checkpoints.formats.safetensors import read_header
from unembedding.checkpoints.formats.torch_zip import locate, read_archive
from unembedding.checkpoints.sources import LocalFolder
from unembedding.errors import GeometryError

LONGEST = 2.0
MOST_MEMORY = 256 * 2**20  # beyond what the process has when it starts
HOSTILE = [
    2**60,
    2**63,
    -1,
    0,
    2**31,
    2**32 - 1,
    10**400,
    1e308,
    None,
    True,
    "",
    "a" * 5000,
    [],
    {},
]
RUNS_CODE = ("exec", "compile", "os.", "subprocess.", "socket.", "ctypes.", "open", "shutil.")


class Memory(LocalFolder):
    """A checkpoint whose files are in memory."""

    def __init__(self, **files: bytes) -> None:
        self.folder, self.files = (
            Path("fuzzed"),
            {n.replace("__", "."): c for n, c in files.items()},
        )
        self.bytes_fetched, self.warnings, self.verified = 0, [], set()

    def sizes(self):
        return {name: len(content) for name, content in self.files.items()}

    def stream(self, name, start, stop):
        assert 0 <= start <= stop <= len(self.files[name]), "read outside the file"
        yield self.files[name][start:stop]


def mutated(chance: random.Random, content: bytes) -> bytes:
    """Change, remove, repeat or move a few bytes."""
    data = bytearray(content)
    for _ in range(chance.choice([1, 1, 2, 4, 16])):
        place = chance.randrange(len(data) + 1)
        match chance.randrange(5):
            case 0:
                data[place : place + 1] = bytes([chance.randrange(256)])
            case 1:
                del data[place : place + chance.choice([1, 4, 100])]
            case 2:
                data[place:place] = data[place : place + chance.choice([1, 8, 64])]
            case 3:
                data[place : place + 8] = chance.choice([2**60, 2**64 - 1, 0, 100]).to_bytes(
                    8, "little"
                )
            case 4:
                data[place:place] = chance.choice(
                    [b"[" * 2000, b'"', b"\0", b"-", b"1e999", b"9" * 50]
                )
    return bytes(data)


def value(chance: random.Random, depth: int = 0):
    """Any JSON, mostly hostile."""
    if depth > 3 or chance.random() < 0.6:
        return chance.choice([*HOSTILE, chance.randrange(200), "F32", "lm_head.weight"])
    if chance.random() < 0.5:
        return [value(chance, depth + 1) for _ in range(chance.randrange(5))]
    return {
        str(value(chance, 9))[:50]: value(chance, depth + 1) for _ in range(chance.randrange(4))
    }


def spoiled(chance: random.Random, content):
    """Put something hostile somewhere into well-formed JSON."""
    if isinstance(content, dict) and content and chance.random() < 0.9:
        key = chance.choice(list(content))
        return {**content, key: spoiled(chance, content[key])}
    if isinstance(content, list) and content and chance.random() < 0.7:
        place = chance.randrange(len(content))
        return [*content[:place], spoiled(chance, content[place]), *content[place + 1 :]]
    return value(chance)


ENTRY = {"dtype": "F32", "shape": [4, 2], "data_offsets": [0, 32]}
TAIL = {"dtype": "BF16", "shape": [8], "data_offsets": [32, 48]}
HEADER = {"__metadata__": {"format": "pt"}, "lm_head.weight": ENTRY, "norm": TAIL}
CONFIG = {
    "model_type": "llama",
    "tie_word_embeddings": True,
    "vocab_size": 4,
    "architectures": ["L"],
}
SHARD = "model-00001-of-00002.safetensors"
INDEX = {"metadata": {"total_size": 48}, "weight_map": {"lm_head.weight": SHARD, "norm": SHARD}}


def safetensors(header) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(48)


def text(chance: random.Random, sound) -> bytes:
    if chance.random() < 0.5:
        return json.dumps(spoiled(chance, sound)).encode()
    return mutated(chance, json.dumps(sound).encode())


def fuzz_header(chance: random.Random) -> None:
    content = safetensors(text(chance, HEADER))
    if chance.random() < 0.2:
        content = mutated(chance, content)
    tensors, _ = read_header(Memory(model__safetensors=content), "model.safetensors")
    for tensor in tensors.values():
        assert 8 <= tensor.start <= len(content)


def fuzz_config(chance: random.Random) -> None:
    source = Memory(config__json=text(chance, CONFIG), model__safetensors=safetensors(HEADER))
    Checkpoint(source).choose()


def fuzz_index(chance: random.Random) -> None:
    index = spoiled(chance, INDEX)
    if chance.random() < 0.3 and isinstance(index, dict):
        outside = chance.choice(
            ["../secret.safetensors", "/etc/passwd", "..", "", "\0", SHARD + "/x"]
        )
        index["weight_map"] = {"lm_head.weight": outside}
    content = json.dumps(index).encode() if chance.random() < 0.7 else text(chance, INDEX)
    source = Memory(model__safetensors__index__json=content, **{SHARD: safetensors(HEADER)})
    checkpoint = Checkpoint(source)
    checkpoint.find(checkpoint.choose().tensor)


def fuzz_archive(chance: random.Random) -> None:
    data = PICKLE if chance.random() < 0.3 else opcodes(chance)
    if chance.random() < 0.6:
        data = mutated(chance, data)
    content = archive(data)
    if chance.random() < 0.3:
        content = mutated(chance, content)
    source = Memory(pytorch_model__bin=content)
    for tensor in read_archive(source, "pytorch_model.bin").values():
        locate(source, tensor)


NAMES = (
    "collections\nOrderedDict", "torch\nFloatStorage", "torch\nSize", "os\nsystem", "a\nb",
    "torch._utils\n_rebuild_tensor_v2", "torch._utils\n_rebuild_parameter", "builtins\neval",
    "a\nb c", "\n",
)  # fmt: skip
PIECES = [
    *(bytes([code]) for code in b"(}])t\x85\x86\x87Rbuseaq0QN\x94\x93\x81.2"),
    *(f"c{name}\n".encode() for name in NAMES),
    *(b"K\4", b"K\2", b"M\0\2", b"I1\n", b"F1e999\n", b"\x8a\xff" + b"\1" * 255),
    *(b"\x8c\7storage", b"\x8c\1x", b"\x8c\0010", b"X\4\0\0\0exit", b"\x8c\2os\x8c\6system\x93"),
    *(b"q\0", b"q\1", b"h\0", b"h\1", b"r\xff\xff\xff\xff", b"r\0\0\0\x40", b"j\0\0\0\1"),
    *(code + b"\xff" * 7 + b"\0" for code in (b"\x96", b"\x8e", b"\x95", b"\x8d")),
]


# What a storage is made of, to be made again and again, of a type with a long name.
STORAGE = b"(\x8c\7storagectorch\n" + b"x" * 80 + b"Storage\n\x8c\0010\x8c\3cpuK\4tq\0"
# Calls OrderedDict with what lies on the stack, which has to be brought above its name.
ORDERED = b"q\1ccollections\nOrderedDict\nh\1R."


def opcodes(chance: random.Random) -> bytes:
    """Opcodes in any order, or one storage made again and again, or tuples of tuples."""
    if chance.random() < 0.02:
        return b"\x80\2" + STORAGE + b"h\0Q" * 5000 + b"."
    if chance.random() < 0.1:
        piece = chance.choice([b"\x85", b"q\0h\0\x86", b"q\0](h\0h\0e", b"2\x862R"])
        end = chance.choice([b"K\1s.", b"Q.", b".", b"\x8c\1x\x93.", b"K\1\x86\x85\x85" + ORDERED])
        return b"\x80\2}K\1" + piece * chance.choice([60, 5000]) + end
    return b"\x80\2" + b"".join(chance.choices(PIECES, k=chance.randrange(1, 60))) + b"."


NUMBERS = 8  # of the only storage


def archive(data: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as entries:
        entries.writestr("archive/data.pkl", data)
        entries.writestr("archive/byteorder", b"little")
        entries.writestr("archive/data/0", bytes(4 * NUMBERS))
    return file.getvalue()


class _Global:
    """Something that the pickle refers to by its name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self) -> None: ...


class _Storage: ...


class _Tensor:
    """Pickles as PyTorch pickles a tensor of 4 × 2 numbers."""

    def __reduce__(self):
        described = (_Storage(), 0, (4, 2), (2, 1), False, OrderedDict())
        return _Global("torch._utils\n_rebuild_tensor_v2"), described


class _Pickler(pickle._Pickler):  # the one in Python, whose methods can be replaced
    def persistent_id(self, value):
        if isinstance(value, _Storage):
            return ("storage", _Global("torch\nFloatStorage"), "0", "cpu", NUMBERS)
        return None

    def save(self, value, save_persistent_id=True):
        if isinstance(value, _Global):
            self.write(f"c{value.name}\n".encode())
        else:
            super().save(value, save_persistent_id)


def _pickled() -> bytes:
    file = io.BytesIO()
    _Pickler(file, 2).dump(OrderedDict({"lm_head.weight": _Tensor(), "step": 3}))
    return file.getvalue()


PICKLE = _pickled()
READERS: dict[str, Callable[[random.Random], None]] = {
    "safetensors header": fuzz_header,
    "index": fuzz_index,
    "config.json": fuzz_config,
    "archive": fuzz_archive,
}


def too_long(*_: object) -> None:
    raise TimeoutError(f"one input took more than {LONGEST} s")


def forbid(event: str, arguments: tuple) -> None:
    if armed and event.startswith(RUNS_CODE):
        print(f"ran code: {event} {arguments}", file=sys.stderr)
        raise SystemExit(3)


armed = False


def main(reader: str, count: int, seed: int = 0) -> None:
    global armed
    read, outcomes, longest = READERS[reader], Counter(), 0.0
    names = "cp437 raw_unicode_escape unicode_escape utf-16 utf-16-le utf-16-be utf-32 utf-32-le"
    for name in [*names.split(), "utf-32-be"]:
        codecs.lookup(name)  # now, since Python opens a file for it
    sys.addaudithook(forbid)
    signal.signal(signal.SIGALRM, too_long)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    started = time.monotonic()
    for number in range(count):
        chance = random.Random(f"{seed} {reader} {number}")
        signal.setitimer(signal.ITIMER_REAL, LONGEST)
        begin, armed = time.perf_counter(), True
        try:
            read(chance)
            outcomes["read"] += 1
        except GeometryError:
            outcomes["refused"] += 1
        except BaseException:
            print(f"input {number} of seed {seed}", file=sys.stderr)
            raise
        finally:
            armed = False
            signal.setitimer(signal.ITIMER_REAL, 0)
        longest = max(longest, time.perf_counter() - begin)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
    assert grown < MOST_MEMORY, f"memory grew by {grown} bytes"
    print(
        f"{reader}: {count} inputs, {outcomes['read']} read, {outcomes['refused']} refused; "
        f"longest {longest * 1000:.0f} ms, memory +{grown / 2**20:.0f} MB, "
        f"{time.monotonic() - started:.0f} s"
    )


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
