"""One checkpoint: which files hold its weights, and in which of them a tensor lies."""

from __future__ import annotations

import re
from functools import cached_property
from typing import Any

from unembedding.checkpoints.formats import FORMATS, Format, is_weights
from unembedding.checkpoints.formats.torch_zip import locate
from unembedding.checkpoints.layouts import Choice, choose_unembedding
from unembedding.checkpoints.sources import Source, read_json
from unembedding.checkpoints.stored_tensor import StoredTensor
from unembedding.errors import GeometryError

SHARD = re.compile(r"-of-(\d{1,5})\.")  # in the names of files that are one checkpoint together


class Checkpoint:
    """The tensors of a checkpoint, found by reading headers and never by building a model."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self._read: dict[str, dict[str, StoredTensor]] = {}

    @cached_property
    def config(self) -> dict[str, Any]:
        """The content of config.json, empty where there is none."""
        if "config.json" not in self.source.sizes():
            return {}
        config = read_json(self.source, "config.json")
        return config if isinstance(config, dict) else {}

    @cached_property
    def format(self) -> Format:
        sizes = self.source.sizes()
        named = [fmt for fmt in FORMATS if fmt.index in sizes or fmt.single in sizes]
        for fmt in named or filter(self._files, FORMATS):
            return fmt
        listing = ", ".join(list(sizes)[:20]) or "no files"
        if folders := self.source.folders():
            listing += (
                f", and weights in the folders {_some(folders)}. Give one of these: as "
                "`subfolder:` of a repository, or as `path:`"
            )
        readable = ", ".join(f"*{fmt.suffix}" for fmt in FORMATS)
        raise GeometryError(
            f"{self.source.where()} holds no weights this workflow reads ({readable}). It holds: "
            f"{listing}."
        )

    @cached_property
    def weight_map(self) -> dict[str, str]:
        """{tensor name: file} as the index says, or as the files themselves say without one."""
        sizes, fmt = self.source.sizes(), self.format
        if fmt.single in sizes:
            return {name: fmt.single for name in self.tensors(fmt.single)}
        if fmt.index not in sizes:
            return self._names_without_index(fmt)
        index = read_json(self.source, fmt.index)
        mapping = index.get("weight_map") if isinstance(index, dict) else None
        if not isinstance(mapping, dict) or not all(isinstance(v, str) for v in mapping.values()):
            raise GeometryError(f"{self.source.where(fmt.index)} has no usable `weight_map`.")
        return mapping

    def _names_without_index(self, fmt: Format) -> dict[str, str]:
        places: dict[str, str] = {}
        files = self._files(fmt)
        for file in files:
            shards = SHARD.search(file)
            if shards and sum(shards[0] in other for other in files) < int(shards[1]):
                raise GeometryError(
                    f"{self.source.where()} holds neither an index nor all {int(shards[1])} files "
                    f"that {file!r} is one of. Fetch the others too."
                )
        for file in files:
            for name in self.tensors(file):
                if name in places:
                    raise GeometryError(
                        f"{self.source.where()}: {places[name]!r} and {file!r} both hold {name!r}, "
                        "and there is no index that says which one counts. Remove one of them."
                    )
                places[name] = file
        return places

    def tensors(self, file: str) -> dict[str, StoredTensor]:
        """Return the tensors of one file of weights."""
        if file not in self._read:
            self._read[file] = self.format.read(self.source, file)
        return self._read[file]

    def choose(self, exact: str | None = None) -> Choice:
        """Choose the unembedding tensor; see ``layouts.choose_unembedding``."""
        where, names = self.source.where(), dict.fromkeys(self.weight_map)
        try:
            return choose_unembedding(names, self.config, where, exact)
        except GeometryError:  # say it again with shapes, for which every header must be read
            tensors = [t for f in self._files(self.format) for t in self.tensors(f).values()]
            shapes = names | {t.name: t.shape for t in tensors}
            return choose_unembedding(shapes, self.config, where, exact)

    def find(self, name: str) -> StoredTensor:
        """Return where a tensor is, with its offset in its file.

        The shard that the index names is looked at first, then its others: an index can be wrong.
        A file that it does not name may be of another checkpoint.
        """
        named = self.weight_map.get(name)
        indexed = set(self.weight_map.values())
        files = [file for file in self._files(self.format) if file in indexed]
        if named in files and name in (tensors := self.tensors(named)):
            return locate(self.source, tensors[name])
        for file in files:
            if file != named and name in (tensors := self.tensors(file)):
                puts = f"puts {name!r} in {named!r:.200}" if named else f"does not know {name!r}"
                self.source.warnings.append(f"The index {puts}; it was found in {file!r}.")
                return locate(self.source, tensors[name])
        missing = "which is missing" if named not in files else "which does not hold it"
        raise GeometryError(
            f"{self.source.where()}: the index puts tensor {name!r} in {named!r}, {missing}, and "
            f"no other of the {len(files)} files of weights that it names has it."
        )

    def _files(self, fmt: Format) -> list[str]:
        files = self.source.sizes()
        return [name for name in files if name.endswith(fmt.suffix) and is_weights(name)]


def _some(names: list[str], most: int = 20) -> str:
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
