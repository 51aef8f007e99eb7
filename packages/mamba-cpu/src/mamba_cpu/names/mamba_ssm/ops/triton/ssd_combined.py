"""The scan of Mamba-2 (Dao & Gu 2024), and its mixer around it."""

from __future__ import annotations

from typing import Any

from causal_conv1d import causal_conv1d_fn
from torch import Tensor
from torch.nn import functional as F

from mamba_cpu.ops import ssd_scan
from mamba_ssm.ops.triton.layernorm_gated import rmsnorm_fn

ALL = (0.0, float("inf"))


def mamba_chunk_scan_combined(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    chunk_size: int,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    initial_states: Tensor | None = None,
    seq_idx: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = ALL,
    return_final_states: bool = False,
    return_varlen_states: bool = False,
) -> Any:
    """x, z: (batch, length, heads, headdim); dt: (batch, length, heads); A: (heads).

    B, C: (batch, length, groups, state). initial_states: (batch, heads, headdim, state). The chunk
    size is of no consequence here. Returns y as x, and where asked for the final states.
    """
    if cu_seqlens is not None or return_varlen_states:
        raise NotImplementedError("cu_seqlens is not implemented on the CPU: give seq_idx")
    y, final = ssd_scan(
        x, dt, A, B, C, D, z, dt_bias, dt_softplus, initial_states, seq_idx, dt_limit
    )
    return (y, final) if return_final_states else y


def mamba_split_conv1d_scan_combined(
    zxbcdt: Tensor,
    conv1d_weight: Tensor,
    conv1d_bias: Tensor | None,
    dt_bias: Tensor,
    A: Tensor,
    D: Tensor,
    chunk_size: int,
    initial_states: Tensor | None = None,
    seq_idx: Tensor | None = None,
    dt_limit: tuple[float, float] = ALL,
    return_final_states: bool = False,
    activation: str | None = "silu",
    rmsnorm_weight: Tensor | None = None,
    rmsnorm_eps: float = 1e-6,
    outproj_weight: Tensor | None = None,
    outproj_bias: Tensor | None = None,
    headdim: int | None = None,
    ngroups: int = 1,
    norm_before_gate: bool = True,
) -> Any:
    """A mixer but for its first projection, zxbcdt: (batch, length, z, x, B, C and dt).

    Returns (batch, length, width), and where asked for the final states.
    """
    if D.dim() == 1 and headdim is None:
        raise ValueError("headdim must be given where D is (heads)")
    heads = D.shape[0]
    width = heads * (D.shape[1] if headdim is None else headdim)
    states = (conv1d_weight.shape[0] - width) // (2 * ngroups)
    z, xBC, dt = zxbcdt.split([width, conv1d_weight.shape[0], heads], dim=-1)
    xBC = causal_conv1d_fn(
        xBC.mT, conv1d_weight.flatten(1), conv1d_bias, seq_idx, activation=activation
    ).mT
    x, B, C = xBC.split([width, ngroups * states, ngroups * states], dim=-1)
    shape = (heads, width // heads)
    y, final = ssd_scan(
        x.unflatten(-1, shape),
        dt,
        A,
        B.unflatten(-1, (ngroups, states)),
        C.unflatten(-1, (ngroups, states)),
        D,
        z.unflatten(-1, shape) if rmsnorm_weight is None else None,
        dt_bias,
        True,
        initial_states,
        seq_idx,
        dt_limit,
    )
    y = y.flatten(-2)
    if rmsnorm_weight is not None:
        group = width // ngroups
        y = rmsnorm_fn(y, rmsnorm_weight, None, z, rmsnorm_eps, group, norm_before_gate)
    if outproj_weight is not None:
        y = F.linear(y.to(outproj_weight.dtype), outproj_weight, outproj_bias)
    return (y, final) if return_final_states else y
