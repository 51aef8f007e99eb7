"""A gated MLP."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class GatedMLP(nn.Module):
    """One half of the first layer gates the other."""

    def __init__(
        self,
        in_features: int,
        hidden_features: int | None = None,
        out_features: int | None = None,
        activation: Callable[[Tensor], Tensor] = F.silu,
        bias: bool = False,
        multiple_of: int = 128,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        hidden = int(8 * in_features / 3) if hidden_features is None else hidden_features
        hidden = (hidden + multiple_of - 1) // multiple_of * multiple_of
        kind: dict[str, Any] = {"device": device, "dtype": dtype}
        self.fc1 = nn.Linear(in_features, 2 * hidden, bias=bias, **kind)
        self.activation = activation
        self.fc2 = nn.Linear(hidden, out_features or in_features, bias=bias, **kind)

    def forward(self, x: Tensor) -> Tensor:
        """(…, in_features) to (…, out_features)."""
        y, gate = self.fc1(x).chunk(2, dim=-1)
        return self.fc2(y * self.activation(gate))
