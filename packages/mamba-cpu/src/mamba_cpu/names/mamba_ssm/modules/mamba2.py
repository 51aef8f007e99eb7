"""The mixer of Mamba-2 (Dao & Gu 2024, section 7)."""

from __future__ import annotations

from typing import Any

import torch
from causal_conv1d import causal_conv1d_fn, causal_conv1d_update
from torch import Tensor, nn
from torch.nn import functional as F

from mamba_cpu.ops import selective_state_update, ssd_scan
from mamba_ssm.modules.mamba_simple import latest, states_from_cache, steps_before_softplus
from mamba_ssm.ops.triton.layernorm_gated import RMSNorm


class Mamba2(nn.Module):
    """Projection, convolution, scan with a decay for each head, norm, projection."""

    def __init__(
        self,
        d_model: int,
        d_state: int = 128,
        d_conv: int = 4,
        conv_init: float | None = None,
        expand: float = 2,
        headdim: int = 64,
        d_ssm: int | None = None,
        ngroups: int = 1,
        A_init_range: tuple[float, float] = (1, 16),
        D_has_hdim: bool = False,
        rmsnorm: bool = True,
        norm_before_gate: bool = False,
        dt_min: float = 0.001,
        dt_max: float = 0.1,
        dt_init_floor: float = 1e-4,
        dt_limit: tuple[float, float] = (0.0, float("inf")),
        bias: bool = False,
        conv_bias: bool = True,
        chunk_size: int = 256,
        use_mem_eff_path: bool = True,
        layer_idx: int | None = None,
        process_group: Any = None,
        sequence_parallel: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if process_group is not None:
            raise NotImplementedError("process_group is not implemented on the CPU: leave it out")
        kind: dict[str, Any] = {"device": device, "dtype": dtype}
        self.d_model, self.d_state, self.d_conv, self.expand = d_model, d_state, d_conv, expand
        self.d_inner = int(expand * d_model)
        self.headdim, self.ngroups = headdim, ngroups
        self.d_ssm = self.d_inner if d_ssm is None else d_ssm
        self.nheads = self.d_ssm // headdim
        if self.nheads * headdim != self.d_ssm or self.nheads % ngroups:
            raise ValueError(
                f"{self.d_ssm} channels are no multiple of headdim {headdim}, or {self.nheads} "
                f"heads none of {ngroups} groups"
            )
        self.D_has_hdim, self.rmsnorm, self.norm_before_gate = D_has_hdim, rmsnorm, norm_before_gate
        self.dt_limit, self.chunk_size, self.layer_idx = dt_limit, chunk_size, layer_idx
        self.activation, self.act = "silu", nn.SiLU()
        projected = 2 * self.d_inner + 2 * ngroups * d_state + self.nheads
        self.in_proj = nn.Linear(d_model, projected, bias=bias, **kind)
        convolved = self.d_ssm + 2 * ngroups * d_state
        self.conv1d = nn.Conv1d(
            convolved, convolved, d_conv, groups=convolved, padding=d_conv - 1, bias=conv_bias,
            **kind,
        )  # fmt: skip
        if conv_init is not None:
            nn.init.uniform_(self.conv1d.weight, -conv_init, conv_init)
        steps = steps_before_softplus(self.nheads, dt_min, dt_max, dt_init_floor, device)
        self.dt_bias = nn.Parameter(steps.to(dtype))
        A = torch.empty(self.nheads, device=device).uniform_(*A_init_range)
        self.A_log = nn.Parameter(torch.log(A).to(dtype))
        self.D = nn.Parameter(torch.ones(self.d_ssm if D_has_hdim else self.nheads, device=device))
        for parameter in (self.dt_bias, self.A_log, self.D):
            parameter._no_weight_decay = True  # type: ignore[attr-defined]
        if rmsnorm:
            self.norm = RMSNorm(
                self.d_ssm, eps=1e-5, group_size=self.d_ssm // ngroups,
                norm_before_gate=norm_before_gate, **kind,
            )  # fmt: skip
        self.out_proj = nn.Linear(self.d_inner, d_model, bias=bias, **kind)

    def forward(
        self,
        u: Tensor,
        seqlen: int | None = None,
        seq_idx: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        inference_params: Any = None,
    ) -> Tensor:
        """u: (batch, length, d_model), or (batch · seqlen, d_model), and so the result.

        seq_idx: (batch, length), the sequence that each time is of. inference_params: the cache
        that generation hands on; any number of times may follow it.
        """
        if cu_seqlens is not None:
            raise NotImplementedError("cu_seqlens is not implemented on the CPU: give seq_idx")
        whole = u if seqlen is None else u.unflatten(0, (-1, seqlen))
        z0, x0, z, xBC, dt = self._split(self.in_proj(whole))
        conv_state = ssm_state = None
        begun = False
        if inference_params is not None:
            conv_state, ssm_state = self._get_states_from_cache(inference_params, whole.shape[0])
            begun = inference_params.seqlen_offset > 0
        xBC = xBC.mT
        before = None
        if conv_state is not None:
            before = conv_state[:, :, 1 - self.d_conv :].clone() if begun else None
            conv_state.copy_(latest(conv_state if begun else None, xBC, self.d_conv))
        xBC = causal_conv1d_fn(
            xBC, self.conv1d.weight.flatten(1), self.conv1d.bias, seq_idx, before, activation="silu"
        ).mT
        x, B, C = self._of_scan(xBC)
        y, last = ssd_scan(
            x, dt, -torch.exp(self.A_log.float()), B, C, self._skip(),
            None if self.rmsnorm else z.unflatten(-1, (self.nheads, self.headdim)),
            self.dt_bias, True, ssm_state if begun else None, seq_idx, self.dt_limit,
        )  # fmt: skip
        if ssm_state is not None:
            ssm_state.copy_(last)
        out = self._out(y.flatten(-2), z, z0, x0)
        return out if seqlen is None else out.flatten(0, 1)

    def step(
        self, hidden_states: Tensor, conv_state: Tensor, ssm_state: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """One time: (batch, 1, d_model); both states are updated in place."""
        if hidden_states.shape[1] != 1:
            raise ValueError(f"step takes one time, not {hidden_states.shape[1]}: call the module")
        if self.dt_limit != (0.0, float("inf")):
            raise NotImplementedError("step has no dt_limit: call the module with its cache")
        z0, x0, z, xBC, dt = self._split(self.in_proj(hidden_states[:, 0]))
        xBC = causal_conv1d_update(
            xBC, conv_state, self.conv1d.weight.flatten(1), self.conv1d.bias, self.activation
        )
        x, B, C = self._of_scan(xBC)

        def of_head(t: Tensor, *sizes: int) -> Tensor:
            return t.reshape(*t.shape, *(1 for _ in sizes)).expand(*t.shape, *sizes)

        D = self._skip()
        y = selective_state_update(
            ssm_state, x, of_head(dt, self.headdim),
            of_head(-torch.exp(self.A_log.float()), self.headdim, self.d_state), B, C,
            of_head(D, self.headdim) if D.dim() == 1 else D,
            None if self.rmsnorm else z.unflatten(-1, (self.nheads, self.headdim)),
            of_head(self.dt_bias, self.headdim), True,
        )  # fmt: skip
        return self._out(y.flatten(-2), z, z0, x0)[:, None], conv_state, ssm_state

    def _split(self, projected: Tensor) -> tuple[Tensor, ...]:
        """Return the MLP's two halves (empty where all channels are scanned), z, xBC and dt."""
        mlp = self.d_inner - self.d_ssm
        convolved = self.d_ssm + 2 * self.ngroups * self.d_state
        return projected.split([mlp, mlp, self.d_ssm, convolved, self.nheads], dim=-1)

    def _of_scan(self, xBC: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        states = self.ngroups * self.d_state
        x, B, C = xBC.split([self.d_ssm, states, states], dim=-1)
        shape = (self.ngroups, self.d_state)
        heads = x.unflatten(-1, (self.nheads, self.headdim))
        return heads, B.unflatten(-1, shape), C.unflatten(-1, shape)

    def _skip(self) -> Tensor:
        D = self.D.float()
        return D.unflatten(0, (self.nheads, self.headdim)) if self.D_has_hdim else D

    def _out(self, y: Tensor, z: Tensor, z0: Tensor, x0: Tensor) -> Tensor:
        y = self.norm(y, z) if self.rmsnorm else y
        if x0.shape[-1]:
            y = torch.cat([F.silu(z0) * x0, y], dim=-1)
        return self.out_proj(y.to(self.out_proj.weight.dtype))

    def allocate_inference_cache(
        self, batch_size: int, max_seqlen: int, dtype: torch.dtype | None = None, **_: Any
    ) -> tuple[Tensor, Tensor]:
        """Return zero states of the convolution and of the scan."""
        weight = self.in_proj.weight
        convolved = self.conv1d.weight.shape[0]
        shape = (batch_size, self.nheads, self.headdim, self.d_state)
        return (
            weight.new_zeros(batch_size, convolved, self.d_conv, dtype=dtype),
            weight.new_zeros(shape, dtype=dtype),
        )

    def _get_states_from_cache(
        self, inference_params: Any, batch_size: int, initialize_states: bool = False
    ) -> tuple[Tensor, Tensor]:
        return states_from_cache(self, inference_params, batch_size, initialize_states)
