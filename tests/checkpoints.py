"""Tiny checkpoints in every layout the workflow knows; each builder returns its γ."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from huggingface_hub import save_torch_state_dict
from safetensors.torch import save_file

ROWS, WIDTH = 160, 16
FILLER = torch.zeros(2**20 + 1)  # 4 MB that extraction has no reason to read
Builder = Callable[[Path], np.ndarray]


def values(gamma: torch.Tensor) -> np.ndarray:
    return gamma.detach().float().numpy()


def random_matrix(seed: int, rows: int = ROWS, width: int = WIDTH) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, width, generator=generator) * torch.linspace(1, 3, width) + 0.5


def by_hand(
    folder: Path,
    tensors: Mapping[str, torch.Tensor],
    file: str = "model.safetensors",
    **config: Any,
) -> None:
    """Write tensors as they are, with a config.json where the layout has one."""
    folder.mkdir(parents=True, exist_ok=True)
    if config:
        (folder / "config.json").write_text(json.dumps(config))
    if file.endswith(".safetensors"):
        save_file(dict(tensors), folder / file)
    else:
        torch.save(dict(tensors), folder / file)


def matrix(folder: Path, gamma: torch.Tensor, **config: Any) -> np.ndarray:
    """Write the smallest checkpoint there is: an untied head and nothing else."""
    by_hand(folder, {"lm_head.weight": gamma.clone()}, model_type="olmo", **config)
    return values(gamma)


def pretrained(
    name: str, tied: bool, dtype: str = "float32", shards: str = "1GB", **changes: Any
) -> Builder:
    """Return a builder that writes a model of transformers as it writes itself."""

    def build(folder: Path) -> np.ndarray:
        import transformers

        torch.manual_seed(sum(map(ord, name)) + tied)
        size = dict(
            vocab_size=ROWS,
            hidden_size=WIDTH,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            head_dim=8,
            tie_word_embeddings=tied,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
        )
        config = getattr(transformers, f"{name}Config")(**{**size, **changes})
        heads = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
        kind = next(k for h in heads if (k := getattr(transformers, name + h, None)))
        model = kind(config).to(getattr(torch, dtype))
        gamma = model.get_output_embeddings().weight
        with torch.no_grad():
            gamma.copy_(random_matrix(sum(map(ord, name + dtype))))
        assert (gamma is model.get_input_embeddings().weight) == tied or name == "Whisper"
        model.register_buffer("filler", FILLER)
        model.save_pretrained(folder, max_shard_size=shards)
        return values(gamma)

    return build


def hf_olmo(tied: bool, dtype: torch.dtype, file: str) -> Builder:
    def build(folder: Path) -> np.ndarray:
        gamma, names = _olmo_tensors("model.transformer.", tied, dtype)
        by_hand(folder, names, file, model_type="hf_olmo", weight_tying=tied)
        return gamma

    return build


def native_olmo(tied: bool) -> Builder:
    def build(folder: Path) -> np.ndarray:
        gamma, names = _olmo_tensors("transformer.", tied, torch.float32)
        by_hand(folder, names, "model.pt")
        (folder / "config.yaml").write_text("model: {d_model: 16}\n")
        return gamma

    return build


def _olmo_tensors(
    prefix: str, tied: bool, dtype: torch.dtype
) -> tuple[np.ndarray, dict[str, torch.Tensor]]:
    gamma, other = (random_matrix(seed + len(prefix)).to(dtype) for seed in (1 + tied, 9))
    names = {f"{prefix}wte.weight": gamma if tied else other, f"{prefix}filler": FILLER}
    names[f"{prefix}blocks.0.ff_out.weight"] = random_matrix(5).to(dtype)
    return values(gamma), names if tied else {**names, f"{prefix}ff_out.weight": gamma}


def olmo_core(folder: Path) -> np.ndarray:
    gamma = random_matrix(11).bfloat16()
    names = {"lm_head.w_out.weight": gamma, "embeddings.weight": random_matrix(12), "f": FILLER}
    by_hand(folder, names)
    return values(gamma)


def state_spaces_mamba(folder: Path) -> np.ndarray:
    """One storage under two names, and a config.json of the kind state-spaces writes."""
    gamma = random_matrix(13)
    names = {"backbone.embedding.weight": gamma, "lm_head.weight": gamma, "f": FILLER}
    config = dict(d_model=WIDTH, n_layer=2, vocab_size=ROWS, ssm_cfg={}, rms_norm=True)
    by_hand(folder, names, "pytorch_model.bin", **config)
    return values(gamma)


def gpt2_body(folder: Path) -> np.ndarray:
    """The names of openai-community/gpt2, saved from the model without its head."""
    gamma = random_matrix(16)
    by_hand(folder, {"wte.weight": gamma, "wpe.weight": FILLER}, model_type="gpt2", vocab_size=ROWS)
    return values(gamma)


def sharded_bin(folder: Path) -> np.ndarray:
    gamma = random_matrix(14).half()
    names = {
        "model.embed_tokens.weight": random_matrix(15).half(),
        "model.layers.0.mlp.down_proj.weight": FILLER.reshape(1, -1),
        "lm_head.weight": gamma,
    }
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"model_type": "llama"}')
    save_torch_state_dict(names, folder, safe_serialization=False, max_shard_size="20KB")
    assert (folder / "pytorch_model.bin.index.json").exists()
    return values(gamma)


WHISPER = dict(
    d_model=WIDTH, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
    decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32, num_mel_bins=8,
    max_source_positions=20, max_target_positions=20, decoder_start_token_id=1,
)  # fmt: skip
LAYOUTS: dict[str, Builder] = {
    "Olmo": pretrained("Olmo", tied=False),
    "Olmo tied bfloat16": pretrained("Olmo", tied=True, dtype="bfloat16"),
    "Olmo2 bfloat16": pretrained("Olmo2", tied=False, dtype="bfloat16"),
    "Olmo3 float16": pretrained("Olmo3", tied=False, dtype="float16"),
    "Llama tied": pretrained("Llama", tied=True),
    "Llama sharded bfloat16": pretrained("Llama", tied=False, dtype="bfloat16", shards="6KB"),
    "Gemma tied": pretrained("Gemma", tied=True),
    "Qwen2 tied float16": pretrained("Qwen2", tied=True, dtype="float16"),
    "Qwen3": pretrained("Qwen3", tied=False),
    "Whisper tied float16": pretrained("Whisper", tied=True, dtype="float16", **WHISPER),
    "GPTNeoX": pretrained("GPTNeoX", tied=False, dtype="float16"),
    "GPT2 tied": pretrained("GPT2", tied=True),
    "GPT2 body": gpt2_body,
    "Mamba tied": pretrained("Mamba", tied=True, state_size=4),
    "hf_olmo": hf_olmo(False, torch.float32, "model.safetensors"),
    "hf_olmo bin": hf_olmo(False, torch.bfloat16, "pytorch_model.bin"),
    "hf_olmo tied bin": hf_olmo(True, torch.float32, "pytorch_model.bin"),
    "OLMo model.pt": native_olmo(tied=False),
    "OLMo tied model.pt": native_olmo(tied=True),
    "OLMo-core": olmo_core,
    "state-spaces Mamba bin": state_spaces_mamba,
    "sharded bin": sharded_bin,
}
