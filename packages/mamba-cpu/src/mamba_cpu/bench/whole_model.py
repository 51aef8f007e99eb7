"""A whole Mamba model, before and after: where its time goes, and what the fused scan changes."""

from __future__ import annotations

import cProfile
import io
import pstats
import resource
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any, TextIO

import torch
from torch import Tensor, nn

from mamba_cpu.compat.transformers import MIXERS, mixers_of, use_fused_scan
from mamba_cpu.errors import MambaCpuError

# Functions by what they are for, transformers' and ours; none of them calls another. Whatever is
# outside them is "other".
PARTS = {
    "linear projections": ("<built-in method torch._C._nn.linear>",),
    "convolution": ("causal_conv1d_fn", "causal_conv1d"),
    "scan": ("mamba_selective_scan", "selective_scan_fn"),
}
# One projection is written as `@`, which a profiler of functions does not see: it is what these
# spend themselves.
FORWARDS = tuple(f"{mixer}.forward" for mixer in MIXERS)


PIECE = 2**16  # characters of a line that are read at once


@dataclass(frozen=True)
class Comparison:
    """Two cProfile tables, their top rows side by side, and the numbers drawn from both."""

    before: str
    after: str
    side_by_side: str
    summary: dict[str, Any]

    def conclusions(self) -> list[str]:
        """What the numbers say, in a sentence."""
        seconds, gain = self.summary["seconds"], self.summary["speed_up"]
        ours, off = "scan and convolution", self.summary["largest_relative_difference_in_logits"]
        return [
            f"A forward pass over {self.summary['length']} tokens takes {seconds['off']:.2g} s as "
            f"transformers has it, and {seconds[ours]:.2g} s with the fused scan and convolution "
            f"({gain[ours]:.2g} times as fast); logits differ by {off:.1e} of the largest."
        ]


def load_model(
    path: str | None = None,
    revision: str | None = None,
    layers: int = 4,
    width: int = 256,
    state: int = 16,
    vocabulary: int = 1024,
) -> Any:
    """A Mamba of this shape with random weights or, given a path, a repository's or folder's.

    Raises MambaCpuError if there is no Mamba at the path.
    """
    from transformers import MambaConfig, MambaForCausalLM

    torch.manual_seed(0)
    if path is not None:
        return _pretrained(path, revision)
    config = MambaConfig(
        num_hidden_layers=layers, hidden_size=width, state_size=state, vocab_size=vocabulary
    )
    return MambaForCausalLM(config).eval()


def _pretrained(path: str, revision: str | None) -> Any:
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM

    needed = "Give a repository of the Hub or a local folder with a Mamba or FalconMamba model"
    place = f"{path!r}" + (f" at revision {revision!r}" if revision else "")
    try:
        found: Any = AutoModelForCausalLM.from_pretrained(
            path, revision=revision, output_loading_info=True
        )
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise MambaCpuError(
            f"mamba.model.path: transformers cannot load {place}: {error}\n"
            f"{needed}: config.json, and weights as transformers saves them."
        ) from error
    model, loaded = found
    if not mixers_of(model):
        raise MambaCpuError(
            f"mamba.model.path: {place} is a {type(model).__name__}, without a selective scan. "
            f"{needed} of transformers."
        )
    if loaded["missing_keys"]:
        names = ", ".join(sorted(loaded["missing_keys"])[:3])
        raise MambaCpuError(
            f"mamba.model.path: {place} lacks {len(loaded['missing_keys'])} weights, {names} among "
            "them. Fetch it again, or give another one."
        )
    return model.eval()


def load_tokens(
    vocabulary: int, kind: str = "random", path: str | None = None, length: int = 512
) -> Tensor:
    """(1, length) token ids: random ones, or the bytes of a text or FASTA file.

    A file shorter than `length` gives what it has. Raises ValueError if kind needs a path, and
    MambaCpuError if the file is no text or has none.
    """
    if kind == "random":
        return torch.randint(vocabulary, (1, length), generator=torch.Generator().manual_seed(0))
    if path is None:
        raise ValueError(f"mamba.sequence.kind is {kind!r}, which needs mamba.sequence.path")
    try:
        with Path(path).open(encoding="utf-8-sig") as file:
            text = _bases(file, length) if kind == "fasta" else file.read(length)
    except UnicodeDecodeError as error:
        raise MambaCpuError(
            f"mamba.sequence.path: {path} is not text in UTF-8 (byte {error.start}). "
            "Decompress it first if it is compressed, or convert it."
        ) from error
    except OSError as error:
        raise MambaCpuError(
            f"mamba.sequence.path: {path} cannot be read ({error.strerror}). Name a file of text."
        ) from error
    if not text:
        found = "no sequence, only headers or nothing" if kind == "fasta" else "no character"
        raise MambaCpuError(f"mamba.sequence.path: {path} has {found}. Name a file that has some.")
    codes = torch.tensor(list(text[:length].encode()[:length]))
    return codes.remainder(vocabulary)[None]


