"""A language model of blocks one after another."""

from __future__ import annotations

import copy
import json
import math
from collections import namedtuple
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mamba_ssm.models.config_mamba import MambaConfig
from mamba_ssm.modules.block import Block, add_and_normalize
from mamba_ssm.modules.mamba2 import Mamba2
from mamba_ssm.modules.mamba_simple import Mamba
from mamba_ssm.modules.mlp import GatedMLP
from mamba_ssm.ops.triton.layer_norm import RMSNorm
from mamba_ssm.utils.generation import GenerationMixin
from mamba_ssm.utils.hf import load_config_hf, load_state_dict_hf

CausalLMOutput = namedtuple("CausalLMOutput", ["logits"])
MIXERS = {"Mamba1": Mamba, "Mamba2": Mamba2}


def create_block(
    d_model: int,
    d_intermediate: int,
    ssm_cfg: dict[str, Any] | None = None,
    attn_layer_idx: list[int] | None = None,
    attn_cfg: dict[str, Any] | None = None,
    norm_epsilon: float = 1e-5,
    rms_norm: bool = False,
    residual_in_fp32: bool = False,
    fused_add_norm: bool = False,
    layer_idx: int | None = None,
    device: Any = None,
    dtype: torch.dtype | None = None,
) -> Block:
    """Return a block with the mixer that ssm_cfg names, and an MLP if it has a width."""
    if layer_idx in (attn_layer_idx or []):
        raise NotImplementedError(f"layer {layer_idx} is attention, which is not implemented here")
    kind: dict[str, Any] = {"device": device, "dtype": dtype}
    keywords = copy.deepcopy(ssm_cfg or {})
    layer = keywords.pop("layer", "Mamba1")
    if layer not in MIXERS:
        raise ValueError(f"ssm_cfg has the layer {layer!r}: use one of {', '.join(MIXERS)}")
    mlp: Any = nn.Identity
    if d_intermediate:
        mlp = partial(GatedMLP, hidden_features=d_intermediate, out_features=d_model, **kind)
    block = Block(
        d_model,
        partial(MIXERS[layer], layer_idx=layer_idx, **keywords, **kind),
        mlp,
        partial(RMSNorm if rms_norm else nn.LayerNorm, eps=norm_epsilon, **kind),
        fused_add_norm,
        residual_in_fp32,
    )
    block.layer_idx = layer_idx  # type: ignore[assignment]
    return block


def _init_weights(
    module: nn.Module,
    n_layer: int,
    initializer_range: float = 0.02,
    rescale_prenorm_residual: bool = True,
    n_residuals_per_layer: int = 1,
) -> None:
    """Initialise as GPT-2 does: what adds to the residual is smaller, the more layers do."""
    if isinstance(module, nn.Linear):
        if module.bias is not None and not getattr(module.bias, "_no_reinit", False):
            nn.init.zeros_(module.bias)
    elif isinstance(module, nn.Embedding):
        nn.init.normal_(module.weight, std=initializer_range)
    if rescale_prenorm_residual:
        for name, weight in module.named_parameters():
            if name in ("out_proj.weight", "fc2.weight"):
                nn.init.kaiming_uniform_(weight, a=math.sqrt(5))
                with torch.no_grad():
                    weight.div_(math.sqrt(n_residuals_per_layer * n_layer))


