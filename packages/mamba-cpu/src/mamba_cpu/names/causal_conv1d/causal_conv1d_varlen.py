"""The states of sequences that are packed one after another."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor


def causal_conv1d_varlen_states(x: Tensor, cu_seqlens: Tensor, state_len: int) -> Tensor:
    """Return the last state_len times of each sequence (batch, dim, state_len), zeros in front.

    x: (total times, dim), the sequences one after another; cu_seqlens: (batch + 1), where each
    begins, and the end of the last.
    """
    bounds = cu_seqlens.tolist()
    states = x.new_zeros(len(bounds) - 1, x.shape[1], state_len)
    for i, (first, last) in enumerate(pairwise(bounds)):
        kept = x[max(first, last - state_len) : last].T
        if kept.shape[1]:
            states[i, :, -kept.shape[1] :] = kept
    return states


causal_conv1d_varlen_states_ref = torch.no_grad()(causal_conv1d_varlen_states)
