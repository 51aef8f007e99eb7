"""Small models of the ten families of transformers with a Mamba in them, and what they give.

`python families.py FILE [provide]` writes their logits, gradients and tokens: in a process of its
own, since transformers looks for mamba_ssm once.
"""

from __future__ import annotations

import sys
from typing import Any

COMMON = {"vocab_size": 96, "hidden_size": 64, "num_hidden_layers": 2, "pad_token_id": 0}
ATTENTION = {"num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96}
HEADS = {
    "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_n_groups": 2, "mamba_d_state": 16,
    "mamba_chunk_size": 16,
}  # fmt: skip
FAMILIES: dict[str, dict[str, Any]] = {
    "Mamba": {"state_size": 8},
    "FalconMamba": {"state_size": 8},
    "Mamba2": {"state_size": 16, "head_dim": 16, "num_heads": 8, "n_groups": 2, "chunk_size": 16},
    "Jamba": {
        **ATTENTION, "mamba_d_state": 8, "attn_layer_period": 2, "attn_layer_offset": 1,
        "expert_layer_period": 2, "expert_layer_offset": 1, "num_experts": 2,
    },
    "Zamba": {
        **ATTENTION, "num_hidden_layers": 6, "num_key_value_heads": 4, "attention_head_dim": 32,
        "n_mamba_heads": 2, "mamba_d_state": 8, "mamba_dt_rank": 4, "attn_layer_period": 3,
        "attn_layer_offset": 2,
    },
    "Bamba": {**ATTENTION, **HEADS, "attn_layer_indices": [1]},
    "Zamba2": {
        **ATTENTION, "num_hidden_layers": 4, "num_key_value_heads": 4, "attention_head_dim": 32,
        "mamba_d_state": 16, "mamba_headdim": 16, "n_mamba_heads": 8, "mamba_ngroups": 2,
        "chunk_size": 16, "hybrid_layer_ids": [1, 3], "num_mem_blocks": 1,
        "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"],
    },
    "NemotronH": {
        **ATTENTION, "num_hidden_layers": 3, "hybrid_override_pattern": "M*-", "head_dim": 16,
        "mamba_num_heads": 8, "mamba_head_dim": 16, "ssm_state_size": 16, "n_groups": 2,
        "chunk_size": 16,
    },
    "GraniteMoeHybrid": {
        **ATTENTION, **HEADS, "shared_intermediate_size": 96, "num_local_experts": 2,
        "num_experts_per_tok": 1, "layer_types": ["mamba", "attention"],
    },
    "FalconH1": {**ATTENTION, **HEADS, "mamba_d_ssm": 128},
}  # fmt: skip


def outputs(family: str) -> dict[str, Any]:
    """Return logits, gradients, greedy tokens, and logits of a padded batch."""
    import torch
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**{**COMMON, **FAMILIES[family]})
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # some are equal at first
            parameter += 0.02 * torch.randn_like(parameter)
    ids = torch.randint(3, 96, (2, 21))
    logits = model(ids).logits
    logits.square().mean().backward()
    mask = torch.ones_like(ids)
    mask[0, :5] = 0
    with torch.inference_mode():
        tokens = model.generate(ids[:, :7], max_new_tokens=8, do_sample=False)
        padded = model(ids, attention_mask=mask).logits[:, 5:]
    gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    return {"logits": logits.detach(), "tokens": tokens, "padded": padded, "gradients": gradients}


if __name__ == "__main__":
    if sys.argv[2:]:
        import mamba_cpu

        mamba_cpu.provide()
    import torch

    torch.save({family: outputs(family) for family in FAMILIES}, sys.argv[1])
