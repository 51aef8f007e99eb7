"""One step of the scan, for generation: the state is updated in place."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from mamba_cpu.ops.checks import check_shape, check_tensors
from mamba_cpu.ops.conv import slots_of


def selective_state_update(
    state: Tensor,
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
    state_batch_indices: Tensor | None = None,
) -> Tensor:
    """h = exp(dt A) h + dt x B, written to `state`, and y = C h + D x, gated by z.

    state: (slots, dim, n), or with heads (slots, heads, dim, n). x, dt, z: (batch, dim) or (batch,
    heads, dim). A: (dim, n) or (heads, dim, n). B, C: (batch, n) or (batch, groups, n). D, dt_bias:
    (dim) or (heads, dim). state_batch_indices: (batch), the slot of each row; by default the row's
    own number.

    Returns y like x. Raises ValueError, TypeError or IndexError before anything is written.
    """
    named = {"state": state, "x": x, "dt": dt, "A": A, "B": B, "C": C, "D": D, "z": z}
    named["dt_bias"] = dt_bias
    given = {name: tensor for name, tensor in named.items() if tensor is not None}
    check_tensors(given)
    if state.dim() not in (3, 4):
        raise ValueError(
            f"state must be (slots, dim, n) or (slots, heads, dim, n), not {tuple(state.shape)}"
        )
    if x.dim() != state.dim() - 1:
        raise ValueError(f"x is {tuple(x.shape)} beside a state of {tuple(state.shape)}")
    groups = _groups(state, x, B)
    sizes = tuple(state.shape[1:])
    expected: dict[str, tuple[int, ...]] = dict.fromkeys(("x", "dt", "z"), (len(x), *sizes[:-1]))
    expected |= {"A": sizes} | dict.fromkeys(("D", "dt_bias"), sizes[:-1])
    expected["C"] = tuple(B.shape)
    for name, shape in expected.items():
        if name in given:
            check_shape(name, given[name], shape)
    rows = slots_of(state, "state", state_batch_indices, "state_batch_indices", len(x))

    dt = dt.float() if dt_bias is None else dt.float() + dt_bias.float()
    if dt_softplus:
        dt = F.softplus(dt)
    B, C = (_per_head(m.float(), groups, sizes) for m in (B, C))
    decay = torch.exp(dt[..., None] * A.float())
    new = state[rows].float() * decay + (dt * x.float())[..., None] * B
    y = (new * C).sum(-1)
    if D is not None:
        y = y + D.float() * x.float()
    if z is not None:
        y = y * F.silu(z.float())
    state[rows] = new.to(state.dtype)
    return y.to(x.dtype)


def _groups(state: Tensor, x: Tensor, B: Tensor) -> int:
    n, heads = state.shape[-1], state.shape[1] if state.dim() == 4 else 1
    groups = B.shape[1] if B.dim() == 3 else 1
    right = (len(x), n) if state.dim() == 3 else (len(x), groups, n)
    if tuple(B.shape) != right or groups == 0 or heads % groups:
        raise ValueError(
            f"B is {tuple(B.shape)}, expected {right}, with groups that divide the heads"
        )
    return groups


def _per_head(matrix: Tensor, groups: int, sizes: tuple[int, ...]) -> Tensor:
    """B or C, broadcast over the channels, (batch, [heads,] 1, n)."""
    if len(sizes) == 3:
        matrix = matrix.repeat_interleave(sizes[0] // groups, dim=1)
    return matrix[..., None, :]
