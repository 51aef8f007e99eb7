"""Mamba-2's scan, whose decay is one number per head and time (Dao and Gu, "Transformers are SSMs",
2024, section 5).

Its gradient is four scans of the same kind. The gradient of the state runs backwards in time, with
B and C exchanged; and where the sum is over a head's channels instead of its states, these two
change places.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from mamba_cpu.ops.checks import check_shape, check_tensors
from mamba_cpu.ops.loading import kernel


def ssd_scan(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
    initial_states: Tensor | None = None,
    seq_idx: Tensor | None = None,
    dt_limit: tuple[float, float] = (0.0, math.inf),
) -> tuple[Tensor, Tensor]:
    """h = exp(dt A) h + dt x B and y = C h + D x, times silu(z), for each head of Mamba-2.

    x, z: (batch, length, heads, headdim), float32, bfloat16 or float16. dt: (batch, length, heads),
    clamped to dt_limit after its bias and softplus. A, dt_bias: (heads). B, C: (batch, length,
    groups, state), where group g serves heads/groups neighbouring heads. D: (heads) or (heads,
    headdim). initial_states: (batch, heads, headdim, state); zero by default.
    seq_idx: (batch, length), integers: the state is zero again wherever the number changes.

    Returns y in x's dtype, and the last state, (batch, heads, headdim, state), in float32.
    Differentiable in every operand of floats. Raises ValueError for shapes, and TypeError for
    dtypes and devices.
    """
    named = {"x": x, "dt": dt, "A": A, "B": B, "C": C, "D": D, "z": z, "dt_bias": dt_bias}
    named |= {"initial_states": initial_states}
    given = {name: tensor for name, tensor in named.items() if tensor is not None}
    check_tensors(given)
    _check_shapes(given, seq_idx)
    dt = dt.float() if dt_bias is None else dt.float() + dt_bias.float()
    dt = (F.softplus(dt) if dt_softplus else dt).clamp(*dt_limit)
    decay = dt * A.float()
    if seq_idx is not None:
        changed = F.pad(seq_idx[:, 1:] != seq_idx[:, :-1], (1, 0))
        decay = decay.masked_fill(changed[..., None], -math.inf)
    if initial_states is None:
        batch, _, heads, headdim = x.shape
        initial_states = x.new_zeros(batch, heads, headdim, B.shape[3], dtype=torch.float32)
    operands = (x, dt, decay, B, C, initial_states)
    if not (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in given.values())):
        return _scan(*operands, D, z)
    y, state = _Differentiable.apply(*operands)
    if D is not None:
        y = y + x * (D if D.dim() == 2 else D[:, None])
    return (y if z is None else y * F.silu(z)).to(x.dtype), state


def _check_shapes(given: dict[str, Tensor], seq_idx: Tensor | None) -> None:
    x, B, D = given["x"], given["B"], given.get("D")
    if x.dim() != 4:
        raise ValueError(f"x must be (batch, length, heads, headdim), not {tuple(x.shape)}")
    batch, length, heads, headdim = x.shape
    if B.dim() != 4 or B.shape[:2] != x.shape[:2] or B.shape[2] == 0 or heads % B.shape[2]:
        raise ValueError(
            f"B is {tuple(B.shape)}, expected ({batch}, {length}, groups, state), with groups that "
            f"divide the {heads} heads"
        )
    expected: dict[str, tuple[int, ...]] = {"dt": (batch, length, heads), "C": tuple(B.shape)}
    expected |= {"A": (heads,), "z": tuple(x.shape), "dt_bias": (heads,)}
    expected["initial_states"] = (batch, heads, headdim, B.shape[3])
    expected["D"] = (heads, headdim) if D is not None and D.dim() == 2 else (heads,)
    for name, shape in expected.items():
        if name in given:
            check_shape(name, given[name], shape)
    if seq_idx is not None:
        check_shape("seq_idx", seq_idx, (batch, length))


def _scan(
    x: Tensor,
    dt: Tensor,
    decay: Tensor,
    B: Tensor,
    C: Tensor,
    state: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The fused scan; `decay` is the logarithm of what remains of the state."""
    if D is not None:
        D = (D if D.dim() == 2 else D[:, None].expand(x.shape[2:])).flatten()
    flat = (B.flatten(2), C.flatten(2), D, None if z is None else z.flatten(2))
    y, last = kernel().ssd(x.flatten(2), dt, decay / math.log(2), *flat, state, B.shape[2])
    return y.view(x.shape), last


class _Differentiable(torch.autograd.Function):
    """The scan without D and gate. With l the gradient of the state and v = B . l:

    dx = dt v, d(dt) = x . v, dB = dt x . l, dC = dy . h over the channels of a head. The decay's
    gradient e = l . exp(decay) h before obeys e[t] = e[t+1] + dy[t] . y[t] - dt[t] x[t] . v[t].
    """

    @staticmethod
    def forward(ctx: Any, *operands: Tensor) -> tuple[Tensor, Tensor]:
        y, last = _scan(*operands)
        ctx.save_for_backward(*operands, y, last)
        return y, last

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        x, dt, decay, B, C, first, y, last = ctx.saved_tensors
        dy, dlast = (gradient.float() for gradient in gradients)
        groups, heads = B.shape[2], x.shape[2]
        Bh, Ch = (m.float().repeat_interleave(heads // groups, dim=2) for m in (B, C))
        x32 = x.float()
        ones = torch.ones_like(dt)
        # Backwards, time t decays by what takes t + 1 to t.
        back = F.pad(decay.flip(1)[:, :-1], (0, 0, 1, 0))
        dy_back, x_back = dy.flip(1), x32.flip(1)
        v, l_first = _scan(dy_back, ones, back, C.flip(1), B.flip(1), dlast)
        v = v.flip(1)
        dC, _ = _scan(Bh, dt, decay, x32, dy, first.mT)
        dB, _ = _scan(Ch.flip(1), ones, back, dy_back, x_back, dlast.mT)
        dB = dB.flip(1) * dt[..., None]
        xv = (x32 * v).sum(-1)
        change = ((dy * y.float()).sum(-1) - dt * xv).double()
        end = (dlast * last).sum((-1, -2)).double()
        ddecay = change.flip(1).cumsum(1).flip(1) + end[:, None]
        dfirst = l_first * decay[:, 0].exp()[..., None, None] if x.shape[1] else dlast

        def over_heads(gradient: Tensor, operand: Tensor) -> Tensor:
            return gradient.unflatten(2, (groups, -1)).sum(3).to(operand.dtype)

        dx = (v * dt[..., None]).to(x.dtype)
        return (
            dx,
            xv,
            ddecay.float(),
            over_heads(dB, B),
            over_heads(dC, C),
            dfirst.to(first.dtype),
        )