def _bases(file: TextIO, most: int) -> str:
    """The first sequences of a FASTA file, one after another, up to so many letters.

    Reads no more than it needs, also where a whole chromosome is one line.
    """
    found: list[str] = []
    count = 0
    begins, header = True, False  # whether this piece begins a line, and whether that is a header
    while count < most and (piece := file.readline(PIECE)):
        header = piece.startswith((">", ";")) if begins else header
        begins = piece.endswith("\n")
        if not header:
            found.append("".join(piece.split()))
            count += len(found[-1])
    return "".join(found)


def compare(model: nn.Module, tokens: Tensor, repeats: int = 3) -> Comparison:
    """Profile a forward pass with the fused scan off and on; compare times and logits."""
    reset_peak_memory()
    before_logits = forward(model, tokens)
    memory = {"before": peak_memory()}
    before = profile(model, tokens)
    undo = use_fused_scan(model)
    reset_peak_memory()
    after_logits = forward(model, tokens)
    memory["after"] = peak_memory()
    after = profile(model, tokens)
    undo()
    times = interleaved(model, tokens, repeats)
    scale = before_logits.abs().max()
    summary = {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "length": tokens.shape[1],
        "threads": torch.get_num_threads(),
        "seconds": times,
        "speed_up": {name: times["off"] / times[name] for name in times},
        "shares_before": shares(before),
        "shares_after": shares(after),
        "largest_relative_difference_in_logits": (
            (after_logits - before_logits).abs().max() / scale
        ).item(),
        "peak_bytes": memory,
    }
    return Comparison(table(before), table(after), side_by_side(before, after), summary)


def interleaved(model: nn.Module, tokens: Tensor, repeats: int) -> dict[str, float]:
    """The median seconds of a forward pass: as it is, with the scan, and with the convolution."""
    seconds: dict[str, list[float]] = {"off": [], "scan": [], "scan and convolution": []}
    for _ in range(repeats):
        for name, own in seconds.items():
            undo = use_fused_scan(model, name != "scan") if name != "off" else lambda: None
            start = time.perf_counter()
            forward(model, tokens)
            own.append(time.perf_counter() - start)
            undo()
    return {name: sorted(own)[len(own) // 2] for name, own in seconds.items()}


@torch.inference_mode()
def forward(model: nn.Module, tokens: Tensor) -> Tensor:
    """The logits of the last token, without a cache: those of all take length · vocabulary."""
    return model(tokens, use_cache=False, logits_to_keep=1).logits


def profile(model: nn.Module, tokens: Tensor) -> cProfile.Profile:
    """A forward pass under cProfile."""
    profiler = cProfile.Profile()
    profiler.runcall(forward, model, tokens)
    return profiler


def table(profiler: cProfile.Profile) -> str:
    """cProfile's table, by the time spent in each function itself."""
    text = io.StringIO()
    pstats.Stats(profiler, stream=text).strip_dirs().sort_stats("tottime").print_stats(40)
    return text.getvalue()


def side_by_side(before: cProfile.Profile, after: cProfile.Profile, rows: int = 15) -> str:
    """The functions that take longest before or after, with their own seconds in both, and the
    share of each part."""
    spent = [_seconds(profiler) for profiler in (before, after)]
    names = sorted(
        spent[0].keys() | spent[1].keys(), key=lambda n: -max(s.get(n, 0) for s in spent)
    )
    lines = ["   before     after   seconds in the function itself"]
    lines += [
        "".join(f"{s[n]:9.4f} " if n in s else "        - " for s in spent) + f"  {n}"
        for n in names[:rows]
    ]
    lines += ["", "   before     after   share of the forward pass"]
    both = [shares(profiler) for profiler in (before, after)]
    lines += ["".join(f"{s[part]:9.1%} " for s in both) + f"  {part}" for part in both[0]]
    return "\n".join(lines) + "\n"


def _seconds(profiler: cProfile.Profile) -> dict[str, float]:
    """Seconds in each function itself, functions of one name added up."""
    seconds: dict[str, float] = {}
    for entry in profiler.getstats():
        name = _name(entry.code)
        seconds[name] = seconds.get(name, 0.0) + entry.inlinetime
    return seconds


def shares(profiler: cProfile.Profile) -> dict[str, float]:
    """The share of each of PARTS in the time of a forward pass."""
    entries = [(_name(entry.code), entry) for entry in profiler.getstats()]
    whole = sum(entry.inlinetime for _, entry in entries)
    spent = {
        part: sum(entry.totaltime for name, entry in entries if name in names)
        for part, names in PARTS.items()
    }
    spent["linear projections"] += sum(e.inlinetime for name, e in entries if name in FORWARDS)
    spent["other"] = whole - sum(spent.values())
    return {part: seconds / whole for part, seconds in spent.items()}


def _name(code: CodeType | str) -> str:
    return code if isinstance(code, str) else code.co_qualname


def reset_peak_memory() -> None:
    """Let `peak_memory` count from now on, where the system can (Linux's proc(5), clear_refs)."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory() -> int:
    """The most bytes this process has had resident, since the last reset if there was one."""
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
