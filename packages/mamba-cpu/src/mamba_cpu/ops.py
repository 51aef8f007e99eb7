"""The selective scan as a function of tensors, checked so that mistakes are told in words.

The recurrence is equation 2 of Gu and Dao, "Mamba: Linear-Time Sequence Modeling with Selective
State Spaces" (2023), discretised as in their section 3.3 and in `mamba_ssm`, whose
`selective_scan_fn` this one agrees with.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mamba_cpu import build as _build

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
WIDEST_CONVOLUTION = 32  # kWidest in csrc/scan.h

_kernel: Any = None  # the operator's namespace, once load_kernel has run


def load_kernel(folder: str | Path, level: str | None = None) -> _build.Build:
    """Compile the kernel into `folder` if it is not there yet, and use it from now on.

    level: "avx512", "avx2" or "portable"; by default the best this CPU runs.
    Raises BuildError if there is no compiler, if the CPU cannot run `level`, or if the process
    uses another build of it already.
    """
    global _kernel
    if level is not None:
        _build.require_level(level)
    built = _build.build(Path(folder), level)
    _build.load(built)
    _kernel = getattr(torch.ops, f"selective_scan_{built.level}")
    return built


def kernel() -> Any:
    """The loaded operators. Raises RuntimeError if load_kernel has not been called."""
    if _kernel is None:
        raise RuntimeError(
            "the scan kernel is not loaded: call mamba_cpu.load_kernel(folder) first, with a "
            "folder that keeps the compiled library"
        )
    return _kernel


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
    Raises ValueError for shapes, TypeError for dtypes, devices and complex A, and RuntimeError
    where a gradient is asked for: there is no backward pass.
    """
    named = {"u": u, "delta": delta, "A": A, "B": B, "C": C, "D": D, "z": z}
    named |= {"delta_bias": delta_bias, "initial_state": initial_state, "out": out}
    given = {name: tensor for name, tensor in named.items() if tensor is not None}
    _check_kinds(given)
    _check_shapes(given)
    scan = kernel().scan
    operands = (u, delta, A, B, C, D, z, delta_bias, delta_softplus)
    if out is None:
        y, state = scan(*operands, initial_state)
    else:
        _check_apart(given)
        state = u.new_zeros((*u.shape[:2], A.shape[1]), dtype=torch.float32)
        if initial_state is not None:
            state.copy_(initial_state)
        scan.out(*operands, out=out, state=state)
        y = out
    return (y, state) if return_last_state else y


def causal_conv1d(x: Tensor, weight: Tensor, bias: Tensor | None, silu: bool) -> Tensor:
    """The causal depthwise convolution in front of the scan, with its SiLU if asked for.

    x: (batch, dim, length), any strides; weight: (dim, width); bias: (dim). Like x.
    """
    y: Tensor = kernel().causal_conv1d(x, weight, bias, silu)
    return y


def _check_kinds(given: dict[str, Tensor]) -> None:
    for name in ("u", "delta", "A", "B", "C"):
        if name not in given:
            raise TypeError(f"{name} must be a tensor, not None")
    for name, tensor in given.items():
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name} must be a tensor, not {type(tensor).__name__}")
        if tensor.device.type not in ("cpu", "meta"):
            raise TypeError(f"{name} is on {tensor.device}: this scan runs on the CPU only")
        if tensor.is_meta != given["u"].is_meta:
            raise TypeError(f"{name} is on {tensor.device}, and u on {given['u'].device}")
        if tensor.layout != torch.strided:
            raise TypeError(f"{name} is {tensor.layout}: use a dense tensor")
        if tensor.is_complex():
            raise TypeError(f"{name} is complex: only the real selective scan is implemented")
        if tensor.dtype not in DTYPES:
            raise TypeError(f"{name} is {tensor.dtype}: use float32, bfloat16 or float16")
        if tensor.requires_grad and torch.is_grad_enabled():
            raise RuntimeError(
                f"{name} requires a gradient, and this scan has no backward pass: "
                "run it under torch.no_grad() or torch.inference_mode()"
            )
    if "out" in given and given["out"].dtype != given["u"].dtype:
        raise TypeError(f"out is {given['out'].dtype} where u is {given['u'].dtype}")


def _check_shapes(given: dict[str, Tensor]) -> None:
    u, A = given["u"], given["A"]
    if u.dim() != 3:
        raise ValueError(f"u must be (batch, dim, length), not {tuple(u.shape)}")
    batch, dim, length = u.shape
    if A.dim() != 2 or A.shape[0] != dim or A.shape[1] == 0:
        raise ValueError(f"A must be (dim, state) with dim {dim}, not {tuple(A.shape)}")
    states = A.shape[1]
    expected = {"delta": u.shape, "z": u.shape, "out": u.shape, "D": (dim,), "delta_bias": (dim,)}
    expected["initial_state"] = (batch, dim, states)
    for name, shape in expected.items():
        if name in given and given[name].shape != shape:
            raise ValueError(f"{name} is {tuple(given[name].shape)}, expected {tuple(shape)}")
    for name in "BC":
        _check_projection(name, given[name], batch, dim, states, length)
    groups = {given[name].shape[1] for name in "BC" if given[name].dim() == 4}
    plain = any(given[name].dim() == 3 for name in "BC")
    if len(groups | ({1} if plain else set())) > 1:
        raise ValueError("B and C must have the same number of groups")


def _check_projection(
    name: str, tensor: Tensor, batch: int, dim: int, states: int, length: int
) -> None:
    shape = tuple(tensor.shape)
    allowed = {2: (dim, states), 3: (batch, states, length)}
    if tensor.dim() == 4:
        groups = shape[1]
        if groups == 0 or dim % groups:
            raise ValueError(f"dim {dim} is not divisible by the {groups} groups of {name}")
        allowed[4] = (batch, groups, states, length)
    if allowed.get(tensor.dim()) != shape:
        raise ValueError(
            f"{name} is {shape}, expected (dim, state) {allowed[2]}, (batch, state, length) "
            f"{allowed[3]} or (batch, groups, state, length)"
        )


def _check_apart(given: dict[str, Tensor]) -> None:
    out = given["out"]
    mine = _addresses(out)
    for name, tensor in given.items():
        its = _addresses(tensor)
        if name != "out" and mine.start < its.stop and its.start < mine.stop:
            raise ValueError(f"out shares memory with {name}, or lies between its elements")
    reach = 0  # of the dimensions with smaller strides
    for stride, size in sorted(zip(out.stride(), out.shape, strict=True)):
        if size > 1 and stride <= reach:
            raise ValueError("out repeats memory (by its strides), so it cannot be written to")
        reach += stride * (size - 1)


def _addresses(tensor: Tensor) -> range:
    """From the first byte to the last; empty where there is no memory."""
    if tensor.is_meta or tensor.numel() == 0:
        return range(0)
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    last = sum((size - 1) * stride for size, stride in pairs)
    return range(tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size())
