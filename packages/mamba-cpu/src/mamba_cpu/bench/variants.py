"""Every way to run a selective scan on a CPU that a person might try, under one signature.

A variant takes Inputs and returns y = C h, (batch, dim, length): no skip, gate, bias or softplus,
so that all of them do the same work. The first seven are the ladder, slowest first.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from importlib.util import find_spec
from pathlib import Path
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional as F

from mamba_cpu import build as _build
from mamba_cpu.ops import selective_scan_fn

TINY = 16  # length; to compile so many steps of an unrolled loop takes some seconds


@dataclass(frozen=True)
class Inputs:
    """u, delta: (batch, dim, length); A: (dim, state); B, C: (batch, state, length). float32."""

    u: Tensor
    delta: Tensor
    A: Tensor
    B: Tensor
    C: Tensor

    @cached_property
    def rows(self) -> tuple[Tensor, ...]:
        """All five with time contiguous, and an output: made once, so that no copy is timed."""
        operands = (self.u, self.delta, self.A, self.B, self.C)
        return (*(x.contiguous() for x in operands), torch.empty(self.u.shape))

    @cached_property
    def out(self) -> Tensor:
        """An output like u that is there already, as a model's allocator would have it."""
        return torch.empty_like(self.u)

    @property
    def elements(self) -> int:
        """batch * dim * length * state: what a materialised intermediate holds."""
        return self.u.numel() * self.A.shape[1]


@dataclass(frozen=True)
class Variant:
    """run: the function. exact: whether y must agree with the recurrence. floats: how many
    batch * dim * length * state arrays of float32 it needs. longest: a length beyond which it is
    not run, and why. order: the power of the length that its time grows with."""

    name: str
    run: Callable[[Inputs], Tensor]
    exact: bool = True
    floats: int = 0
    longest: tuple[int, str] | None = None
    one_thread: bool = False
    order: int = 1


def make_inputs(batch: int, dim: int, length: int, state: int, seed: int = 0) -> Inputs:
    """Inputs of a Mamba's size: delta in [0.001, 0.1], A = -1 ... -state; dim is contiguous."""
    random = torch.Generator().manual_seed(seed)
    u = torch.randn(batch, length, dim, generator=random).transpose(1, 2)
    delta = torch.rand(batch, length, dim, generator=random).mul_(0.099).add_(0.001)
    A = -torch.arange(1.0, state + 1).expand(dim, state).contiguous()
    B, C = (torch.randn(batch, length, state, generator=random).transpose(1, 2) for _ in "BC")
    return Inputs(u, delta.transpose(1, 2), A, B, C)


def scan_einsum(x: Inputs) -> Tensor:
    """PyTorch's einsum, then a loop over time: the usual minimal implementation."""
    decay = torch.exp(torch.einsum("bdl,dn->bldn", x.delta, x.A))
    drive = torch.einsum("bdl,bnl,bdl->bldn", x.delta, x.B, x.u)
    state = torch.zeros_like(drive[:, 0])
    ys = []
    for t in range(x.u.shape[2]):
        state = decay[:, t] * state + drive[:, t]
        ys.append(torch.einsum("bdn,bn->bd", state, x.C[:, :, t]))
    return torch.stack(ys, dim=2)


def scan_loops(x: Inputs) -> Tensor:
    """The same as nested Python loops over numbers."""
    from math import exp

    y = torch.zeros(x.u.shape)
    u, delta, A, B, C = (tensor.tolist() for tensor in (x.u, x.delta, x.A, x.B, x.C))
    for b in range(len(u)):
        for d in range(len(A)):
            state = [0.0] * len(A[d])
            for t in range(len(u[b][d])):
                step = delta[b][d][t]
                total = 0.0
                for n in range(len(state)):
                    state[n] = exp(step * A[d][n]) * state[n] + step * u[b][d][t] * B[b][n][t]
                    total += state[n] * C[b][n][t]
                y[b, d, t] = total
    return y


