"""The causal depthwise convolution in front of the scan."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from mamba_cpu.ops.checks import check_shape, check_tensors
from mamba_cpu.ops.loading import kernel

WIDEST_CONVOLUTION = 32  # kWidest in csrc/scan.h; wider ones are torch's


def causal_conv1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    silu: bool = False,
    initial_states: Tensor | None = None,
    return_final_states: bool = False,
    seq_idx: Tensor | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """y[t] = bias + sum over k of weight[k] x[t - width + 1 + k], with SiLU if asked for.

    x: (batch, dim, length), float32, bfloat16 or float16, any strides. weight: (dim, width); bias:
    (dim). initial_states: what came before x, (batch, dim, width - 1); zero by default.
    seq_idx: (batch, length), integers: no output sees an input of another number; where it is
    negative there is padding, and y is zero.

    Returns y like x; with return_final_states also the last width - 1 inputs, the initial states of
    what follows. Differentiable. Raises ValueError for shapes, TypeError for dtypes and devices.
    """
    _check(x, weight, bias, initial_states, seq_idx)
    reach = weight.shape[1] - 1
    before = x if initial_states is None else torch.cat([initial_states.to(x.dtype), x], dim=2)
    if seq_idx is not None:
        y = _within_sequences(x, weight, bias, silu, seq_idx)
    else:
        y = _convolve(before, weight, bias, silu)[..., before.shape[2] - x.shape[2] :]
    if not return_final_states:
        return y
    padded = F.pad(before, (max(0, reach - before.shape[2]), 0))
    return y, padded[..., padded.shape[2] - reach :]


def causal_conv1d_update(
    x: Tensor,
    conv_state: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    cache_seqlens: Tensor | None = None,
    conv_state_indices: Tensor | None = None,
) -> Tensor:
    """The convolution of the next inputs after those in `conv_state`, which is updated in place.

    x: (batch, dim) or (batch, dim, length). conv_state: (slots, dim, width - 1 or more); slot i,
    or conv_state_indices[i], is that of row i; where the index is negative, row i is padding, and
    its y is zero. It ends with the last input; with cache_seqlens (batch), which counts the inputs
    so far, it is circular. activation: None, "silu" or "swish".

    Returns y like x. Raises ValueError, TypeError or IndexError before anything is written.
    """
    if activation not in (None, "silu", "swish"):
        raise ValueError(f"activation is {activation!r}: use None, 'silu' or 'swish'")
    if x.dim() == 2:
        more = (cache_seqlens, conv_state_indices)
        return causal_conv1d_update(x[..., None], conv_state, weight, bias, activation, *more)[
            ..., 0
        ]
    if conv_state_indices is not None and (padding := conv_state_indices < 0).any():
        check_shape("conv_state_indices", conv_state_indices, (len(x),))
        if cache_seqlens is not None:
            check_shape("cache_seqlens", cache_seqlens, (len(x),))
        used = ~padding
        counts = None if cache_seqlens is None else cache_seqlens[used]
        more = (counts, conv_state_indices[used])
        y = torch.zeros_like(x)
        y[used] = causal_conv1d_update(x[used], conv_state, weight, bias, activation, *more)
        return y
    check_tensors({"conv_state": conv_state})
    _check(x, weight, bias, None, None)
    rows = slots_of(conv_state, "conv_state", conv_state_indices, "conv_state_indices", len(x))
    size, reach, length = conv_state.shape[-1], weight.shape[1] - 1, x.shape[2]
    if conv_state.dim() != 3 or conv_state.shape[1] != x.shape[1] or size < reach:
        raise ValueError(
            f"conv_state is {tuple(conv_state.shape)}, expected (slots, {x.shape[1]}, "
            f"{reach} or more)"
        )
    state = conv_state[rows]
    if cache_seqlens is None:
        joined = torch.cat([state.to(x.dtype), x], dim=2)
        window, kept = joined[..., size - reach :], joined[..., length:]
    else:
        check_shape("cache_seqlens", cache_seqlens, (len(x),))

        def at(first: int, last: int) -> Tensor:
            times = torch.arange(first, last) + cache_seqlens[:, None]
            return (times % size)[:, None].expand(-1, x.shape[1], -1)

        window = torch.cat([state.gather(2, at(-reach, 0)).to(x.dtype), x], dim=2)
        first = max(0, length - size)  # of the inputs that the state has room for
        kept = state.scatter(2, at(first, length), x[..., first:].to(state.dtype))
    y = _convolve(window, weight, bias, activation is not None)[..., reach:]
    conv_state[rows] = kept.to(conv_state.dtype)
    return y


def slots_of(
    state: Tensor, name: str, indices: Tensor | None, indices_name: str, batch: int
) -> slice | Tensor:
    """The rows of a state that serve a batch. Raises IndexError for those outside of it."""
    if indices is None:
        if len(state) != batch:
            raise ValueError(
                f"{name} has {len(state)} rows for a batch of {batch}: {indices_name}?"
            )
        return slice(None)
    check_shape(indices_name, indices, (batch,))
    if batch and (int(indices.min()) < 0 or int(indices.max()) >= len(state)):
        raise IndexError(f"{indices_name} must be from 0 to {len(state) - 1}, the rows of {name}")
    if len(indices.unique()) < batch:
        raise ValueError(
            f"{indices_name} names a row of {name} twice, which would be written twice"
        )
    return indices.long()


def _check(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    initial_states: Tensor | None,
    seq_idx: Tensor | None,
) -> None:
    named = {"x": x, "weight": weight, "bias": bias, "initial_states": initial_states}
    check_tensors({name: tensor for name, tensor in named.items() if tensor is not None})
    if x.dim() != 3:
        raise ValueError(f"x must be (batch, dim, length), not {tuple(x.shape)}")
    batch, dim, length = x.shape
    if weight.dim() != 2 or weight.shape[0] != dim or weight.shape[1] == 0:
        raise ValueError(f"weight is {tuple(weight.shape)}, expected ({dim}, width)")
    if bias is not None:
        check_shape("bias", bias, (dim,))
    if initial_states is not None:
        check_shape("initial_states", initial_states, (batch, dim, weight.shape[1] - 1))
    if seq_idx is not None:
        check_shape("seq_idx", seq_idx, (batch, length))
        if initial_states is not None:
            raise ValueError("initial_states and seq_idx do not go together: give one of them")


def _convolve(x: Tensor, weight: Tensor, bias: Tensor | None, silu: bool) -> Tensor:
    reach = weight.shape[1] - 1
    if reach < WIDEST_CONVOLUTION:
        y: Tensor = kernel().causal_conv1d(x, weight, bias, silu)
        return y
    y = F.conv1d(x.to(weight.dtype), weight[:, None], bias, padding=reach, groups=len(weight))
    y = y[..., : x.shape[2]]
    return (F.silu(y) if silu else y).to(x.dtype)


def _within_sequences(
    x: Tensor, weight: Tensor, bias: Tensor | None, silu: bool, seq_idx: Tensor
) -> Tensor:
    length = x.shape[2]
    y = x.float() * weight[:, -1:].float()
    for back in range(1, min(weight.shape[1], length)):
        same = (seq_idx[:, back:] == seq_idx[:, :-back])[:, None]
        term = x[..., :-back].float() * weight[:, -1 - back, None].float() * same
        y = y + F.pad(term, (back, 0))
    if bias is not None:
        y = y + bias.float()[:, None]
    y = F.silu(y) if silu else y
    return y.masked_fill((seq_idx < 0)[:, None], 0).to(x.dtype)  # padding has a negative index
