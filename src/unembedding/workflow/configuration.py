"""The configuration, typed: what may stand in it, its defaults, and messages for every mistake."""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_args

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from unembedding.backends.registry import BACKENDS
from unembedding.checkpoints.revisions import VARIABLE
from unembedding.errors import UserError

REPO = re.compile(r"[\w.-]+(/[\w.-]+)?")
FOLDER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
TAKEN = "summary.csv"
# What pydantic says in words of Python, by its name of the mistake.
SHOULD_BE = {
    "bool_type": "should be true or false",
    "dict_type": "should be a mapping of names to models",
    "float_parsing": "should be a number",
    "float_type": "should be a number",
    "int_type": "should be a whole number",
    "list_type": "should be a list",
    "path_type": "should be a path",
    "string_type": "should be text, in quotes where it looks like a number",
}
Item = TypeVar("Item")


class ConfigurationError(UserError):
    """All mistakes of a configuration, one to a line."""


def _revisions(value: Any) -> Any:
    listed = [value] if isinstance(value, str) else value
    if not isinstance(listed, list):
        return listed
    return ["*" if name == "all" else name for name in listed]


def _several(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _rows(value: Any) -> Any:
    return None if value == "all" else value


def _path(value: Any) -> Any:
    """Check a path, and put in the home folder for `~` and variables of the environment."""
    if not isinstance(value, str):
        return value
    expanded = _expanded(value)
    if unset := re.search(r"\$\{?(\w+)", expanded):
        raise ValueError(f"${unset[1]} is not set in the environment, in {value!r}")
    if value == "" or VARIABLE.search(expanded):
        raise ValueError(f"a path, without braces or <name> (Snakemake reads them), not {value!r}")
    return expanded


def _expanded(path: str) -> str:
    try:
        home = str(Path(path).expanduser())
    except RuntimeError:  # of a user who is not known: the folder is absent
        home = path
    return os.path.expandvars(home)


def _step(pattern: str | None) -> str | None:
    """Check a regular expression with a group."""
    try:
        groups = re.compile(pattern or "()").groups
    except re.error as error:
        raise ValueError(f"{pattern!r} is no regular expression: {error}") from None
    if not groups:
        raise ValueError(f"{pattern!r} has no group, such as `step(\\d+)` has")
    return pattern


def _subfolder(path: str | None) -> str | None:
    """Check a place in a repository."""
    parts = (path or "").strip("/").split("/")
    if path is not None and not all(part.strip(".") for part in parts):
        raise ValueError(f"a folder of the repository, such as checkpoints/step10, not {path!r}")
    return path and "/".join(parts)


def _folder(name: str) -> str:
    if not FOLDER.fullmatch(name):
        raise ValueError(
            "this name cannot be a folder of results/geometry/; use letters, digits, '.', '_' "
            "and '-', beginning with a letter or digit"
        )
    if name.casefold() == TAKEN:
        raise ValueError("this name is taken by the summary")
    return name


def _distinct(values: list[Any]) -> list[Any]:
    if len(set(values)) < len(values):
        raise ValueError("one of them stands twice")
    return values


def _read(value: Any) -> Any:
    """Read text as YAML would: what `--config` gives arrives as text."""
    return yaml.safe_load(value) if isinstance(value, str) else value


Read = BeforeValidator(_read)
Count = Annotated[int, Field(ge=1, strict=True), Read]  # strict: `true` is no count

Several = Annotated[list[Item], Field(min_length=1), AfterValidator(_distinct)]


if TYPE_CHECKING:
    BackendName = str
else:
    BackendName = Literal[("auto", *BACKENDS)]


class Section(BaseModel):
    """A part of the configuration; a key that it does not know is a mistake."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Model(Section):
    """One model, local or on the Hub, and which of its revisions to use."""

    path: Annotated[Path | None, BeforeValidator(_path)] = None
    repo: Annotated[str | None, Field(validate_default=True)] = None
    revisions: Annotated[
        list[str],
        BeforeValidator(_revisions, json_schema_input_type=list[str] | str),
        Field(min_length=1),
    ] = ["*"]
    every: Count = 1
    step: Annotated[str | None, AfterValidator(_step)] = None
    rows: Annotated[
        Count | None, BeforeValidator(_rows, json_schema_input_type=int | Literal["all"] | None)
    ] = None
    unembedding: str | None = None
    subfolder: Annotated[str | None, AfterValidator(_subfolder)] = None
    tokenizer: Annotated[Path | None, BeforeValidator(_path)] = None

    @field_validator("subfolder")
    @classmethod
    def _of_a_repository(cls, subfolder: str | None, info: ValidationInfo) -> str | None:
        if subfolder is not None and info.data.get("path") is not None:
            raise ValueError("is of a repository; make it a part of `path:`")
        return subfolder

    @field_validator("repo")
    @classmethod
    def _one_place(cls, repo: str | None, info: ValidationInfo) -> str | None:
        if repo is not None and not REPO.fullmatch(repo):
            raise ValueError(f"a repository is called owner/name, not {repo!r}")
        # On a field, not on the model, whose validators run only if every field is right.
        if "path" in info.data and (info.data["path"] is None) == (repo is None):
            found = "neither is there" if repo is None else "both are there"
            raise ValueError(f"give either `path:` or `repo:`; {found}")
        return repo


class Scan(Section):
    """The benchmark of the selective scan: its sizes, and how long it may take."""

    lengths: Annotated[list[Count], Field(min_length=1)] = [
        512,
        1024,
        2048,
        4096,
        8192,
        16384,
        32768,
    ]
    batch: Count = 1
    dim: Annotated[Count, Field(multiple_of=64)] = 64
    state: Literal[16] = 16  # the ladder's C++ steps are written for it
    repeats: Count = 5
    seconds_per_call: Annotated[float, Field(gt=0), Read] = 0.15


class MambaModel(Section):
    """The model that is profiled: random weights of this shape, or a repository or folder."""

    path: str | None = None
    revision: str | None = None
    layers: Count = 4
    width: Count = 256
    state: Count = 16
    vocabulary: Count = 1024

    @field_validator("revision")
    @classmethod
    def _of_a_repository(cls, revision: str | None, info: ValidationInfo) -> str | None:
        if revision is not None and info.data.get("path", "") is None:
            raise ValueError("there is no `path:` that it would be a revision of")
        return revision


class Sequence(Section):
    """What the model reads: random tokens, or the characters of a text or FASTA file."""

    kind: Literal["random", "text", "fasta"] = "random"
    path: Annotated[str | None, BeforeValidator(_path), Field(validate_default=True)] = None
    length: Count = 512

    @field_validator("path")
    @classmethod
    def _file_to_read(cls, path: str | None, info: ValidationInfo) -> str | None:
        if info.data.get("kind", "random") != "random" and path is None:
            raise ValueError(f"`kind: {info.data['kind']}` needs the `path` of a file")
        if info.data.get("kind") == "random" and path is not None:
            raise ValueError("random tokens are read from no file; add `kind: text` or `fasta`")
        return path


class Mamba(Section):
    """The workflow's mamba branch."""

    threads: Count = 2
    scan: Scan = Scan()
    model: MambaModel = MambaModel()
    sequence: Sequence = Sequence()


class Backends(Section):
    """How the eigensolvers of this machine are compared."""

    sizes: Several[Count] = [256, 512, 1024]
    precisions: Several[Literal["float64", "float32"]] = ["float64", "float32"]
    loads: Several[Literal["idle", "busy"]] = ["idle", "busy"]
    repeats: Count = 3
    seconds: Count = 10
    threads: Count = 4
    rows: Annotated[int, Field(ge=2, strict=True), Read] = 8192  # one has no covariance
    checkpoint: str | None = None


PartOfSpeech = Literal["noun", "verb"]


class Concepts(Section):
    """The concepts of a vocabulary: which, and how they are scored."""

    wordnet: Annotated[Path | None, BeforeValidator(_path)] = None
    pos: Annotated[
        Several[PartOfSpeech],
        BeforeValidator(_several, json_schema_input_type=list[PartOfSpeech] | PartOfSpeech),
    ] = ["noun"]
    minimum: Annotated[int, Field(ge=4, strict=True), Read] = 10  # 3 to train, and one held out
    held_out: Annotated[float, Field(gt=0, lt=1), Read] = 0.2
    seed: Annotated[int, Field(ge=0, strict=True), Read] = 0
    shuffles: Annotated[int, Field(ge=0, strict=True), Read] = 1


Written = Literal["g", "factors"]


class Config(Section):
    """The whole configuration."""

    models: Annotated[
        dict[Annotated[str, AfterValidator(_folder)], Model], Field(min_length=1)
    ] = {}
    backend: BackendName = "auto"
    precision: Literal["float64", "float32"] = "float64"
    on_rank_deficient: Literal["error", "pseudo_inverse"] = "error"
    residual: Literal["estimate", "exact"] = "estimate"
    write: Annotated[
        Several[Written],
        AfterValidator(lambda write: sorted(write, reverse=True)),  # one order, however it is said
        BeforeValidator(_several, json_schema_input_type=list[Written] | Written),
    ] = ["g", "factors"]
    download: Literal["tensor", "checkpoint"] = "tensor"
    keep_unembedding: Annotated[StrictBool, Read] = True
    mamba: Mamba = Mamba()
    backends: Backends = Backends()
    concepts: Concepts = Concepts()

    @field_validator("backends")
    @classmethod
    def _known_checkpoint(cls, backends: Backends, info: ValidationInfo) -> Backends:
        if backends.checkpoint is not None and "models" in info.data:
            model, _, revision = backends.checkpoint.partition("/")
            if model not in info.data["models"] or not revision:
                known = ", ".join(info.data["models"])
                raise ValueError(
                    f"`checkpoint: {backends.checkpoint}` is no model/revision of these models "
                    f"({known})"
                )
        return backends


def load(
    values: Mapping[str, Any], files: Iterable[str | Path] = (), folders: bool = False
) -> Config:
    """Validate a configuration, and the files it came from for keys that stand in them twice.

    With ``folders`` those that it names have to be there.

    Raises ConfigurationError with every mistake, each by its dotted path.
    """
    mistakes = [line for file in files for line in _duplicate_keys(Path(file))]
    mistakes += _shared_folders(values)
    mistakes += _missing(values) if folders else []
    if not values.keys() & {"models", "mamba", "backends"}:
        mistakes.append("models: missing")
    try:
        config = Config.model_validate(values)
    except ValidationError as error:
        mistakes += [_message(details) for details in error.errors()]
    if mistakes:
        raise ConfigurationError(
            "The configuration has mistakes (config/README.md explains every key):\n"
            + "\n".join(f"  {line}" for line in mistakes)
        )
    return config


def schema() -> str:
    """Return the JSON schema of a configuration file, from which editors complete keys."""
    return json.dumps(Config.model_json_schema(), indent=2) + "\n"


def _message(error: Any) -> str:
    path = ".".join(str(step) for step in error["loc"] if step != "[key]")
    given = error["input"]
    match error["type"]:
        case "extra_forbidden":
            near = difflib.get_close_matches(str(error["loc"][-1]), _keys_at(error["loc"][:-1]))
            hint = f"; did you mean {near[0]!r}?" if near else ""
            return f"{path}: unknown key{hint}"
        case "missing":
            return f"{path}: missing"
        case "value_error":
            return f"{path}: {error['ctx']['error']}"
        case "too_short":
            return f"{path}: should not be empty"
        case "model_type":
            first, second = _keys_at(error["loc"])[:2]
            return f"{path}: should have keys such as `{first}:` or `{second}:`, not be {given!r}"
        case mistake:
            should = SHOULD_BE.get(mistake) or error["msg"].replace("Input should be", "should be")
            return f"{path}: {should}, not {given!r}"


def _keys_at(location: tuple[Any, ...]) -> list[str]:
    """Return the keys known at a place of the configuration."""
    kind: Any = Config
    for step in location:
        fields = getattr(kind, "model_fields", None)
        kind = fields[step].annotation if fields else get_args(kind)[-1]  # or a mapping's values
    return list(kind.model_fields)


def _shared_folders(values: Mapping[str, Any]) -> list[str]:
    """Return a message for each model whose folder is another's where case makes no difference."""
    models = values.get("models")
    first: dict[str, str] = {}
    return [
        f"models: {other!r} and {name!r} would share a folder where upper and lower case are the "
        "same; rename one"
        for name in (models if isinstance(models, Mapping) else ())
        if (other := first.setdefault(str(name).casefold(), name)) != name
    ]


def _missing(values: Mapping[str, Any]) -> list[str]:
    """Return a message for each folder and file that is named and is not there."""
    models = values.get("models")
    sections = {"concepts": values.get("concepts")}
    if isinstance(models, Mapping):
        sections |= {f"models.{name}": model for name, model in models.items()}
    named = [
        (f"{place}.{key}", kind, _expanded(path))
        for place, section in sections.items()
        for key, kind in (("path", "folder"), ("wordnet", "folder"), ("tokenizer", "file"))
        if isinstance(section, Mapping) and isinstance(path := section.get(key), str) and path
    ]
    is_there = {"folder": os.path.isdir, "file": os.path.isfile}
    return [
        f"{place}: there is no {kind} {path}"
        for place, kind, path in named
        if not is_there[kind](path) and not re.search(r"[{}$<]", path)
    ]


def _duplicate_keys(file: Path) -> list[str]:
    """Return a message for each key that a later one of the same name would silently replace."""
    try:
        root = yaml.compose(file.read_text(encoding="utf-8"), yaml.SafeLoader)
    except yaml.YAMLError:
        return []  # Snakemake has read it already, as JSON with tabs
    return [f"{file}: {message}" for message in _repeated(root, "", set())]


def _repeated(node: yaml.Node | None, path: str, visited: set[int]) -> Iterator[str]:
    if id(node) in visited:  # an alias
        return
    visited.add(id(node))
    children = []
    if isinstance(node, yaml.SequenceNode):
        children = [(f"{path}{i}", child) for i, child in enumerate(node.value)]
    elif isinstance(node, yaml.MappingNode):
        children = [(f"{path}{key.value}", child) for key, child in node.value]
        seen = set()
        for (place, _), (key, _) in zip(children, node.value, strict=True):
            if place in seen:
                yield f"{place}: stands twice, again in line {key.start_mark.line + 1}"
            seen.add(place)
    for place, child in children:
        yield from _repeated(child, f"{place}.", visited)


if (
    __name__ == "__main__"
):  # python -m unembedding.workflow.configuration > config/config.schema.json
    print(schema(), end="")
