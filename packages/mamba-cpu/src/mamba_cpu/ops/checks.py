"""What the operands of the scan may be; every mistake is told in words, by name."""

from __future__ import annotations

import torch
from torch import Tensor

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def check_tensors(given: dict[str, Tensor]) -> None:
    """Raise TypeError, by name, for what is no dense real tensor of DTYPES beside the first one."""
    first_name, first = next(iter(given.items()))
    for name, tensor in given.items():
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name} must be a tensor, not {type(tensor).__name__}")
        if tensor.device.type not in ("cpu", "meta"):
            raise TypeError(f"{name} is on {tensor.device}: mamba_cpu runs on the CPU only")
        if tensor.is_meta != first.is_meta:
            raise TypeError(
                f"{name} is on {tensor.device}, and {first_name} on {given['u'].device}"
            )
        if tensor.layout != torch.strided:
            raise TypeError(f"{name} is {tensor.layout}: use a dense tensor")
        if tensor.is_complex():
            raise TypeError(f"{name} is complex: only the real selective scan is implemented")
        if tensor.dtype not in DTYPES:
            raise TypeError(f"{name} is {tensor.dtype}: use float32, bfloat16 or float16")


def check_shape(name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    """Raise ValueError if a tensor has another shape."""
    if tuple(tensor.shape) != shape:
        raise ValueError(f"{name} is {tuple(tensor.shape)}, expected {shape}")


def check_kinds(given: dict[str, Tensor]) -> None:
    for name in ("u", "delta", "A", "B", "C"):
        if name not in given:
            raise TypeError(f"{name} must be a tensor, not None")
    check_tensors(given)
    if "out" in given and torch.is_grad_enabled():
        for name, tensor in given.items():
            if tensor.requires_grad:
                raise RuntimeError(
                    f"{name} requires a gradient, which does not pass through out=: leave out= "
                    "away, or call the scan under torch.no_grad() or torch.inference_mode()"
                )
    if "out" in given and given["out"].dtype != given["u"].dtype:
        raise TypeError(f"out is {given['out'].dtype} where u is {given['u'].dtype}")


def check_shapes(given: dict[str, Tensor]) -> None:
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


def check_apart(given: dict[str, Tensor]) -> None:
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
