"""Which tensor of a checkpoint is the unembedding. A new layout is one new row here.

Names are matched exactly: every MLP block of an OLMo also holds a tensor called ``ff_out``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from unembedding.errors import GeometryError

HEADS = {
    "lm_head.weight": "transformers",
    "language_model.lm_head.weight": "Gemma 3, Llava, Qwen-VL",
    "model.transformer.ff_out.weight": "hf_olmo",
    "transformer.ff_out.weight": "OLMo",
    "lm_head.w_out.weight": "OLMo-core",
    "embed_out.weight": "GPT-NeoX",
    "proj_out.weight": "Whisper",
}
EMBEDDINGS = {
    "model.embed_tokens.weight": "transformers",
    "language_model.model.embed_tokens.weight": "Gemma 3, Llava, Qwen-VL",
    "model.language_model.embed_tokens.weight": "the same, as transformers 5 saves them",
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
}

# A config.json holds only what differs from its class's default, so its silence has a meaning.
TYING_KEYS = ("tie_word_embeddings", "weight_tying", "tie_embeddings")
UNTIED = (
    *("olmo", "olmo2", "olmo3", "llama", "mistral", "mixtral", "qwen2", "qwen3", "gpt_neox"),
    *("phi", "phi3", "stablelm", "starcoder2", "granite", "deepseek_v3"),
)
TIED = (
    *("gemma", "gemma2", "gemma3", "gemma3_text", "gpt2", "hf_olmo", "mamba", "opt", "whisper"),
    *("bloom", "falcon", "cohere", "cohere2", "smollm3"),
)
TIED_BY_DEFAULT = dict.fromkeys(UNTIED, False) | dict.fromkeys(TIED, True)

# torch.compile and DistributedDataParallel put a name before those of all tensors.
WRAPPERS = ("_orig_mod.", "module.")

# Heads whose rows are normalised in use: the matrix that is stored is not the one that acts.
# A scaling of all logits is none of these, and changes nothing: Cohere's `logit_scale` and
# Granite's `logits_scaling` multiply γ by a number, which g does not see; Gemma's softcapping acts
# on logits.
NORMALISED = {
    "norm_head": "Ling and Bailing",
    "use_norm_head": "the same",
}
NORMALISED_TYPES = {"baichuan": 125696}  # Baichuan2's head, by the size of its vocabulary


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


def says_tied(config: Mapping[str, Any]) -> bool | None:
    """Return whether a config.json ties the embeddings; None where it leaves that open."""
    nested = config.get("text_config")
    for section in (config, nested if isinstance(nested, Mapping) else {}):
        for key in TYING_KEYS:
            if isinstance(section.get(key), bool):
                return section[key]
    if "model_type" not in config and "ssm_cfg" in config:
        return True  # state-spaces' MambaConfig
    return TIED_BY_DEFAULT.get(str(config.get("model_type")))


def choose_unembedding(
    shapes: Mapping[str, tuple[int, ...] | None],
    config: Mapping[str, Any],
    where: str,
    exact: str | None = None,
) -> Choice:
    """Choose the unembedding among the tensors of a checkpoint by its exact name.

    ``shapes`` maps tensor names to shapes (None where not known yet); ``exact`` is the name the
    user gave. Raises GeometryError where there is none, listing the candidates.
    """
    tied = says_tied(config)
    _require_plain_head(config, where)
    if exact is not None:
        if exact not in shapes:
            raise GeometryError(
                f"{where} holds no tensor {exact!r} (`unembedding:` in the configuration). "
                + _candidates(shapes)
            )
        return Choice(exact, tied=bool(tied))
    head = _only(HEADS, shapes, where)
    _require_readable_head(head, shapes, where)
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


def _require_plain_head(config: Mapping[str, Any], where: str) -> None:
    normalised = next((key for key in NORMALISED if config.get(key) is True), None)
    vocabulary = NORMALISED_TYPES.get(str(config.get("model_type")))
    if normalised is None and (vocabulary is None or config.get("vocab_size") != vocabulary):
        return
    raise GeometryError(
        f"{where}: in use this model normalises the rows of its head ({normalised or 'Baichuan2'}),"
        " so the matrix that is stored is not its unembedding. Save a copy with the rows of the "
        "head divided by their norms and without that setting, and give it as `path:`."
    )


def _require_readable_head(head: str | None, shapes: Mapping[str, Any], where: str) -> None:
    """Raise where there is a head that is quantised, or split by a parametrisation."""
    if head is not None:
        return
    for name in HEADS:
        stem = name.removesuffix("weight")
        parts = [n for n in shapes if n.startswith(stem) and not n.endswith("bias")]
        if parts:
            raise GeometryError(
                f"{where} has a head that is quantised or split: {', '.join(sorted(parts)[:4])}. "
                "The embedding is not a substitute. Save a copy with plain weights, and give it as "
                "`path:`."
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
