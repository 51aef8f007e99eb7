"""The ways a Hub fails, and the checkpoints it fails to hand out."""

from pathlib import Path

import torch
from checkpoints import random_matrix
from huggingface_hub import save_torch_state_dict
from promises import TOKEN

STATUSES = {str(s): {"status": s} for s in (401, 403, 404, 408, 416, 500, 502, 503, 504)}
FAULTS = {
    **STATUSES,
    "429": {"status": 429, "headers": {"RateLimit": '"resolvers";r=0;t=37'}},
    "429 for hours": {"status": 429, "headers": {"Retry-After": "7200"}},
    "503 until a date": {"status": 503, "headers": {"Retry-After": "1 Jan 2100 00:00:00 GMT"}},
    "429 in digits": {"status": 429, "headers": {"Retry-After": "9" * 5000}},
    "reset": {"reset_after": 4000},
    "reset after a byte": {"reset_after": 1},
    "closed": {"close_after": 4000},
    "stall before": {"stall_s": 60},
    "stall within": {"stall_s": 60, "stall_after": 4000},
    "short 206": {"truncate_to": 4000},
    "wrong Content-Range": {"headers": {"Content-Range": "bytes 7-99/100"}},
    "token in Content-Range": {"headers": {"Content-Range": f"bytes {TOKEN}"}},
    "no gzip": {"headers": {"Content-Encoding": "gzip"}},
    "200 instead of 206": {"ignore_range": True},
    "other ETag": {"headers": {"ETag": '"other"'}},
    "no ETag": {"headers": {"ETag": ""}},
    "range as 200": {"relabel": 200},
    "another commit": {"headers": {"X-Repo-Commit": "d" * 40}},
    "another digest": {"headers": {"X-Linked-Etag": '"' + "d" * 64 + '"'}},
    "flipped byte": {"flip_byte": 100},
}
NOT_TRIED_AGAIN = {"401", "403", "404", "416"}
NOT_TRIED_AGAIN |= {"429 for hours", "429 in digits", "503 until a date"}

GAMMA = random_matrix(1)
FILLER = torch.zeros(3000)
FORMATS = ("safetensors", "bin")
SHARDING = {"single": "1GB", "sharded": "11KB"}


def checkpoint(folder: Path, form: str, sharding: str) -> Path:
    """Write a checkpoint, of one file or of several, whose γ is GAMMA."""
    folder.mkdir()
    tensors = {"model.embed_tokens.weight": random_matrix(2), "model.norm": FILLER}
    tensors["lm_head.weight"] = GAMMA.clone()
    save_torch_state_dict(
        tensors,
        folder,
        safe_serialization=form == "safetensors",
        max_shard_size=SHARDING[sharding],
    )
    (folder / "config.json").write_text('{"model_type": "llama", "vocab_size": 160}')
    return folder


def is_gamma(file: Path) -> bool:
    """Return whether this is an extracted unembedding with the bytes of GAMMA."""
    return file.exists() and file.read_bytes().endswith(GAMMA.numpy().tobytes())
