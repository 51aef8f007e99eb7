"""Make a transformers Mamba model use the fused kernels, and undo it.

transformers' own hook, `use_kernel_func_from_hub_with_fallback`, chooses an implementation once,
while the model's module is imported, for every model of the process, from a package on the path or
from the Hub (with the `kernels` package): it has no place for a function handed over later, and no
way back. So each mixer of this one model gets its own copy of transformers' forward, the same code
in which the names of the functions mean ours, and which sees dt_proj's weight through a view that
spares a copy. Other models, and the class, stay as they are.
"""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mamba_cpu.ops import (
    DTYPES,
    WIDEST_CONVOLUTION,
    causal_conv1d,
    kernel,
    selective_scan_fn,
)

MIXERS = ("MambaMixer", "FalconMambaMixer")
_FLAG = "_fused_scan"
NEEDS_GRADIENTS = (
    "the fused scan has no backward pass, so transformers' own runs where gradients are on: call "
    "the model under torch.inference_mode() or torch.no_grad()"
)


def use_fused_scan(model: nn.Module, convolution: bool = True) -> Callable[[], None]:
    """Run the selective scan of every mixer of a Mamba or FalconMamba model by the fused kernel.

    convolution: the causal convolution and its SiLU too. Returns a function that undoes it all.
    Calls with gradients on (which warn), other devices than the CPU, other dtypes than float32,
    bfloat16 and float16, wider convolutions than 32 and generation's steps of one token keep
    transformers' code. Raises TypeError if the model has no such mixer, RuntimeError if the kernel
    is not loaded or the model uses it already.
    """
    kernel()  # tells at once, and not in the first forward pass, if it is not loaded
    mixers = mixers_of(model)
    if not mixers:
        raise TypeError(
            f"{type(model).__name__} has no Mamba or FalconMamba mixer; use_fused_scan knows "
            f"{' and '.join(MIXERS)} of transformers"
        )
    if any(hasattr(mixer, _FLAG) for mixer in mixers):
        raise RuntimeError("this model uses the fused scan already: undo that first")
    for mixer in mixers:
        original = inspect.unwrap(type(mixer).forward)
        names = {"mamba_selective_scan": _scan_or(original.__globals__["mamba_selective_scan"])}
        if convolution:
            names["causal_conv1d_fn"] = _conv_or(original.__globals__["causal_conv1d_fn"])
        mixer.forward = MethodType(_with_names(original, names), _View(mixer, dt_proj=_no_copy))
        setattr(mixer, _FLAG, True)

    def undo() -> None:
        while mixers:  # emptied, so that once more does not undo a later patch
            mixer = mixers.pop()
            delattr(mixer, _FLAG)
            del mixer.forward

    return undo


def mixers_of(model: nn.Module) -> list[nn.Module]:
    """Return the modules that hold a selective scan."""
    return [module for module in model.modules() if type(module).__name__ in MIXERS]


def _with_names(function: FunctionType, names: dict[str, Any]) -> FunctionType:
    """The same code, in which some global names mean something else."""
    return FunctionType(
        function.__code__,
        {**function.__globals__, **names},
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )


class _View:
    """An object some of whose attributes, by name, are seen through a function."""

    def __init__(self, original: Any, **seen: Callable[[Any], Any]) -> None:
        self._original, self._seen = original, seen

    def __deepcopy__(self, memo: dict[int, Any]) -> _View:
        return _View(copy.deepcopy(self._original, memo), **self._seen)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(
            "a model that uses the fused scan cannot be pickled: undo that first, or save its "
            "weights (state_dict, save_pretrained)"
        )

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._original, name)
        return self._seen[name](attribute) if name in self._seen else attribute

    def __call__(self, *operands: Any) -> Any:
        return self._original(*operands)


class _Projecting(Tensor):
    """A weight of which `weight @ x` is what the linear layer gives, transposed.

    torch's own `@` of a matrix and a batch computes the same, and then copies it into the other
    layout, which the scan likes less.
    """

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    def __matmul__(self, other: Any) -> Tensor:
        return F.linear(other.mT, self).mT


def _no_copy(linear: nn.Module) -> _View:
    return _View(linear, weight=lambda weight: weight.as_subclass(_Projecting))


def _usable(*tensors: Tensor | None) -> bool:
    given = [tensor for tensor in tensors if tensor is not None]
    graded = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in given)
    if graded:
        warnings.warn(NEEDS_GRADIENTS, stacklevel=2)
    return (
        not graded
        and len({tensor.device for tensor in given}) == 1
        and given[0].device.type in ("cpu", "meta")
        and all(tensor.dtype in DTYPES for tensor in given)
    )


def _scan_or(fallback: Callable[..., Any]) -> Callable[..., Any]:
    def scan(
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
        **others: Any,
    ) -> Tensor | tuple[Tensor, Tensor]:
        operands = (u, delta, A, B, C, D, z, delta_bias)
        run = selective_scan_fn if _usable(*operands) else fallback
        keywords = {} if run is selective_scan_fn else others
        return run(*operands, delta_softplus, return_last_state, **keywords)

    return scan


def _conv_or(fallback: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def convolve(
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        activation: str | None = None,
        **others: Any,
    ) -> Tensor:
        known = activation in (None, "silu", "swish") and weight.shape[-1] <= WIDEST_CONVOLUTION
        if known and _usable(x, weight, bias):
            return causal_conv1d(x, weight, bias, activation is not None)
        return fallback(x, weight, bias, activation=activation, **others)

    return convolve
