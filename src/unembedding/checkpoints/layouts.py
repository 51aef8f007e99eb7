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
    "model.transformer.ff_out.weight": "hf_olmo",
    "transformer.ff_out.weight": "OLMo",
    "lm_head.w_out.weight": "OLMo-core",
    "embed_out.weight": "GPT-NeoX",
    "proj_out.weight": "Whisper",
}
EMBEDDINGS = {
    "model.embed_tokens.weight": "transformers",
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
UNTIED = ("olmo", "olmo2", "olmo3", "llama", "mistral", "mixtral", "qwen2", "qwen3", "gpt_neox")
TIED = ("gemma", "gemma2", "gemma3_text", "gpt2", "hf_olmo", "mamba", "opt", "whisper")
TIED_BY_DEFAULT = dict.fromkeys(UNTIED, False) | dict.fromkeys(TIED, True)


@dataclass(frozen=True)
class Choice:
    """The unembedding tensor, and how it was found."""

    tensor: str
    tied: bool
    twin: str | None = None
    """An embedding that a tied checkpoint stores as well, and that should hold the same values."""
    warning: str | None = None


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
    if exact is not None:
        if exact not in shapes:
            raise GeometryError(
                f"{where} holds no tensor {exact!r} (`unembedding:` in the configuration). "
                + _candidates(shapes)
            )
        return Choice(exact, tied=bool(tied))
    head = _only(HEADS, shapes, where)
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


def _only(known: Mapping[str, str], shapes: Mapping[str, Any], where: str) -> str | None:
    found = [name for name in known if name in shapes]
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
