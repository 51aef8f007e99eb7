"""The mixer of Mamba (Gu & Dao 2023, section 3.4)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from causal_conv1d import causal_conv1d_fn, causal_conv1d_update
from torch import Tensor, nn
from torch.nn import functional as F

from mamba_cpu.ops import selective_scan_fn, selective_state_update
from mamba_ssm.modules import block as _block
from mamba_ssm.ops.selective_scan_interface import mamba_inner_fn


class Mamba(nn.Module):
    """Projection, convolution, selective scan, projection."""

    def __init__(
        self,
        d_model: int,
        d_state: int = 16,
        d_conv: int = 4,
        expand: float = 2,
        dt_rank: int | str = "auto",
        dt_min: float = 0.001,
        dt_max: float = 0.1,
        dt_init: str = "random",
        dt_scale: float = 1.0,
        dt_init_floor: float = 1e-4,
        conv_bias: bool = True,
        bias: bool = False,
        use_fast_path: bool = True,
        layer_idx: int | None = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        kind: dict[str, Any] = {"device": device, "dtype": dtype}
        self.d_model, self.d_state, self.d_conv, self.expand = d_model, d_state, d_conv, expand
        self.d_inner = int(expand * d_model)
        self.dt_rank = math.ceil(d_model / 16) if dt_rank == "auto" else int(dt_rank)
        self.use_fast_path, self.layer_idx = use_fast_path, layer_idx
        self.in_proj = nn.Linear(d_model, 2 * self.d_inner, bias=bias, **kind)
        self.conv1d = nn.Conv1d(
            self.d_inner, self.d_inner, d_conv, groups=self.d_inner, padding=d_conv - 1,
            bias=conv_bias, **kind,
        )  # fmt: skip
        self.activation, self.act = "silu", nn.SiLU()
        self.x_proj = nn.Linear(self.d_inner, self.dt_rank + 2 * d_state, bias=False, **kind)
        self.dt_proj = nn.Linear(self.dt_rank, self.d_inner, bias=True, **kind)
        std = self.dt_rank**-0.5 * dt_scale
        if dt_init == "constant":
            nn.init.constant_(self.dt_proj.weight, std)
        elif dt_init == "random":
            nn.init.uniform_(self.dt_proj.weight, -std, std)
        else:
            raise NotImplementedError(f"dt_init is {dt_init!r}: use 'random' or 'constant'")
        with torch.no_grad():
            self.dt_proj.bias.copy_(
                steps_before_softplus(self.d_inner, dt_min, dt_max, dt_init_floor, device)
            )
        self.dt_proj.bias._no_reinit = True  # type: ignore[attr-defined]
        A = torch.arange(1, d_state + 1, dtype=torch.float32, device=device)
        self.A_log = nn.Parameter(torch.log(A).repeat(self.d_inner, 1))
        self.D = nn.Parameter(torch.ones(self.d_inner, device=device))
        self.A_log._no_weight_decay = self.D._no_weight_decay = True  # type: ignore[attr-defined]
        self.out_proj = nn.Linear(self.d_inner, d_model, bias=bias, **kind)

    def forward(self, hidden_states: Tensor, inference_params: Any = None) -> Tensor:
        """hidden_states: (batch, length, d_model), and so the result.

        inference_params: the cache that generation hands on; any number of times may follow it.
        """
        A = -torch.exp(self.A_log.float())
        xz = self.in_proj(hidden_states).mT
        if inference_params is None:
            return mamba_inner_fn(
                xz, self.conv1d.weight, self.conv1d.bias, self.x_proj.weight, self.dt_proj.weight,
                self.out_proj.weight, self.out_proj.bias, A, D=self.D.float(),
                delta_bias=self.dt_proj.bias.float(), delta_softplus=True,
            )  # fmt: skip
        conv_state, ssm_state = self._get_states_from_cache(
            inference_params, hidden_states.shape[0]
        )
        begun = inference_params.seqlen_offset > 0
        x, z = xz.chunk(2, dim=1)
        reach = self.d_conv - 1
        before = conv_state[:, :, -reach:].clone() if begun else None
        conv_state.copy_(latest(conv_state if begun else None, x, self.d_conv))
        x = causal_conv1d_fn(
            x, self.conv1d.weight.flatten(1), self.conv1d.bias, initial_states=before,
            activation="silu",
        )  # fmt: skip
        dt, B, C = self.x_proj(x.mT).split([self.dt_rank, self.d_state, self.d_state], dim=-1)
        y, last = selective_scan_fn(
            x, F.linear(dt, self.dt_proj.weight).mT, A, B.mT, C.mT, self.D.float(), z,
            self.dt_proj.bias.float(), True, True, initial_state=ssm_state if begun else None,
        )  # fmt: skip
        ssm_state.copy_(last)
        return self.out_proj(y.mT)

    def step(
        self, hidden_states: Tensor, conv_state: Tensor, ssm_state: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """One time: (batch, 1, d_model); both states are updated in place."""
        if hidden_states.shape[1] != 1:
            raise ValueError(f"step takes one time, not {hidden_states.shape[1]}: call the module")
        x, z = self.in_proj(hidden_states[:, 0]).chunk(2, dim=-1)
        x = causal_conv1d_update(
            x, conv_state, self.conv1d.weight.flatten(1), self.conv1d.bias, self.activation
        )
        dt, B, C = self.x_proj(x).split([self.dt_rank, self.d_state, self.d_state], dim=-1)
        y = selective_state_update(
            ssm_state, x, F.linear(dt, self.dt_proj.weight), -torch.exp(self.A_log.float()), B, C,
            self.D, z, self.dt_proj.bias, True,
        )  # fmt: skip
        return self.out_proj(y)[:, None], conv_state, ssm_state

    def allocate_inference_cache(
        self, batch_size: int, max_seqlen: int, dtype: torch.dtype | None = None, **_: Any
    ) -> tuple[Tensor, Tensor]:
        """Return zero states of the convolution and of the scan."""
        return (
            self.conv1d.weight.new_zeros(batch_size, self.d_inner, self.d_conv, dtype=dtype),
            self.dt_proj.weight.new_zeros(batch_size, self.d_inner, self.d_state, dtype=dtype),
        )

    def _get_states_from_cache(
        self, inference_params: Any, batch_size: int, initialize_states: bool = False
    ) -> tuple[Tensor, Tensor]:
        return states_from_cache(self, inference_params, batch_size, initialize_states)


class Block(_block.Block):
    """The older place of modules.block.Block, where a block had no MLP."""

    def __init__(
        self,
        dim: int,
        mixer_cls: Callable[[int], nn.Module],
        norm_cls: Callable[[int], nn.Module] = nn.LayerNorm,
        fused_add_norm: bool = False,
        residual_in_fp32: bool = False,
    ) -> None:
        super().__init__(dim, mixer_cls, nn.Identity, norm_cls, fused_add_norm, residual_in_fp32)


def steps_before_softplus(
    count: int, least: float, most: float, floor: float, device: Any
) -> Tensor:
    """Return biases whose softplus is spread evenly in the logarithm (Gu & Dao 2023, 3.6)."""
    low, high = math.log(least), math.log(most)
    steps = torch.exp(torch.rand(count, device=device) * (high - low) + low).clamp(min=floor)
    return steps + torch.log(-torch.expm1(-steps))


def latest(before: Tensor | None, x: Tensor, room: int) -> Tensor:
    """Return the last ``room`` times of x (batch, dim, length), behind those before or zeros."""
    before = x.new_zeros(*x.shape[:2], room) if before is None else before.to(x.dtype)
    return torch.cat([before, x], dim=2)[:, :, -room:]


def states_from_cache(
    module: Any, inference_params: Any, batch_size: int, initialize_states: bool
) -> tuple[Tensor, Tensor]:
    """Return a module's states in the cache, made where they are not there yet."""
    if module.layer_idx is None:
        raise ValueError("a layer needs its layer_idx to find its states in the cache")
    kept = inference_params.key_value_memory_dict
    if module.layer_idx not in kept:
        kept[module.layer_idx] = module.allocate_inference_cache(batch_size, 0)
    states = kept[module.layer_idx]
    if states[0].shape[0] != batch_size:
        raise ValueError(
            f"the cache is of {states[0].shape[0]} rows, and the input has {batch_size}"
        )
    if initialize_states:
        for state in states:
            state.zero_()
    return states
