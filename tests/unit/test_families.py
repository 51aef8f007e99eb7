"""The families that people download most, as transformers saves them: docs/models.md."""

import re
from pathlib import Path

import numpy as np
import pytest

from unembedding.checkpoints.sources import LocalFolder
from unembedding.extraction import extract_unembedding
from unembedding.tensors.files import TensorFile

ORIGIN = {"repo": "lab/model", "revision": "main", "commit": "local"}
ROW = re.compile(
    r"\| (?P<family>[^|]+) \| `(?P<type>[^`]+)` \| `(?P<tensor>[^`]+)` \| (?P<tied>\w+) \|"
)
TABLE = ROW.finditer((Path(__file__).parents[2] / "docs/models.md").read_text(encoding="utf-8"))
FAMILIES = {row["type"]: (row["tensor"], row["tied"] == "yes") for row in TABLE}
SIZES = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
EXPERTS = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16}
GPT = {"n_embd": 32, "n_layer": 2, "n_head": 4}
DEEPSEEK = {
    **{"n_routed_experts": 4, "n_group": 2, "topk_group": 1, "moe_intermediate_size": 16},
    **{"num_key_value_heads": 4, "num_experts_per_tok": 1},
}
# What these call their sizes otherwise, or need besides.
OTHERWISE = {
    "gpt2": GPT,
    "gptj": {**GPT, "rotary_dim": 4},
    "gpt_bigcode": GPT,
    "bloom": {"n_layer": 2, "n_head": 4},
    "mpt": {"d_model": 32, "n_layers": 2, "n_heads": 4},
    "falcon": {"new_decoder_architecture": True, "num_kv_heads": 2},
    "opt": {"ffn_dim": 64, "word_embed_proj_dim": 32},
    "mixtral": {"num_local_experts": 2},
    "phimoe": {"num_local_experts": 2},
    "qwen2_moe": {**EXPERTS, "shared_expert_intermediate_size": 16},
    "qwen3_moe": EXPERTS,
    "olmoe": EXPERTS,
    "gpt_oss": {"num_local_experts": 2, "num_experts_per_tok": 1},
    "deepseek_v2": DEEPSEEK,
    "deepseek_v3": DEEPSEEK,
    "cohere": {"num_key_value_heads": 4},
    "mamba": {"state_size": 4},
    "falcon_mamba": {"state_size": 4},
    "mamba2": {"num_heads": 8, "state_size": 8, "n_groups": 1},
}
# The language model and the encoder of pictures inside of these.
PARTS = {
    "gemma3": ("gemma3_text", "siglip_vision_model"),
    "llava": ("llama", "clip_vision_model"),
    "mistral3": ("mistral", "pixtral"),
    "paligemma": ("gemma", "siglip_vision_model"),
    "qwen2_vl": ("qwen2_vl_text", "qwen2_vl_vision"),
    "qwen2_5_vl": ("qwen2_5_vl_text", "qwen2_5_vl_vision"),
    "qwen3_vl": ("qwen3_vl_text", "qwen3_vl_vision"),
    "smolvlm": ("llama", "smolvlm_vision"),
}
PICTURES = {
    **{"hidden_size": 32, "embed_dim": 32, "out_hidden_size": 32, "intermediate_size": 32},
    **{"num_hidden_layers": 1, "depth": 1, "num_attention_heads": 2, "num_heads": 2},
    **{"image_size": 28, "patch_size": 14, "num_position_embeddings": 16},
    **{"fullatt_block_indexes": [0], "deepstack_visual_indexes": [0]},
}


@pytest.fixture(scope="module", autouse=True)
def quiet():
    from transformers import logging

    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    yield
    logging.set_verbosity(verbosity)


def build(family, **changes):
    """A model of this family, as small as it can be, with the weights that it begins with."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

    torch.manual_seed(0)
    if family in PARTS:
        text, pictures = PARTS[family]
        parts = {
            "text_config": {**SIZES, "model_type": text},
            "vision_config": {**PICTURES, "model_type": pictures},
            "image_token_id": 3,
            "video_token_id": 4,
        }
        config = AutoConfig.for_model(family, **parts, **changes)
        return AutoModelForImageTextToText.from_config(config)
    sizes = SIZES | OTHERWISE.get(family, {}) | changes
    if family == "falcon":  # which has it as a property
        del sizes["head_dim"]
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **sizes))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_unembedding_is_that_which_the_model_uses(tmp_path, family):
    for change in ({}, {"tie_word_embeddings": not FAMILIES[family][1]}):
        model = build(family, **change)
        folder = tmp_path / f"changed {bool(change)}"
        model.save_pretrained(folder)
        extraction = extract_unembedding(LocalFolder(folder), tmp_path / "gamma", ORIGIN)
        used = model.get_output_embeddings().weight
        found = TensorFile(tmp_path / "gamma").read("unembedding", 2)
        np.testing.assert_array_equal(found, used.detach().float().numpy())
        assert not extraction.warnings
        assert extraction.tied == (used is model.get_input_embeddings().weight)
        if not change:
            assert (extraction.tensor, extraction.tied) == FAMILIES[family]


def test_the_table_has_the_families_that_people_download_most():
    assert len(FAMILIES) >= 40
