"""Generation with a cache of states."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass
class InferenceParams:
    """What layers keep between calls, by their index."""

    max_seqlen: int
    max_batch_size: int
    seqlen_offset: int = 0
    batch_size_offset: int = 0
    key_value_memory_dict: dict[int, Any] = field(default_factory=dict)
    lengths_per_sample: Tensor | None = None

    def reset(self, max_seqlen: int, max_batch_size: int) -> None:
        """Begin another sequence; the states are overwritten by its first call."""
        self.max_seqlen, self.max_batch_size, self.seqlen_offset = max_seqlen, max_batch_size, 0
        if self.lengths_per_sample is not None:
            self.lengths_per_sample.zero_()


@dataclass
class DecoderOutput:
    """The tokens (batch, length), and the scores of each new one where asked for."""

    sequences: Tensor
    scores: tuple[Tensor, ...] | None = None


def modify_logits_for_top_k_filtering(logits: Tensor, top_k: int) -> None:
    """Set all but the top_k logits to −∞, in place."""
    least = logits.topk(top_k).values[..., -1, None]
    logits.masked_fill_(logits < least, float("-inf"))


def modify_logits_for_top_p_filtering(logits: Tensor, top_p: float) -> None:
    """Set the least likely logits, whose probabilities add up to at most 1 − top_p, to −∞."""
    if 0.0 < top_p < 1.0:
        ordered, places = logits.sort(dim=-1)
        removed = ordered.softmax(dim=-1).cumsum(dim=-1) <= 1 - top_p
        logits.masked_fill_(removed.scatter(-1, places, removed), float("-inf"))


def modify_logits_for_min_p_filtering(logits: Tensor, min_p: float) -> None:
    """Set logits less likely than min_p to −∞, in place."""
    if 0.0 < min_p < 1.0:
        logits.masked_fill_(logits < min_p, float("-inf"))


def modify_logit_for_repetition_penalty(
    logits: Tensor, prev_output_tokens: Tensor, repetition_penalty: float = 1.0
) -> Tensor:
    """Make tokens that were there less likely (Keskar et al. 2019, equation 2), in place."""
    if repetition_penalty != 1.0:
        of_seen = logits.gather(1, prev_output_tokens)
        scaled = torch.where(
            of_seen < 0, of_seen * repetition_penalty, of_seen / repetition_penalty
        )
        logits.scatter_(1, prev_output_tokens, scaled)
    return logits


def sample(
    logits: Tensor,
    top_k: int = 1,
    top_p: float = 0.0,
    min_p: float = 0.0,
    temperature: float = 1.0,
) -> Tensor:
    """Return a token for each row of logits (batch, vocabulary); the likeliest where top_k is 1."""
    if top_k == 1:
        return logits.argmax(dim=-1)
    if not 0.0 <= top_p <= 1.0:
        raise ValueError(f"top_p is {top_p}, expected 0 to 1")
    logits = logits.clone()
    if top_k > 0:
        modify_logits_for_top_k_filtering(logits, min(top_k, logits.shape[-1]))
    elif min_p > 0.0:
        modify_logits_for_min_p_filtering(logits, float(logits.max()) * min_p)
    if temperature != 1.0:
        logits /= temperature
    modify_logits_for_top_p_filtering(logits, top_p)
    return torch.multinomial(logits.softmax(dim=-1), num_samples=1).squeeze(-1)


@torch.inference_mode()
def decode(
    input_ids: Tensor,
    model: Any,
    max_length: int,
    top_k: int = 1,
    top_p: float = 0.0,
    min_p: float = 0.0,
    temperature: float = 1.0,
    repetition_penalty: float = 1.0,
    eos_token_id: int | None = None,
    teacher_outputs: Tensor | None = None,
    vocab_size: int | None = None,
    cg: bool = False,
    enable_timing: bool = False,
    output_scores: bool = False,
    streamer: Any = None,
) -> DecoderOutput:
    """Generate until max_length tokens, those of the prompt included, or the end of all rows.

    input_ids: (batch, length). cg is of no consequence on the CPU. Of logits beyond vocab_size,
    those that fill the matrix up, none is chosen.
    """
    if streamer is not None:
        streamer.put(input_ids.cpu())
    batch, length = input_ids.shape
    cache = InferenceParams(max_seqlen=max_length, max_batch_size=batch)
    sequences, scores, latest = [input_ids], [], input_ids
    begun = time.perf_counter()
    while sum(part.shape[1] for part in sequences) < max_length:
        logits = model(latest, inference_params=cache, num_last_tokens=1).logits[:, -1]
        cache.seqlen_offset += latest.shape[1]
        logits = logits if vocab_size is None else logits[..., :vocab_size]
        scores.append(logits.clone() if output_scores else logits)
        if teacher_outputs is not None and teacher_outputs.shape[1] > cache.seqlen_offset:
            chosen = teacher_outputs[:, cache.seqlen_offset]
        else:
            seen = torch.cat(sequences, dim=1)
            logits = modify_logit_for_repetition_penalty(logits.clone(), seen, repetition_penalty)
            chosen = sample(logits, top_k, top_p, min_p, temperature)
        latest = chosen[:, None]
        sequences.append(latest)
        if streamer is not None:
            streamer.put(chosen.cpu())
        if eos_token_id is not None and bool((chosen == eos_token_id).all()):
            break
    if streamer is not None:
        streamer.end()
    if enable_timing:
        seconds = time.perf_counter() - begun
        print(f"Prompt of {length} and {len(sequences) - 1} new tokens: {seconds * 1000:.0f} ms")
    return DecoderOutput(torch.cat(sequences, dim=1), tuple(scores) if output_scores else None)


class GenerationMixin:
    """generate() for a model that takes inference_params."""

    def generate(
        self,
        input_ids: Tensor,
        max_length: int,
        top_k: int = 1,
        top_p: float = 0.0,
        min_p: float = 0.0,
        temperature: float = 1.0,
        return_dict_in_generate: bool = False,
        output_scores: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Return the tokens, or with return_dict_in_generate what decode returns."""
        found = decode(
            input_ids, self, max_length, top_k=top_k, top_p=top_p, min_p=min_p,
            temperature=temperature, output_scores=output_scores, **kwargs,
        )  # fmt: skip
        return found if return_dict_in_generate else found.sequences
