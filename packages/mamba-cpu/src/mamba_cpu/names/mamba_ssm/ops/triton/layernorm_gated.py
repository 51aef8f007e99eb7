"""Normalisation with a gate, by groups of channels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def layernorm_fn(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    z: Tensor | None = None,
    eps: float = 1e-6,
    group_size: int | None = None,
    norm_before_gate: bool = True,
    is_rms_norm: bool = False,
) -> Tensor:
    """Return the normalised x in its dtype, times SiLU(z), or of x times SiLU(z).

    Each group of group_size channels is normalised by itself; by default all are one group.
    """
    y, gate = x.float(), None if z is None else F.silu(z.float())
    if gate is not None and not norm_before_gate:
        y = y * gate
    groups = y.unflatten(-1, (-1, group_size or x.shape[-1]))
    if is_rms_norm:
        groups = F.rms_norm(groups, groups.shape[-1:], eps=eps)
    else:
        groups = F.layer_norm(groups, groups.shape[-1:], eps=eps)
    y = groups.flatten(-2) * weight.float()
    y = y if bias is None else y + bias.float()
    if gate is not None and norm_before_gate:
        y = y * gate
    return y.to(x.dtype)


def rmsnorm_fn(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    z: Tensor | None = None,
    eps: float = 1e-6,
    group_size: int | None = None,
    norm_before_gate: bool = True,
) -> Tensor:
    """The same by the root mean square."""
    return layernorm_fn(x, weight, bias, z, eps, group_size, norm_before_gate, True)


class _Gated(nn.Module):
    is_rms_norm = False
    bias: Tensor | None

    def __init__(
        self,
        hidden_size: int,
        eps: float = 1e-5,
        group_size: int | None = None,
        norm_before_gate: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.eps, self.group_size, self.norm_before_gate = eps, group_size, norm_before_gate
        self.weight = nn.Parameter(torch.ones(hidden_size, device=device, dtype=dtype))
        shift = nn.Parameter(torch.zeros(hidden_size, device=device, dtype=dtype))
        self.register_parameter("bias", None if self.is_rms_norm else shift)

    def forward(self, x: Tensor, z: Tensor | None = None) -> Tensor:
        """As layernorm_fn."""
        return layernorm_fn(
            x, self.weight, self.bias, z, self.eps, self.group_size, self.norm_before_gate,
            self.is_rms_norm,
        )  # fmt: skip


class LayerNorm(_Gated):
    """layernorm_fn with its weight and bias."""


class RMSNorm(_Gated):
    """rmsnorm_fn with its weight."""

    is_rms_norm = True