def scan_transformers(x: Inputs) -> Tensor:
    """What transformers' Mamba runs on a CPU."""
    from transformers.models.mamba.modeling_mamba import mamba_selective_scan

    return mamba_selective_scan(x.u, x.delta, x.A, x.B, x.C)


def scan_mambapy(x: Inputs) -> Tensor:
    """mambapy's parallel scan, as its own Mamba block calls it."""
    from mambapy.pscan import pscan

    decay = torch.exp(torch.einsum("bdl,dn->bldn", x.delta, x.A))
    drive = torch.einsum("bdl,bnl,bdl->bldn", x.delta, x.B, x.u)
    states = pscan(decay, drive)
    return (states @ x.C.transpose(1, 2)[..., None]).squeeze(3).transpose(1, 2)


def scan_associative(x: Inputs) -> Tensor:
    """torch's associative_scan over (decay, drive) pairs."""
    from torch._higher_order_ops.associative_scan import associative_scan

    def combine(left: tuple[Tensor, Tensor], right: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return left[0] * right[0], right[0] * left[1] + right[1]

    decay = torch.exp(torch.einsum("bdl,dn->bldn", x.delta, x.A))
    drive = torch.einsum("bdl,bnl,bdl->bldn", x.delta, x.B, x.u)
    _, states = associative_scan(combine, (decay, drive), dim=1, combine_mode="generic")
    return torch.einsum("bldn,bnl->bdl", states, x.C)


def attention(x: Inputs) -> Tensor:
    """Causal attention of the same width, in heads of 64: the quadratic curve, not a scan."""
    heads = max(1, x.u.shape[1] // 64)
    q = x.u.transpose(1, 2).unflatten(2, (heads, -1)).transpose(1, 2)
    return F.scaled_dot_product_attention(q, q, q, is_causal=True)


def _in_c(library: ctypes.CDLL, name: str, x: Inputs) -> Tensor:
    function = getattr(library, name)
    sizes = (ctypes.c_long * 3)(x.u.shape[1], x.u.shape[2], x.A.shape[1])
    u, delta, A, B, C, y = x.rows
    for b in range(len(u)):
        operands = (u[b], delta[b], A, B[b], C[b], torch.zeros(A.shape), y[b])
        function(sizes, *(ctypes.c_void_p(tensor.data_ptr()) for tensor in operands))
    return y


def _fused(x: Inputs) -> Tensor:
    return cast(Tensor, selective_scan_fn(x.u, x.delta, x.A, x.B, x.C, out=x.out))


def _allocating(x: Inputs) -> Tensor:
    return cast(Tensor, selective_scan_fn(x.u, x.delta, x.A, x.B, x.C))


def all_variants(folder: Path) -> list[Variant]:
    """The ladder, what else is installed, and the limits. Compiles the ladder into `folder`;
    load_kernel must have been called."""
    library = ctypes.CDLL(str(_build.build_ladder(folder).library))
    compiled = torch.compile(scan_einsum)
    unrolls = "compiling unrolls the loop over time"
    variants = [
        Variant("einsum", scan_einsum, floats=2),
        Variant("loops", scan_loops, longest=(TINY, "nested Python loops")),
        *(Variant(name, partial(_in_c, library, f"scan_{name}"), one_thread=True)
          for name in ("fused", "reordered", "unrolled", "vectorized")),
        Variant("parallel", _fused),
        Variant("parallel, new output", _allocating),
        Variant("torch.compile", lambda x: compiled(x), floats=2, longest=(TINY, unrolls)),
        Variant("associative_scan", scan_associative, floats=8),
        Variant("attention", attention, exact=False, order=2),
        Variant("limit: exponentials", partial(_in_c, library, "limit_exponentials"), exact=False,
                one_thread=True),
        Variant("limit: memory", partial(_in_c, library, "limit_memory"), exact=False,
                one_thread=True),
    ]  # fmt: skip
    if find_spec("transformers"):
        variants.insert(8, Variant("transformers", scan_transformers, floats=3))
    if find_spec("mambapy"):
        variants.insert(9, Variant("mambapy", scan_mambapy, floats=6))
    return variants
