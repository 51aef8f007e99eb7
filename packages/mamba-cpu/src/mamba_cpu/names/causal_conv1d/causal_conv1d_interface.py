"""The convolution over a whole sequence, and by one step of decoding."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from mamba_cpu.ops import causal_conv1d, causal_conv1d_update

__all__ = [
    "causal_conv1d_fn",
    "causal_conv1d_ref",
    "causal_conv1d_update",
    "causal_conv1d_update_ref",
]


def causal_conv1d_fn(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    seq_idx: Tensor | None = None,
    initial_states: Tensor | None = None,
    return_final_states: bool = False,
    final_states_out: Tensor | None = None,
    activation: str | None = None,
) -> Any:
    """x: (batch, dim, length); weight: (dim, width); initial_states: (batch, dim, width - 1).

    seq_idx: (batch, length), the sequence that each time is of. Returns y, and where asked for the
    last width - 1 times of x, which are written to final_states_out if that is given.
    """
    if activation not in (None, "silu", "swish"):
        raise NotImplementedError(f"activation is {activation!r}: use None, 'silu' or 'swish'")
    found = causal_conv1d(
        x, weight, bias, activation is not None, initial_states, return_final_states, seq_idx
    )
    if not return_final_states or final_states_out is None:
        return found
    final_states_out.copy_(found[1])
    return found[0], final_states_out


def causal_conv1d_ref(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    initial_states: Tensor | None = None,
    return_final_states: bool = False,
    final_states_out: Tensor | None = None,
    activation: str | None = None,
) -> Any:
    """The same by torch's convolution."""
    if activation not in (None, "silu", "swish"):
        raise NotImplementedError(f"activation is {activation!r}: use None, 'silu' or 'swish'")
    dim, width = weight.shape
    before = x.new_zeros(len(x), dim, width - 1) if initial_states is None else initial_states
    wide = torch.cat([before.to(weight.dtype), x.to(weight.dtype)], dim=2)
    y = F.conv1d(wide, weight[:, None], bias, groups=dim)
    y = (y if activation is None else F.silu(y)).to(x.dtype)
    if not return_final_states:
        return y
    final = wide[:, :, wide.shape[2] - width + 1 :].to(x.dtype)
    return y, final if final_states_out is None else final_states_out.copy_(final)


causal_conv1d_update_ref = causal_conv1d_update
