"""The older place of layer_norm, in the order of arguments that it had."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from mamba_ssm.ops.triton import layer_norm as _now
from mamba_ssm.ops.triton.layer_norm import RMSNorm

__all__ = ["RMSNorm", "layer_norm_fn", "rms_norm_fn"]


def layer_norm_fn(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None = None,
    eps: float = 1e-6,
    prenorm: bool = False,
    residual_in_fp32: bool = False,
    is_rms_norm: bool = False,
) -> Any:
    """As mamba_ssm.ops.triton.layer_norm.layer_norm_fn."""
    return _now.layer_norm_fn(
        x, weight, bias, residual, eps=eps, prenorm=prenorm, residual_in_fp32=residual_in_fp32,
        is_rms_norm=is_rms_norm,
    )  # fmt: skip


def rms_norm_fn(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None = None,
    prenorm: bool = False,
    residual_in_fp32: bool = False,
    eps: float = 1e-6,
) -> Any:
    """As mamba_ssm.ops.triton.layer_norm.rms_norm_fn."""
    return layer_norm_fn(x, weight, bias, residual, eps, prenorm, residual_in_fp32, True)
