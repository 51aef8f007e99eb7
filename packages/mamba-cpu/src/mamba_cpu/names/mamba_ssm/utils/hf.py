"""Checkpoints of state-spaces: a folder, or a repository of the Hub."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

CONFIG, WEIGHTS, SAFE = "config.json", "pytorch_model.bin", "model.safetensors"


def load_config_hf(model_name: str) -> dict[str, Any]:
    """Return config.json."""
    found = _find(model_name, CONFIG)
    return json.loads(found.read_text(encoding="utf-8"))


def load_state_dict_hf(
    model_name: str, device: Any = None, dtype: torch.dtype | None = None
) -> dict[str, Tensor]:
    """Return the weights, on a device and in a dtype if these are given."""
    found = _find(model_name, WEIGHTS, SAFE)
    if found.name == SAFE:
        from safetensors.torch import load_file

        state = load_file(found)
    else:
        state = torch.load(found, map_location="cpu", weights_only=True, mmap=True)
    return {name: tensor.to(device=device, dtype=dtype) for name, tensor in state.items()}


def _find(model: str, *names: str) -> Path:
    """Return the first of these files that a folder, or else a repository, has."""
    if Path(model).is_dir():
        there = [path for name in names if (path := Path(model) / name).is_file()]
        if not there:
            raise FileNotFoundError(f"{model} has no {' or '.join(names)}")
        return there[0]
    try:
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import EntryNotFoundError
    except ImportError:
        raise ImportError(
            f"there is no folder {model}, and to fetch a repository of that name "
            "huggingface_hub is needed: pip install huggingface_hub"
        ) from None
    for name in names[:-1]:
        try:
            return Path(hf_hub_download(model, name))
        except EntryNotFoundError:
            continue
    return Path(hf_hub_download(model, names[-1]))
