"""The selective scan, and a whole mixer around it (Gu & Dao 2023)."""

from __future__ import annotations

from typing import Any

import torch
from causal_conv1d import causal_conv1d_fn
from torch import Tensor
from torch.nn import functional as F

from mamba_cpu.ops import selective_scan_fn as _scan
from mamba_cpu.reference import per_channel


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
) -> Any:
    """u, delta, z: (batch, dim, length); A: (dim, state), real; B, C: constant, or over time.

    Returns y in u's dtype; with return_last_state also the state (batch, dim, state) in float32.
    """
    return _scan(u, delta, A, B, C, D, z, delta_bias, delta_softplus, return_last_state)


def selective_scan_ref(
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
) -> Any:
    """The same one time after another, by operations of torch in float32."""
    dtype, (batch, dim, length) = u.dtype, u.shape
    u, delta = u.float(), delta.float()
    B, C = (per_channel(x.float(), batch, dim, length) for x in (B, C))
    if delta_bias is not None:
        delta = delta + delta_bias.float()[:, None]
    if delta_softplus:
        delta = F.softplus(delta)
    state = u.new_zeros(batch, dim, A.shape[1])
    outputs = []
    for t in range(length):
        step = delta[:, :, t, None]
        state = torch.exp(step * A) * state + step * u[:, :, t, None] * B[..., t]
        outputs.append((state * C[..., t]).sum(-1))
    y = torch.stack(outputs, dim=2)
    if D is not None:
        y = y + D.float()[:, None] * u
    if z is not None:
        y = y * F.silu(z.float())
    return (y.to(dtype), state) if return_last_state else y.to(dtype)


def mamba_inner_fn(
    xz: Tensor,
    conv1d_weight: Tensor,
    conv1d_bias: Tensor | None,
    x_proj_weight: Tensor,
    delta_proj_weight: Tensor,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    A: Tensor,
    B: Tensor | None = None,
    C: Tensor | None = None,
    D: Tensor | None = None,
    delta_bias: Tensor | None = None,
    B_proj_bias: Tensor | None = None,
    C_proj_bias: Tensor | None = None,
    delta_softplus: bool = True,
    checkpoint_lvl: int = 1,
    b_rms_weight: Tensor | None = None,
    c_rms_weight: Tensor | None = None,
    dt_rms_weight: Tensor | None = None,
    b_c_dt_rms_eps: float = 1e-6,
) -> Tensor:
    """A mixer but for its first projection: xz (batch, 2 dim, length) to (batch, length, width)."""
    norms = (dt_rms_weight, b_rms_weight, c_rms_weight)
    x, z, *operands = _projected(
        xz, conv1d_weight, conv1d_bias, x_proj_weight, delta_proj_weight, A, B, C,
        B_proj_bias, C_proj_bias, norms, b_c_dt_rms_eps,
    )  # fmt: skip
    y = _scan(x, operands[0], A, operands[1], operands[2], D, z, delta_bias, delta_softplus)
    assert isinstance(y, Tensor)
    return F.linear(y.mT, out_proj_weight, out_proj_bias)


def mamba_inner_ref(*operands: Any, **keywords: Any) -> Tensor:
    """The same as mamba_inner_fn."""
    return mamba_inner_fn(*operands, **keywords)


def mamba_inner_fn_no_out_proj(
    xz: Tensor,
    conv1d_weight: Tensor,
    conv1d_bias: Tensor | None,
    x_proj_weight: Tensor,
    delta_proj_weight: Tensor,
    A: Tensor,
    B: Tensor | None = None,
    C: Tensor | None = None,
    D: Tensor | None = None,
    delta_bias: Tensor | None = None,
    B_proj_bias: Tensor | None = None,
    C_proj_bias: Tensor | None = None,
    delta_softplus: bool = True,
    checkpoint_lvl: int = 1,
) -> Tensor:
    """A mixer without its projections in and out (Vim): (batch, dim, length)."""
    x, z, delta, B, C = _projected(
        xz, conv1d_weight, conv1d_bias, x_proj_weight, delta_proj_weight, A, B, C,
        B_proj_bias, C_proj_bias,
    )  # fmt: skip
    y = _scan(x, delta, A, B, C, D, z, delta_bias, delta_softplus)
    assert isinstance(y, Tensor)
    return y


def bimamba_inner_fn(
    xz: Tensor,
    conv1d_weight: Tensor,
    conv1d_bias: Tensor | None,
    x_proj_weight: Tensor,
    delta_proj_weight: Tensor,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    A: Tensor,
    A_b: Tensor,
    B: Tensor | None = None,
    C: Tensor | None = None,
    D: Tensor | None = None,
    delta_bias: Tensor | None = None,
    B_proj_bias: Tensor | None = None,
    C_proj_bias: Tensor | None = None,
    delta_softplus: bool = True,
    checkpoint_lvl: int = 1,
) -> Tensor:
    """A mixer whose scan runs both ways, back with A_b (Vim): (batch, length, width)."""
    x, z, delta, B, C = _projected(
        xz, conv1d_weight, conv1d_bias, x_proj_weight, delta_proj_weight, A, B, C,
        B_proj_bias, C_proj_bias,
    )  # fmt: skip

    def turned(t: Tensor) -> Tensor:
        return t if t.dim() == 2 else t.flip(-1)

    ahead = _scan(x, delta, A, B, C, D, z, delta_bias, delta_softplus)
    over = (turned(x), turned(delta), A_b, turned(B), turned(C), D, turned(z))
    back = _scan(*over, delta_bias, delta_softplus)
    assert isinstance(ahead, Tensor) and isinstance(back, Tensor)
    return F.linear((ahead + back.flip(-1)).mT, out_proj_weight, out_proj_bias)


def _projected(
    xz: Tensor,
    conv1d_weight: Tensor,
    conv1d_bias: Tensor | None,
    x_proj_weight: Tensor,
    delta_proj_weight: Tensor,
    A: Tensor,
    B: Tensor | None,
    C: Tensor | None,
    B_proj_bias: Tensor | None,
    C_proj_bias: Tensor | None,
    norms: tuple[Tensor | None, ...] = (None, None, None),
    eps: float = 1e-6,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return x after its convolution, z, delta, B and C, of which those given stay."""
    rank, states = delta_proj_weight.shape[1], A.shape[1]
    x, z = xz.chunk(2, dim=1)
    x = causal_conv1d_fn(x, conv1d_weight.flatten(1), conv1d_bias, activation="silu")
    projected = F.linear(x.mT, x_proj_weight)  # (batch, length, rank and states)
    low = projected[..., :rank]
    if norms[0] is not None:
        low = _normalized(low, norms[0], eps)
    delta = F.linear(low, delta_proj_weight).mT
    if B is None:
        B = projected[..., rank : rank + states]
        B = B if B_proj_bias is None else B + B_proj_bias
        B = (B if norms[1] is None else _normalized(B, norms[1], eps)).mT
    if C is None:
        C = projected[..., -states:]
        C = C if C_proj_bias is None else C + C_proj_bias
        C = (C if norms[2] is None else _normalized(C, norms[2], eps)).mT
    return x, z, delta, B, C


def _normalized(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return F.rms_norm(x.float(), x.shape[-1:], weight.float(), eps).to(x.dtype)
