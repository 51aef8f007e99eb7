"""The `mamba:` section of the workflow's config, typed; an unknown key is an error."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Positive = Annotated[int, Field(gt=0)]


class Strict(BaseModel):
    """A section that takes no keys but its own."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ScanConfig(Strict):
    """The scan benchmark: sizes, and how long it may take."""

    lengths: tuple[Positive, ...] = (512, 1024, 2048, 4096, 8192, 16384, 32768)
    batch: Positive = 1
    dim: Annotated[int, Field(gt=0, multiple_of=64)] = 64
    state: Literal[16] = 16  # the ladder's C++ steps are written for it
    repeats: Positive = 5
    # A variant that would take longer at a length, judged by the one before, is left out there.
    seconds_per_call: Annotated[float, Field(gt=0)] = 0.15


class ModelConfig(Strict):
    """The model that is profiled: random weights of this shape, or a repository or local folder."""

    path: str | None = None
    revision: str | None = None
    layers: Positive = 4
    width: Positive = 256
    state: Positive = 16
    vocabulary: Positive = 1024


class SequenceConfig(Strict):
    """What the model reads: random tokens, or the characters of a text or FASTA file."""

    kind: Literal["random", "text", "fasta"] = "random"
    path: str | None = None
    length: Positive = 512


class MambaConfig(Strict):
    """Everything of the workflow's mamba branch."""

    threads: Positive = 2
    scan: ScanConfig = ScanConfig()
    model: ModelConfig = ModelConfig()
    sequence: SequenceConfig = SequenceConfig()
