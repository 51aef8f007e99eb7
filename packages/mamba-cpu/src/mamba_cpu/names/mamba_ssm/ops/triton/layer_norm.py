"""Normalisation with the residual stream beside it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def layer_norm_fn(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    x1: Tensor | None = None,
    weight1: Tensor | None = None,
    bias1: Tensor | None = None,
    eps: float = 1e-6,
    dropout_p: float = 0.0,
    rowscale: Tensor | None = None,
    prenorm: bool = False,
    residual_in_fp32: bool = False,
    zero_centered_weight: bool = False,
    is_rms_norm: bool = False,
    return_dropout_mask: bool = False,
) -> Any:
    """Return the normalised x + residual in x's dtype; with prenorm also that sum.

    The sum has the residual's dtype, or float32 with residual_in_fp32.
    Raises NotImplementedError for a second branch, dropout and row scales.
    """
    others = {"x1": x1, "weight1": weight1, "bias1": bias1, "rowscale": rowscale}
    asked = [name for name, value in others.items() if value is not None]
    asked += ["dropout_p"] * bool(dropout_p) + ["return_dropout_mask"] * return_dropout_mask
    if asked:
        raise NotImplementedError(f"{asked[0]} is not implemented on the CPU: leave it out")
    wide = torch.promote_types(x.dtype, torch.float32)
    total = x.to(wide) if residual is None else x.to(wide) + residual.to(wide)
    kept = torch.float32 if residual_in_fp32 else (x if residual is None else residual).dtype
    scale = weight.to(wide) + 1 if zero_centered_weight else weight.to(wide)
    shift = None if bias is None else bias.to(wide)
    if is_rms_norm:
        y = F.rms_norm(total, total.shape[-1:], scale, eps)
        y = y if shift is None else y + shift
    else:
        y = F.layer_norm(total, total.shape[-1:], scale, shift, eps)
    return (y.to(x.dtype), total.to(kept)) if prenorm else y.to(x.dtype)


def rms_norm_fn(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    x1: Tensor | None = None,
    weight1: Tensor | None = None,
    bias1: Tensor | None = None,
    eps: float = 1e-6,
    dropout_p: float = 0.0,
    rowscale: Tensor | None = None,
    prenorm: bool = False,
    residual_in_fp32: bool = False,
    zero_centered_weight: bool = False,
    return_dropout_mask: bool = False,
) -> Any:
    """The same by the root mean square."""
    return layer_norm_fn(
        x, weight, bias, residual, x1, weight1, bias1, eps, dropout_p, rowscale, prenorm,
        residual_in_fp32, zero_centered_weight, True, return_dropout_mask,
    )  # fmt: skip


class RMSNorm(nn.Module):
    """Division by the root mean square, times a weight."""

    bias: Tensor | None

    def __init__(
        self,
        hidden_size: int,
        eps: float = 1e-5,
        dropout_p: float = 0.0,
        zero_centered_weight: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.eps, self.dropout_p = eps, dropout_p
        self.zero_centered_weight = zero_centered_weight
        initial = torch.zeros if zero_centered_weight else torch.ones
        self.weight = nn.Parameter(initial(hidden_size, device=device, dtype=dtype))
        self.register_parameter("bias", None)

    def forward(
        self,
        x: Tensor,
        residual: Tensor | None = None,
        prenorm: bool = False,
        residual_in_fp32: bool = False,
    ) -> Any:
        """As rms_norm_fn."""
        return rms_norm_fn(
            x, self.weight, self.bias, residual, eps=self.eps,
            dropout_p=self.dropout_p if self.training else 0.0, prenorm=prenorm,
            residual_in_fp32=residual_in_fp32, zero_centered_weight=self.zero_centered_weight,
        )  # fmt: skip


def layer_norm_ref(*operands: Any, **keywords: Any) -> Any:
    """The same as layer_norm_fn."""
    return layer_norm_fn(*operands, **keywords)


def rms_norm_ref(*operands: Any, **keywords: Any) -> Any:
    """The same as rms_norm_fn."""
    return rms_norm_fn(*operands, **keywords)
