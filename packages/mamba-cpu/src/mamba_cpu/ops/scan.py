"""The selective scan as a function of tensors, checked so that mistakes are told in words.

The recurrence is equation 2 of Gu and Dao, "Mamba: Linear-Time Sequence Modeling with Selective
State Spaces" (2023), discretised as in their section 3.3 and in `mamba_ssm`, whose
`selective_scan_fn` this one agrees with.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mamba_cpu.ops.checks import check_apart, check_kinds, check_shapes
from mamba_cpu.ops.loading import kernel


def selective_scan_fn(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    delta_softplus: bool = False,
    return_last_state: bool = False,
    *,
    initial_state: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """The selective scan on the CPU: h = exp(delta A) h + delta u B and y = C h + D u, gated by z.

    u, delta, z: (batch, dim, length), float32, bfloat16 or float16, any strides. Fastest where dim
    is contiguous, as in a transposed (batch, length, dim).
    A: (dim, state), real. B, C: (dim, state), constant in time; (batch, state, length); or
    (batch, groups, state, length), where group g serves dim/groups neighbouring channels.
    D, delta_bias: (dim). initial_state: (batch, dim, state); zero by default.
    out: written to and returned, where given; like u, and apart from the inputs in memory, not
    between their elements either.

    Returns y (batch, dim, length) in u's dtype; with return_last_state also the state after the
    last time, (batch, dim, state) in float32, as the computation itself is.
    Differentiable in every operand, through y and the last state, without `out`: once, in reverse
    mode. The states are computed again from every 64th, so memory does not grow with length times
    state. Raises ValueError for shapes, TypeError for dtypes, devices and complex A, and
    RuntimeError for a gradient through `out`.
    """
    named = {"u": u, "delta": delta, "A": A, "B": B, "C": C, "D": D, "z": z}
    named |= {"delta_bias": delta_bias, "initial_state": initial_state, "out": out}
    given = {name: tensor for name, tensor in named.items() if tensor is not None}
    check_kinds(given)
    check_shapes(given)
    scan = kernel().scan
    operands = (u, delta, A, B, C, D, z, delta_bias, delta_softplus)
    if out is None:
        y, state = scan(*operands, initial_state)
    else:
        check_apart(given)
        state = u.new_zeros((*u.shape[:2], A.shape[1]), dtype=torch.float32)
        if initial_state is not None:
            state.copy_(initial_state)
        scan.out(*operands, out=out, state=state)
        y = out
    return (y, state) if return_last_state else y
