"""The pickle inside a PyTorch archive, read without running it.

An interpreter of those opcodes with which ``torch.save`` writes a state dict. It builds dicts,
lists, tuples, numbers, strings and descriptions of tensors; the names from which tensors are built
are a table, and any other is refused. Python's own unpickler calls what a file names, sets aside
memory for any memo index that a file claims, and hashes a key whose tuples contain each other for
ever; here nothing is called, each opcode costs a bounded time, and there is a bound on opcodes.
"""

from __future__ import annotations

import pickletools
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from unembedding.checkpoints.formats.safetensors import is_shape
from unembedding.errors import GeometryError

MOST_OPCODES = 2_000_000  # a tensor takes about 45
STORAGES = {
    "DoubleStorage": "F64",
    "FloatStorage": "F32",
    "HalfStorage": "F16",
    "BFloat16Storage": "BF16",
    "LongStorage": "I64",
    "IntStorage": "I32",
    "ShortStorage": "I16",
    "CharStorage": "I8",
    "ByteStorage": "U8",
    "BoolStorage": "BOOL",
}
LONGEST_NAME = 100  # characters of a module or a type
MOST_ARGUMENTS = 16  # of what builds a tensor
MARK = object()
ADVICE = (
    "which no weights need; refused. If you trust the file, load it once with torch and save its "
    "state dict as safetensors."
)


class Storage(NamedTuple):
    """A run of numbers, which the archive holds under a key."""

    dtype: str
    key: str
    length: int


class Described(NamedTuple):
    """What the pickle says of a tensor."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


class Name(NamedTuple):
    """Something that the pickle refers to by module and name."""

    module: str
    name: str


def read_pickle(data: bytes, where: str) -> Any:
    """Return what a pickle describes; raise GeometryError for one that describes anything else."""
    reader = _Reader()
    try:
        for count, (opcode, argument, _) in enumerate(pickletools.genops(data)):
            if count == MOST_OPCODES:
                raise GeometryError(f"its pickle has more than {MOST_OPCODES} steps; refused.")
            if opcode.name == "STOP":
                return reader.stack.pop()
            step = _STEPS.get(opcode.name)
            if step is None:
                raise GeometryError(f"its pickle asks for {opcode.name}, {ADVICE}")
            step(reader, argument)
    except GeometryError as error:
        raise GeometryError(f"{where}: {error}") from None
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:
        raise GeometryError(f"{where} has a broken pickle: {str(error)[:200]}") from None
    raise GeometryError(f"{where} has a broken pickle: it has no end")


class _Reader:
    """The stack and the memo of a pickle, and what its opcodes do with them."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def since_mark(self) -> list[Any]:
        """Remove and return what lies above the last mark."""
        position = len(self.stack) - 1
        while self.stack[position] is not MARK:  # ends in IndexError where there is none
            position -= 1
        items = self.stack[position + 1 :]
        del self.stack[position:]
        return items

    def last(self, count: int) -> tuple[Any, ...]:
        if len(self.stack) < count:
            raise ValueError("it takes more than it has put down")
        return tuple(self.stack.pop() for _ in range(count))[::-1]

    def set_items(self, pairs: list[Any]) -> None:
        target = self._top(dict)
        for key, value in zip(pairs[::2], pairs[1::2], strict=True):
            # Others can take for ever to hash, or to tell from each other.
            if not (isinstance(key, str) or (isinstance(key, int) and abs(key) < 2**31)):
                raise ValueError("a key is neither text nor a number")
            target[key] = value

    def append(self, items: list[Any]) -> None:
        self._top(list).extend(items)

    def remember(self, index: int | None) -> None:
        self.memo[len(self.memo) if index is None else index] = self.stack[-1]

    def name(self, module: Any, name: Any) -> None:
        if not (type(module) is type(name) is str and len(module + name) <= LONGEST_NAME):
            raise ValueError("a name is no text, or too long a text")
        storage = module in ("torch", "torch.storage") and name.endswith("Storage")
        if not storage and (module, name) not in CALLS:
            wanted = f"{module}.{name}"[:200]
            raise GeometryError(f"its pickle asks for {wanted}, {ADVICE}")
        self.push(Name(module, name))

    def call(self) -> None:
        """Build what the few names stand for; nothing in the file can be called."""
        name, arguments = self.last(2)
        build = CALLS.get(name) if isinstance(name, Name) else None
        # A long tuple that is passed again and again would be copied each time.
        if build is None or type(arguments) is not tuple or len(arguments) > MOST_ARGUMENTS:
            raise ValueError("it calls what cannot be called")
        self.push(build(*arguments))

    def storage(self) -> None:
        described = self.stack.pop()
        if type(described) is not tuple or len(described) not in (5, 6):
            raise GeometryError("its pickle refers to something that is no storage; refused.")
        kind, dtype, key, _, length, *_ = described
        known = isinstance(dtype, Name) and isinstance(key, str) and is_shape((length,))
        if kind != "storage" or not known:
            raise GeometryError("its pickle refers to something that is no storage; refused.")
        # Not a new text each time: a few bytes of the file can ask for it again.
        kind = STORAGES.get(dtype.name) or sys.intern(dtype.name.removesuffix("Storage"))
        self.push(Storage(kind, key, length))

    def set_state(self) -> None:
        """Drop the attributes that are to be set, such as a state dict's ``_metadata``."""
        self.stack.pop()
        self._top(dict)

    def _top(self, kind: type) -> Any:
        if type(self.stack[-1]) is not kind:
            raise ValueError(f"it fills what is no {kind.__name__}")
        return self.stack[-1]


