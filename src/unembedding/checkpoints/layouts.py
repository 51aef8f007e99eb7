"""Which tensor of a checkpoint is the unembedding. A new layout is one new row here.

Names are matched exactly: every MLP block of an OLMo also holds a tensor called ``ff_out``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from unembedding.errors import GeometryError

HEADS = {
    "lm_head.weight": "transformers",
    "language_model.lm_head.weight": "Llava, Llama 4",
    "model.transformer.ff_out.weight": "hf_olmo",
    "transformer.ff_out.weight": "OLMo",
    "lm_head.w_out.weight": "OLMo-core",
    "embed_out.weight": "GPT-NeoX",
    "proj_out.weight": "Whisper",
    "output.weight": "InternLM 2, Llama as Meta saves it",
    "transformer.output_layer.weight": "ChatGLM",
    "head.weight": "RWKV, DeepSeek-V4",
}
EMBEDDINGS = {
    "model.embed_tokens.weight": "transformers",
    "language_model.model.embed_tokens.weight": "Gemma 3, Llava, PaliGemma, Mistral 3",
    "model.language_model.embed_tokens.weight": "Qwen-VL, Qwen 3.5",
    "model.text_model.embed_tokens.weight": "Idefics 3, SmolVLM",
    "transformer.word_embeddings.weight": "BLOOM, Falcon",
    "word_embeddings.weight": "BLOOM",
    "model.decoder.embed_tokens.weight": "Whisper",
    "model.transformer.wte.weight": "hf_olmo",
    "transformer.wte.weight": "OLMo and GPT-2",
    "wte.weight": "GPT-2",
    "gpt_neox.embed_in.weight": "GPT-NeoX",
    "embeddings.weight": "OLMo-core",
    "backbone.embeddings.weight": "Mamba (transformers)",
    "backbone.embedding.weight": "Mamba (state-spaces)",
    "model.tok_embeddings.weight": "InternLM 2",
    "tok_embeddings.weight": "Llama as Meta saves it",
    "transformer.embedding.word_embeddings.weight": "ChatGLM",
    "rwkv.embeddings.weight": "RWKV (transformers)",
    "emb.weight": "RWKV",
    "biogpt.embed_tokens.weight": "BioGPT",
    "gpt_neox_japanese.embed_in.weight": "GPT-NeoX Japanese",
    "transformer.tokens_embed.weight": "the first GPT",
    "transformer.w.weight": "CTRL",
}

# A config.json holds only what differs from its class's default, so its silence has a meaning.
TYING_KEYS = ("tie_word_embeddings", "weight_tying", "tie_embeddings")
UNTIED = (
    *("olmo", "olmo2", "olmo3", "olmoe", "llama", "llama4", "mistral", "ministral", "mixtral"),
    *("qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "qwen3_next", "gpt_neox", "gptj", "gpt_oss"),
    *("phi", "phi3", "phimoe", "stablelm", "granite", "deepseek_v2", "deepseek_v3", "glm", "glm4"),
    *("nemotron", "mamba2", "rwkv", "llama4_text"),
)
TIED = (
    *("gemma", "gemma2", "gemma3", "gemma3_text", "gpt2", "hf_olmo", "mamba", "falcon_mamba"),
    *("opt", "whisper", "bloom", "falcon", "cohere", "cohere2", "smollm3", "starcoder2", "mpt"),
    *("gpt_bigcode", "gpt_neo", "biogpt", "openai-gpt", "ctrl", "gpt_neox_japanese", "paligemma"),
    *("ernie4_5", "lfm2", "recurrent_gemma"),
)
TIED_BY_DEFAULT = dict.fromkeys(UNTIED, False) | dict.fromkeys(TIED, True)
TEXT_MODELS = ("text_config", "llm_config", "language_config")
"""Where the config.json of a model of pictures or sounds has that of its language model."""

# torch.compile and DistributedDataParallel put a name before those of all tensors.
WRAPPERS = ("_orig_mod.", "module.")

Config = Mapping[str, Any]

# Heads whose rows are divided by their norms in use: what is stored is not what acts. They are
# refused rather than applied, since γ is what the checkpoint stores, bit for bit.
#
# What multiplies or bends all logits alike is no row here. g does not see a number that γ is
# multiplied by: Cohere's `logit_scale`, Granite's `logits_scaling`, Falcon-H1's
# `lm_head_multiplier`, MiniCPM's `dim_model_base`. Gemma's scaling of embeddings acts where tokens
# come in, its softcapping on logits, behind γ.
NORMALISED: dict[str, Callable[[Config], bool]] = {
    "Ling and Bailing, `norm_head`": lambda config: config.get("norm_head") is True,
    # One model_type for both generations: Baichuan 1, whose head is plain, has 64,000 tokens.
    "Baichuan 2": lambda config: (
        config.get("model_type") == "baichuan"
        and not 0 < _whole(config.get("vocab_size")) < 100_000
    ),
}
BESIDE = ("bias", "norm.weight", "norm.bias")
"""What a head has beside its matrix that leaves the matrix as it is; OLMo-core has a norm there."""


@dataclass(frozen=True)
class Choice:
    """The unembedding tensor, and how it was found."""

    tensor: str
    tied: bool
    twin: str | None = None
    """An embedding that a tied checkpoint stores as well, and that should hold the same values."""
    warning: str | None = None


def unwrapped(name: str) -> str:
    """Return a tensor's name without the prefixes of what wrapped the model."""
    while prefix := next((p for p in WRAPPERS if name.startswith(p)), None):
        name = name.removeprefix(prefix)
    return name


