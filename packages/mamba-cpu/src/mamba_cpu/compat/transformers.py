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
from collections.abc import Callable
from types import CellType, FunctionType, MethodType
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
_PATCHED = "_mamba_cpu"  # on a mixer: the name of the attribute that holds our forward, and it


def accelerate(model: nn.Module, convolution: bool = True) -> Callable[[], None]:
    """Run the selective scan of every mixer of a Mamba or FalconMamba model by the fused kernel.

    convolution: the causal convolution and its SiLU too. Returns a function that undoes it all; an
    accelerated model, or a copy of one, is done anew. Gradients pass. Several tokens after a cache
    continue from its state, where transformers begins from zero.
    Other devices than the CPU, other dtypes than float32, bfloat16 and float16, wider convolutions
    than 32 and generation's steps of one token keep transformers' code.

    Raises TypeError if the model has no such mixer, or one with a forward of its own: wrap it
    afterwards. Raises BuildError if the kernel cannot be compiled.
    """
    kernel()  # tells at once, and not in the first forward pass
    mixers = mixers_of(model)
    if not mixers:
        raise TypeError(
            f"{type(model).__name__} has no Mamba or FalconMamba mixer; accelerate knows "
            f"{' and '.join(MIXERS)} of transformers"
        )
    for mixer in mixers:
        _restore(mixer)
    forwards = [_fused_forward(_original(mixer), convolution) for mixer in mixers]
    patches = []
    for mixer, forward in zip(mixers, forwards, strict=True):
        # The hooks that bring weights from the disk call what they keep under this name.
        name = "_old_forward" if "_old_forward" in vars(mixer) else "forward"
        patch = (name, MethodType(forward, _View(mixer, dt_proj=_no_copy)))
        setattr(mixer, name, patch[1])
        setattr(mixer, _PATCHED, patch)
        patches.append(patch)

    def undo() -> None:
        for mixer, patch in zip(mixers, patches, strict=True):
            if getattr(mixer, _PATCHED, None) is patch:  # and not a later one
                _restore(mixer)

    return undo


use_fused_scan = accelerate
"""The older name."""


def mixers_of(model: nn.Module) -> list[nn.Module]:
    """Return the modules that hold a selective scan, those of subclasses among them."""
    return [
        module
        for module in model.modules()
        if any(base.__name__ in MIXERS for base in type(module).__mro__)
    ]


def _restore(mixer: nn.Module) -> None:
    if not hasattr(mixer, _PATCHED):
        return
    name, forward = getattr(mixer, _PATCHED)
    if vars(mixer).get(name) is not forward:
        raise RuntimeError(
            f"the forward of {type(mixer).__name__} was wrapped after accelerate: take the wrapper "
            "off first"
        )
    delattr(mixer, _PATCHED)
    if name == "forward":
        del mixer.forward
    else:
        setattr(mixer, name, MethodType(type(mixer).forward, mixer))


def _original(mixer: nn.Module) -> FunctionType:
    """The forward of the mixer's class. Raises TypeError if something else runs instead."""
    kind = type(mixer)
    hooked = "_old_forward" in vars(mixer)
    called = mixer._old_forward if hooked else mixer.forward
    forward = kind.forward
    names = inspect.unwrap(forward).__globals__
    if getattr(called, "__func__", None) is not forward or "mamba_selective_scan" not in names:
        raise TypeError(
            f"{kind.__name__} runs a forward of its own, which accelerate would bypass: call "
            "accelerate first, and wrap the forward afterwards"
        )
    return forward


def _fused_forward(original: FunctionType, convolution: bool) -> FunctionType:
    names = inspect.unwrap(original).__globals__
    fused: dict[str, Any] = {}
    if convolution:
        fused["causal_conv1d_fn"] = _conv_or(names["causal_conv1d_fn"])

    def from_state(state: Tensor | None) -> FunctionType:
        scan = _scan_or(names["mamba_selective_scan"], state)
        return _with_names(original, fused | {"mamba_selective_scan": scan})

    from_zero = from_state(None)

    def forward(
        self: Any, hidden_states: Tensor, cache: Any = None, *others: Any, **more: Any
    ) -> Any:
        state = _cached_state(self, hidden_states, more.get("cache_params", cache))
        run = from_zero if state is None else from_state(state)
        return run(self, hidden_states, *(() if cache is None else (cache,)), *others, **more)

    return forward  # type: ignore[return-value]


def _cached_state(mixer: Any, hidden_states: Tensor, cache: Any) -> Tensor | None:
    """What the scan of several tokens continues from; transformers' own would begin from zero."""
    if cache is None or hidden_states.shape[1] == 1:
        return None
    state = cache.get_recurrent_state(mixer.layer_idx, state_idx=0)
    return state.clone() if isinstance(state, Tensor) else None


def _with_names(function: FunctionType, names: dict[str, Any]) -> FunctionType:
    """The same code, in which some global names mean something else, under the same decorators."""
    inner = getattr(function, "__wrapped__", None)
    closure = function.__closure__
    if inner is not None:
        changed = CellType(_with_names(inner, names))
        closure = tuple(changed if cell.cell_contents is inner else cell for cell in closure or ())
    else:
        names = {**function.__globals__, **names}
    copied = FunctionType(
        function.__code__,
        function.__globals__ if inner is not None else names,
        function.__name__,
        function.__defaults__,
        closure,
    )
    copied.__kwdefaults__ = function.__kwdefaults__
    return copied


class _View:
    """An object some of whose attributes, by name, are seen through a function."""

    def __init__(self, original: Any, **seen: Callable[[Any], Any]) -> None:
        self._original, self._seen = original, seen

    def __deepcopy__(self, memo: dict[int, Any]) -> _View:
        return _View(copy.deepcopy(self._original, memo), **self._seen)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(
            "an accelerated model cannot be pickled: undo that first, or save its "
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


def _no_copy(linear: nn.Module) -> Any:
    if torch.compiler.is_compiling() or hasattr(linear, "_hf_hook"):  # neither looks through a view
        return linear
    return _View(linear, weight=lambda weight: weight.as_subclass(_Projecting))


def _usable(*tensors: Tensor | None) -> bool:
    given = [tensor for tensor in tensors if tensor is not None]
    return (
        len({tensor.device for tensor in given}) == 1
        and given[0].device.type in ("cpu", "meta")
        and all(tensor.dtype in DTYPES for tensor in given)
    )


def _scan_or(fallback: Callable[..., Any], state: Tensor | None) -> Callable[..., Any]:
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
        operands = (u, delta, A, B, C, D, z, delta_bias, delta_softplus, return_last_state)
        if _usable(*operands[:8], state):
            return selective_scan_fn(*operands, initial_state=state)
        return fallback(*operands, **others)

    return scan


def _conv_or(fallback: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def convolve(
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        activation: str | None = None,
        **others: Any,
    ) -> Tensor:
        known = (
            not others
            and activation in (None, "silu", "swish")
            and weight.shape[-1] <= WIDEST_CONVOLUTION
        )
        if known and _usable(x, weight, bias):
            y = causal_conv1d(x, weight, bias, activation is not None)
            assert isinstance(y, Tensor)
            return y
        return fallback(x, weight, bias, activation=activation, **others)

    return convolve