def _ordered_dict(*pairs: Any) -> dict[Any, Any]:
    """An empty one, to be filled item by item: to copy another takes time without bound."""
    if any(pairs):
        raise ValueError("it makes a dict of what it has already")
    return {}


def _describe(
    storage: Any,
    offset: Any,
    shape: Any,
    stride: Any,
    requires_grad: Any = None,
    hooks: Any = None,
    metadata: Any = None,
) -> Described:
    possible = (
        isinstance(storage, Storage)
        and type(shape) is type(stride) is tuple
        and len(shape) == len(stride)
        and is_shape(shape)
        and is_shape((offset, *stride))
    )
    if not possible:
        raise GeometryError("its pickle describes an impossible tensor; refused.")
    if metadata:
        raise GeometryError(
            "a tensor in it is negated or conjugated lazily. Load it once with torch, and save it "
            "again after `.resolve_neg().resolve_conj()`."
        )
    return Described(storage, offset, shape, stride)


def _parameter(tensor: Any, *_: Any) -> Any:
    return tensor


def _size(lengths: Any) -> tuple[Any, ...]:
    if not is_shape(tuple(lengths[:65])):
        raise GeometryError("its pickle describes an impossible tensor; refused.")
    return tuple(lengths)


CALLS: dict[Any, Callable[..., Any]] = {
    ("collections", "OrderedDict"): _ordered_dict,
    ("torch._utils", "_rebuild_tensor"): _describe,
    ("torch._utils", "_rebuild_tensor_v2"): _describe,
    ("torch._utils", "_rebuild_parameter"): _parameter,
    ("torch", "Size"): _size,
}
Step = Callable[[_Reader, Any], None]
_VALUES = (
    "BININT BININT1 BININT2 INT LONG LONG1 BINFLOAT FLOAT UNICODE SHORT_BINUNICODE BINUNICODE "
    "BINUNICODE8 SHORT_BINSTRING BINSTRING SHORT_BINBYTES BINBYTES BINBYTES8"
)
_STEPS: dict[str, Step] = {
    **dict.fromkeys(_VALUES.split(), _Reader.push),
    **dict.fromkeys(("PROTO", "FRAME"), lambda reader, argument: None),
    "NONE": lambda reader, _: reader.push(None),
    "NEWTRUE": lambda reader, _: reader.push(True),
    "NEWFALSE": lambda reader, _: reader.push(False),
    "MARK": lambda reader, _: reader.push(MARK),
    "POP": lambda reader, _: reader.stack.pop(),
    "EMPTY_DICT": lambda reader, _: reader.push({}),
    "EMPTY_LIST": lambda reader, _: reader.push([]),
    "EMPTY_TUPLE": lambda reader, _: reader.push(()),
    "TUPLE": lambda reader, _: reader.push(tuple(reader.since_mark())),
    "TUPLE1": lambda reader, _: reader.push(reader.last(1)),
    "TUPLE2": lambda reader, _: reader.push(reader.last(2)),
    "TUPLE3": lambda reader, _: reader.push(reader.last(3)),
    "LIST": lambda reader, _: reader.push(reader.since_mark()),
    "SETITEM": lambda reader, _: reader.set_items(list(reader.last(2))),
    "SETITEMS": lambda reader, _: reader.set_items(reader.since_mark()),
    "APPEND": lambda reader, _: reader.append(list(reader.last(1))),
    "APPENDS": lambda reader, _: reader.append(reader.since_mark()),
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"), _Reader.remember),
    **dict.fromkeys(
        ("GET", "BINGET", "LONG_BINGET"),
        lambda reader, index: reader.push(reader.memo[index]),
    ),
    "GLOBAL": lambda reader, names: reader.name(*names.split(" ", 1)),
    "STACK_GLOBAL": lambda reader, _: reader.name(*reader.last(2)),
    "REDUCE": lambda reader, _: reader.call(),
    "NEWOBJ": lambda reader, _: reader.call(),
    "BUILD": lambda reader, _: reader.set_state(),
    "BINPERSID": lambda reader, _: reader.storage(),
}
