"""The families of causal language models that people download most, as transformers saves them."""

import numpy as np
import pytest
import torch

from unembedding.checkpoints.sources import LocalFolder
from unembedding.extraction import extract_unembedding
from unembedding.tensors.files import TensorFile

ORIGIN = {"repo": "lab/model", "revision": "main", "commit": "local"}
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
# What these call their sizes otherwise, or need besides.
OTHERWISE = {
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4},
    "bloom": {"n_layer": 2, "n_head": 4},
    "falcon": {"new_decoder_architecture": True, "num_kv_heads": 2},
    "opt": {"ffn_dim": 64, "word_embed_proj_dim": 32},
    "mixtral": {"num_local_experts": 2},
    "cohere": {"num_key_value_heads": 4},
    "mamba": {"state_size": 4},
}
FAMILIES = [
    *("llama", "mistral", "mixtral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text"),
    *("gpt2", "gpt_neox", "bloom", "falcon", "opt", "phi", "phi3", "olmo", "olmo2", "olmo3"),
    *("stablelm", "starcoder2", "granite", "cohere", "cohere2", "smollm3", "mamba"),
]


def build(family, **changes):
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = SIZES | OTHERWISE.get(family, {}) | changes
    if family == "falcon":  # which has it as a property
        del sizes["head_dim"]
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **sizes))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tied", [None, True, False], ids=["as it comes", "tied", "untied"])
def test_the_unembedding_is_that_which_the_model_uses(tmp_path, family, tied):
    model = build(family, **({} if tied is None else {"tie_word_embeddings": tied}))
    model.save_pretrained(tmp_path)
    extraction = extract_unembedding(LocalFolder(tmp_path), tmp_path / "gamma", ORIGIN)
    expected = model.get_output_embeddings().weight.detach().numpy()
    np.testing.assert_array_equal(TensorFile(tmp_path / "gamma").read("unembedding", 2), expected)
    assert not extraction.warnings
    same = model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert extraction.tied == same