class MixerModel(nn.Module):
    """Embedding, blocks, norm."""

    def __init__(
        self,
        d_model: int,
        n_layer: int,
        d_intermediate: int,
        vocab_size: int,
        ssm_cfg: dict[str, Any] | None = None,
        attn_layer_idx: list[int] | None = None,
        attn_cfg: dict[str, Any] | None = None,
        norm_epsilon: float = 1e-5,
        rms_norm: bool = False,
        initializer_cfg: dict[str, Any] | None = None,
        fused_add_norm: bool = False,
        residual_in_fp32: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.residual_in_fp32, self.fused_add_norm = residual_in_fp32, fused_add_norm
        kind: dict[str, Any] = {"device": device, "dtype": dtype}
        self.embedding = nn.Embedding(vocab_size, d_model, **kind)
        self.layers = nn.ModuleList(
            create_block(
                d_model, d_intermediate, ssm_cfg, attn_layer_idx, attn_cfg, norm_epsilon, rms_norm,
                residual_in_fp32, fused_add_norm, layer_idx, **kind,
            )
            for layer_idx in range(n_layer)
        )  # fmt: skip
        self.norm_f = (RMSNorm if rms_norm else nn.LayerNorm)(d_model, eps=norm_epsilon, **kind)
        residuals = 1 if d_intermediate == 0 else 2
        keywords = {"n_residuals_per_layer": residuals, **(initializer_cfg or {})}
        self.apply(partial(_init_weights, n_layer=n_layer, **keywords))

    def allocate_inference_cache(
        self, batch_size: int, max_seqlen: int, dtype: torch.dtype | None = None, **kwargs: Any
    ) -> dict[int, Any]:
        """Return zero states of every layer."""
        return {
            i: layer.allocate_inference_cache(batch_size, max_seqlen, dtype=dtype, **kwargs)  # type: ignore[operator]
            for i, layer in enumerate(self.layers)
        }

    def forward(
        self, input_ids: Tensor, inference_params: Any = None, **mixer_kwargs: Any
    ) -> Tensor:
        """(batch, length) to (batch, length, d_model)."""
        hidden, residual = self.embedding(input_ids), None
        for layer in self.layers:
            hidden, residual = layer(hidden, residual, inference_params, **mixer_kwargs)
        return add_and_normalize(self.norm_f, hidden, residual, self.residual_in_fp32)[0]


class MambaLMHeadModel(nn.Module, GenerationMixin):
    """The model and its head."""

    def __init__(
        self,
        config: MambaConfig,
        initializer_cfg: dict[str, Any] | None = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.config = config
        kind: dict[str, Any] = {"device": device, "dtype": dtype}
        multiple = config.pad_vocab_size_multiple
        vocabulary = (config.vocab_size + multiple - 1) // multiple * multiple
        self.backbone = MixerModel(
            config.d_model, config.n_layer, config.d_intermediate, vocabulary, config.ssm_cfg,
            config.attn_layer_idx, config.attn_cfg, rms_norm=config.rms_norm,
            initializer_cfg=initializer_cfg, fused_add_norm=config.fused_add_norm,
            residual_in_fp32=config.residual_in_fp32, **kind,
        )  # fmt: skip
        self.lm_head = nn.Linear(config.d_model, vocabulary, bias=False, **kind)
        self.apply(partial(_init_weights, n_layer=config.n_layer, **(initializer_cfg or {})))
        self.tie_weights()

    def tie_weights(self) -> None:
        """Make the head's weight the embedding's, where the configuration says so."""
        if self.config.tie_embeddings:
            self.lm_head.weight = self.backbone.embedding.weight

    def allocate_inference_cache(
        self, batch_size: int, max_seqlen: int, dtype: torch.dtype | None = None, **kwargs: Any
    ) -> dict[int, Any]:
        """As the backbone's."""
        return self.backbone.allocate_inference_cache(batch_size, max_seqlen, dtype, **kwargs)

    def forward(
        self,
        input_ids: Tensor,
        position_ids: Tensor | None = None,
        inference_params: Any = None,
        num_last_tokens: int = 0,
        **mixer_kwargs: Any,
    ) -> Any:
        """Return the logits (batch, length, vocabulary), perhaps of the last tokens only."""
        hidden = self.backbone(input_ids, inference_params=inference_params, **mixer_kwargs)
        hidden = hidden[:, -num_last_tokens:] if num_last_tokens > 0 else hidden
        return CausalLMOutput(logits=self.lm_head(hidden))

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name: str,
        device: Any = None,
        dtype: torch.dtype | None = None,
        **kwargs: Any,
    ) -> MambaLMHeadModel:
        """Load a folder, or a repository of the Hub."""
        config = MambaConfig(**load_config_hf(pretrained_model_name))
        model = cls(config, device=device, dtype=dtype, **kwargs)
        model.load_state_dict(load_state_dict_hf(pretrained_model_name, device=device, dtype=dtype))
        return model

    def save_pretrained(self, save_directory: str | Path) -> None:
        """Write a folder that from_pretrained reads."""
        folder = Path(save_directory)
        folder.mkdir(parents=True, exist_ok=True)
        torch.save(self.state_dict(), folder / "pytorch_model.bin")
        (folder / "config.json").write_text(json.dumps(asdict(self.config), indent=4))
