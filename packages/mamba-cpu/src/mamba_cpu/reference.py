"""The recurrence written down once, in float64: what every variant is checked against."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def per_channel(matrix: Tensor, batch: int, dim: int, length: int) -> Tensor:
    """B or C in any of its shapes as (batch, dim, state, length); a view but for several groups."""
    if matrix.dim() == 2:
        return matrix[None, :, :, None].expand(batch, dim, -1, length)
    if matrix.dim() == 3:
        return matrix[:, None].expand(batch, dim, -1, length)
    groups = matrix.shape[1]
    return matrix[:, :, None].expand(-1, -1, dim // groups, -1, -1).flatten(1, 2)


def selective_scan_reference(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    delta_softplus: bool = False,
    initial_state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """selective_scan_fn's y and last state in float64, one time after the other.

    Shapes as in selective_scan_fn. One state is kept: beside float64 copies of the operands and y,
    memory does not grow with the length.
    """
    batch, dim, length = u.shape
    u, delta, A = u.double(), delta.double(), A.double()
    B, C = (per_channel(x.double(), batch, dim, length) for x in (B, C))
    if delta_bias is not None:
        delta = delta + delta_bias.double()[:, None]
    if delta_softplus:
        delta = F.softplus(delta)
    state = u.new_zeros(batch, dim, A.shape[1])
    if initial_state is not None:
        state = initial_state.double()
    y = torch.empty_like(u)
    for t in range(length):
        step = delta[:, :, t, None]
        state = torch.exp(step * A) * state + step * u[:, :, t, None] * B[..., t]
        y[:, :, t] = (state * C[..., t]).sum(-1)
    if D is not None:
        y = y + D.double()[:, None] * u
    if z is not None:
        y = y * F.silu(z.double())
    return y, state