def says_tied(config: Config) -> bool | None:
    """Return whether a config.json ties the embeddings; None where it leaves that open."""
    for section in _sections(config):
        for key in TYING_KEYS:
            if isinstance(section.get(key), bool):
                return section[key]
        if (default := TIED_BY_DEFAULT.get(str(section.get("model_type")))) is not None:
            return default
    if "model_type" not in config and "ssm_cfg" in config:
        return True  # state-spaces' MambaConfig
    return None


def _sections(config: Config) -> list[Config]:
    """Return a config.json, and those of the language model in it."""
    nested = (config.get(key) for key in TEXT_MODELS)
    return [config, *(section for section in nested if isinstance(section, Mapping))]


def _whole(value: Any) -> int:
    return value if type(value) is int else 0


def choose_unembedding(
    shapes: Mapping[str, tuple[int, ...] | None],
    config: Config,
    where: str,
    exact: str | None = None,
) -> Choice:
    """Choose the unembedding among the tensors of a checkpoint by its exact name.

    ``shapes`` maps tensor names to shapes (None where not known yet); ``exact`` is the name the
    user gave. Raises GeometryError where there is none, listing the candidates.
    """
    tied = says_tied(config)
    normalised = _normalised(config)
    if exact is not None:
        if exact not in shapes:
            raise GeometryError(
                f"{where} holds no tensor {exact!r} (`unembedding:` in the configuration). "
                + _candidates(shapes)
            )
        warning = f"{exact!r} was taken as it is stored. {normalised}" if normalised else None
        return Choice(exact, tied=bool(tied), warning=warning)
    if normalised:
        raise GeometryError(
            f"{where}: {normalised} Save a copy whose head has rows of norm 1, give it as `path:`, "
            "and name that tensor with `unembedding:`; or name the stored one, to have that."
        )
    head = _only(HEADS, shapes, where)
    _require_whole_head(head, shapes, where)
    if head is not None and not tied:
        return Choice(head, tied=False)
    embedding = _only(EMBEDDINGS, shapes, where)
    if head is not None:
        return Choice(head, tied=True, twin=embedding)
    if embedding is None:
        raise GeometryError(
            f"{where} has a layout this workflow does not know. {_candidates(shapes)}"
        )
    if tied is False:
        raise GeometryError(
            f"{where} says that its embeddings are untied, yet holds no unembedding; its embedding "
            f"{embedding!r} is not a substitute. The checkpoint may have been saved without its "
            f"head. {_candidates(shapes)}"
        )
    warning = None
    if tied is None:
        warning = (
            f"config.json does not say whether the embeddings are tied; there is no separate head, "
            f"so {embedding!r} was taken."
        )
    return Choice(embedding, tied=True, warning=warning)


def _normalised(config: Config) -> str | None:
    """Say that a model normalises the rows of its head, where it does."""
    for family, has_it in NORMALISED.items():
        if any(map(has_it, _sections(config))):
            return (
                f"In use this model divides the rows of its head by their norms ({family}), so the "
                "matrix that is stored is not its unembedding."
            )
    return None


def _require_whole_head(head: str | None, shapes: Mapping[str, Any], where: str) -> None:
    """Raise where a head is quantised, split by a parametrisation, or adapted."""
    stems = {name.removesuffix("weight") for name in HEADS}
    if head is not None:
        stem = unwrapped(head).removesuffix("weight")
        stems = {stem, stem.removesuffix("w_out.")}
    parts = [
        name
        for name in shapes
        if name != head
        and any(unwrapped(name).startswith(stem) for stem in stems)
        and not name.endswith(BESIDE)
    ]
    if parts:
        raise GeometryError(
            f"{where} has a head that is no plain matrix, but quantised, split or adapted: "
            f"{', '.join(sorted(parts)[:4])}. Save a copy with the matrix that they make, and give "
            "it as `path:`; or name a tensor with `unembedding:`."
        )


def _only(known: Mapping[str, str], shapes: Mapping[str, Any], where: str) -> str | None:
    """Return the one tensor whose name, without the wrappers' prefixes, is known."""
    found = [name for name in shapes if unwrapped(name) in known]
    if len(found) > 1:
        raise GeometryError(
            f"{where} holds {' and '.join(map(repr, found))}, which belong to different layouts. "
            "Say which one is meant with `unembedding:` in the configuration."
        )
    return found[0] if found else None


def _candidates(shapes: Mapping[str, tuple[int, ...] | None], most: int = 12) -> str:
    """Say which tensors could be an unembedding: matrices, the tallest first."""
    matrices = {n: s for n, s in shapes.items() if s is None or len(s) == 2}
    ranked = sorted(matrices, key=lambda n: (-(matrices[n] or (0,))[0], n))
    if not ranked:
        return f"It holds {len(shapes)} tensors, none of them a matrix."
    lines = [
        f"  {name if name.isprintable() else repr(name)}  {_shape(matrices[name])}"
        for name in ranked[:most]
    ]
    if len(ranked) > most:
        lines.append(f"  … and {len(ranked) - most} more")
    return "Name one with `unembedding:` under the model. Candidates:\n" + "\n".join(lines)


def _shape(shape: tuple[int, ...] | None) -> str:
    return "" if shape is None else " × ".join(map(str, shape))
