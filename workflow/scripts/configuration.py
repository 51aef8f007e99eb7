"""The configuration, typed: what may stand in it, its defaults, and messages for every mistake."""

from __future__ import annotations

import difflib
import re
from collections.abc import Hashable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

FOLDER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class ConfigurationError(Exception):
    """All mistakes of a configuration, one to a line."""


def _revisions(value: Any) -> Any:
    if isinstance(value, str):
        return ["*"] if value == "all" else [value]
    return value


def _rows(value: Any) -> Any:
    return None if value == "all" else value


class Section(BaseModel):
    """A part of the configuration; a key that it does not know is a mistake."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Model(Section):
    """One model, local or on the Hub, and which of its revisions to use."""

    path: Path | None = None
    repo: str | None = None
    revisions: Annotated[list[str], BeforeValidator(_revisions), Field(min_length=1)] = ["*"]
    every: Annotated[int, Field(ge=1)] = 1
    rows: Annotated[int | None, BeforeValidator(_rows), Field(ge=1)] = None
    unembedding: str | None = None

    @model_validator(mode="after")
    def _one_place(self) -> Model:
        if (self.path is None) == (self.repo is None):
            found = "neither is there" if self.path is None else "both are there"
            raise ValueError(f"give either `path:` or `repo:`; {found}")
        return self


class Config(Section):
    """The whole configuration."""

    models: Annotated[dict[str, Model], Field(min_length=1)]
    backend: Literal["auto", "numpy", "torch", "cupy"] = "auto"
    precision: Literal["float64", "float32"] = "float64"
    on_rank_deficient: Literal["error", "pseudo_inverse"] = "error"
    download: Literal["tensor", "checkpoint"] = "tensor"
    keep_unembedding: bool = True

    @model_validator(mode="after")
    def _names_are_folders(self) -> Config:
        problems = [
            f"the name {name!r} cannot be a folder of results/geometry/; use letters, digits, "
            "'.', '_' and '-'"
            for name in self.models
            if not FOLDER.fullmatch(name)
        ]
        by_folder: dict[str, str] = {}
        for name in self.models:
            other = by_folder.setdefault(name.casefold(), name)
            if other != name:
                problems.append(
                    f"{other!r} and {name!r} would share a folder where upper and lower case are "
                    "the same; rename one"
                )
        if "summary.csv" in by_folder:
            problems.append("the name 'summary.csv' is taken by the summary")
        if problems:
            raise ValueError("; ".join(problems))
        return self


def load(values: Mapping[str, Any], files: Iterable[str | Path] = ()) -> Config:
    """Validate a configuration, and the files it came from for keys that stand in them twice.

    Raises ConfigurationError with every mistake, each by its dotted path.
    """
    mistakes = [line for file in files for line in _duplicate_keys(Path(file))]
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


def _message(error: Any) -> str:
    path = ".".join(map(str, error["loc"])) or "models"
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
        case _:
            shown = "" if isinstance(given, Mapping) else f", not {given!r}"
            return f"{path}: {error['msg'].replace('Input should be', 'should be')}{shown}"


def _keys_at(location: tuple[Any, ...]) -> list[str]:
    """Return the keys known at a place of the configuration."""
    section: Any = Config
    for step in location:
        field = getattr(section, "model_fields", {}).get(step)
        kinds = (field.annotation, *get_args(field.annotation)) if field else (section,)
        section = next((k for k in kinds if isinstance(k, type) and issubclass(k, Section)), None)
    return list(getattr(section, "model_fields", {}))


class _KeyCounter(yaml.SafeLoader):
    """Loads YAML and notes keys that a later one with the same name would silently replace."""

    def __init__(self, stream: Any) -> None:
        super().__init__(stream)
        self.duplicates: list[str] = []

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key, _ in node.value:
            if key.value in seen:
                self.duplicates.append(f"{key.value!r} stands twice, in line {key.start_mark.line}")
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def _duplicate_keys(file: Path) -> list[str]:
    with file.open() as stream:
        loader = _KeyCounter(stream)
        loader.get_single_data()
    return [f"{file}: {message}" for message in loader.duplicates]
