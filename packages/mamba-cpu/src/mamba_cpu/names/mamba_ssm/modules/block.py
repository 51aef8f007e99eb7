"""A block: norm and mixer, and perhaps norm and MLP, with the residual stream beside them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from mamba_ssm.ops.triton.layer_norm import RMSNorm, layer_norm_fn


class Block(nn.Module):
    """Add to the residual, then normalise, then mix: the order that spares a pass over memory."""

    def __init__(
        self,
        dim: int,
        mixer_cls: Callable[[int], nn.Module],
        mlp_cls: Callable[[int], nn.Module] = nn.Identity,
        norm_cls: Callable[[int], nn.Module] = nn.LayerNorm,
        fused_add_norm: bool = False,
        residual_in_fp32: bool = False,
    ) -> None:
        super().__init__()
        self.residual_in_fp32, self.fused_add_norm = residual_in_fp32, fused_add_norm
        self.norm = norm_cls(dim)
        self.mixer = mixer_cls(dim)
        if mlp_cls is nn.Identity:
            self.mlp = None
        else:
            self.norm2 = norm_cls(dim)
            self.mlp = mlp_cls(dim)

    def forward(
        self,
        hidden_states: Tensor,
        residual: Tensor | None = None,
        inference_params: Any = None,
        **mixer_kwargs: Any,
    ) -> tuple[Tensor, Tensor]:
        """Return what the block adds (batch, length, dim), and the residual to add it to."""
        x, residual = add_and_normalize(self.norm, hidden_states, residual, self.residual_in_fp32)
        x = self.mixer(x, inference_params=inference_params, **mixer_kwargs)
        if self.mlp is not None:
            x, residual = add_and_normalize(self.norm2, x, residual, self.residual_in_fp32)
            x = self.mlp(x)
        return x, residual

    def allocate_inference_cache(
        self, batch_size: int, max_seqlen: int, dtype: torch.dtype | None = None, **kwargs: Any
    ) -> Any:
        """As the mixer's."""
        mixer: Any = self.mixer
        return mixer.allocate_inference_cache(batch_size, max_seqlen, dtype=dtype, **kwargs)


def add_and_normalize(
    norm: Any, x: Tensor, residual: Tensor | None, residual_in_fp32: bool
) -> tuple[Tensor, Tensor]:
    """Return the norm of x + residual, and that sum."""
    return layer_norm_fn(
        x, norm.weight, norm.bias, residual, eps=norm.eps, prenorm=True,
        residual_in_fp32=residual_in_fp32, is_rms_norm=isinstance(norm, RMSNorm | nn.RMSNorm),
        zero_centered_weight=getattr(norm, "zero_centered_weight", False),
    )  # fmt: skip
