"""Which tensor of a checkpoint is its unembedding."""

import pytest

from unembedding.checkpoints.layouts import (
    TIED_BY_DEFAULT,
    Choice,
    choose_unembedding,
    says_tied,
)
from unembedding.errors import GeometryError

# What the libraries that write checkpoints call their matrices, and what else is beside them.
HEADS = {
    "Olmo, Llama, Gemma, Qwen": ("lm_head.weight", "model.embed_tokens.weight"),
    "hf_olmo": ("model.transformer.ff_out.weight", "model.transformer.wte.weight"),
    "OLMo": ("transformer.ff_out.weight", "transformer.wte.weight"),
    "OLMo-core": ("lm_head.w_out.weight", "embeddings.weight"),
    "GPT-NeoX": ("embed_out.weight", "gpt_neox.embed_in.weight"),
    "Whisper": ("proj_out.weight", "model.decoder.embed_tokens.weight"),
    "GPT-2": ("lm_head.weight", "transformer.wte.weight"),
    "Mamba (transformers)": ("lm_head.weight", "backbone.embeddings.weight"),
    "Mamba (state-spaces)": ("lm_head.weight", "backbone.embedding.weight"),
    "InternLM 2": ("output.weight", "model.tok_embeddings.weight"),
    "ChatGLM": ("transformer.output_layer.weight", "transformer.embedding.word_embeddings.weight"),
    "RWKV": ("head.weight", "rwkv.embeddings.weight"),
    "SmolVLM": ("lm_head.weight", "model.text_model.embed_tokens.weight"),
    "BLOOM": ("lm_head.weight", "transformer.word_embeddings.weight"),
    "Gemma 3": ("language_model.lm_head.weight", "language_model.model.embed_tokens.weight"),
    "Llava": ("lm_head.weight", "model.language_model.embed_tokens.weight"),
    "compiled": ("_orig_mod.lm_head.weight", "_orig_mod.model.embed_tokens.weight"),
    "parallel": ("module._orig_mod.lm_head.weight", "module._orig_mod.wte.weight"),
}
EMBEDDINGS = [*dict.fromkeys(embedding for _, embedding in HEADS.values()), "wte.weight"]
DECOYS = [
    f"{prefix}{block}.{layer}.{name}.weight"
    for prefix, block, name in [
        ("model.transformer.", "blocks", "ff_out"),
        ("transformer.", "blocks", "ff_out"),
        ("", "blocks", "ff_out"),
        ("model.", "layers", "lm_head"),
        ("encoder.model.", "decoder", "embed_tokens"),
    ]
    for layer in range(3)
]


def choose(names, config=None, exact=None, shape=(64, 8)):
    return choose_unembedding(dict.fromkeys(names, shape), config or {}, "the checkpoint", exact)


def refusal(names, config=None, exact=None, shape=(64, 8)):
    with pytest.raises(GeometryError) as caught:
        choose(names, config, exact, shape)
    return str(caught.value)


@pytest.mark.parametrize(("head", "embedding"), HEADS.values(), ids=HEADS)
def test_an_untied_head_is_taken(head, embedding):
    names = [*DECOYS, embedding, head]
    assert choose(names, {"tie_word_embeddings": False}) == Choice(head, tied=False)


@pytest.mark.parametrize("embedding", EMBEDDINGS)
def test_a_tied_embedding_without_a_head_is_taken(embedding):
    found = choose([*DECOYS, embedding], {"tie_word_embeddings": True})
    assert found == Choice(embedding, tied=True)


@pytest.mark.parametrize(("head", "embedding"), HEADS.values(), ids=HEADS)
def test_of_two_matrices_said_to_be_tied_the_head_is_taken_and_the_other_compared(head, embedding):
    found = choose([embedding, head], {"tie_word_embeddings": True})
    assert found == Choice(head, tied=True, twin=embedding)


@pytest.mark.parametrize("embedding", EMBEDDINGS)
def test_an_untied_embedding_is_no_substitute_for_a_missing_head(embedding):
    message = refusal([DECOYS[0], embedding], {"tie_word_embeddings": False})
    assert "untied, yet holds no unembedding" in message
    assert f"  {embedding}  64 × 8" in message


def test_an_embedding_of_which_nothing_is_said_is_taken_with_a_warning():
    found = choose(["wte.weight"], {})
    assert (found.tensor, found.tied) == ("wte.weight", True)
    assert "does not say whether the embeddings are tied" in found.warning


def test_a_head_of_which_nothing_is_said_is_taken_without_one():
    assert choose(["lm_head.weight", "wte.weight"], {}) == Choice("lm_head.weight", tied=False)


@pytest.mark.parametrize(
    ("config", "tied"),
    [
        ({}, None),
        ({"tie_word_embeddings": True}, True),
        ({"tie_word_embeddings": False}, False),
        ({"weight_tying": True, "model_type": "hf_olmo"}, True),
        ({"weight_tying": False, "model_type": "hf_olmo"}, False),
        ({"tie_embeddings": False}, False),
        ({"tie_word_embeddings": True, "model_type": "olmo"}, True),
        ({"tie_word_embeddings": None, "model_type": "olmo"}, False),
        ({"text_config": {"tie_word_embeddings": False}}, False),
        ({"text_config": None, "model_type": "gpt2"}, True),
        ({"model_type": "llava", "text_config": {"model_type": "llama"}}, False),
        ({"model_type": "gemma3", "text_config": {"tie_word_embeddings": False}}, True),
        ({"language_config": {"tie_word_embeddings": True}}, True),
        ({"d_model": 768, "n_layer": 24, "ssm_cfg": {}}, True),
        ({"d_model": 768, "n_layer": 24, "ssm_cfg": {}, "tie_embeddings": False}, False),
        ({"model_type": "never-heard-of"}, None),
        ({"model_type": ["olmo"]}, None),
    ],
)
def test_config_json_says_whether_the_embeddings_are_tied(config, tied):
    assert says_tied(config) is tied


@pytest.mark.parametrize("model_type", sorted(TIED_BY_DEFAULT.keys() - {"hf_olmo"}))
def test_a_silent_config_json_means_the_default_of_its_class(model_type):
    from transformers import CONFIG_MAPPING

    default = CONFIG_MAPPING[model_type]().tie_word_embeddings
    assert says_tied({"model_type": model_type}) is default


@pytest.mark.parametrize("decoy", DECOYS)
def test_a_name_that_only_ends_like_a_head_is_none(decoy):
    message = refusal([decoy])
    assert "a layout this workflow does not know" in message


def test_an_unknown_layout_is_answered_with_its_matrices_the_tallest_first():
    shapes = {"b.bias": (64,), "small": (8, 8), "tall": (500, 8), "odd": (2, 3, 4), "next": (64, 8)}
    with pytest.raises(GeometryError) as caught:
        choose_unembedding(shapes, {}, "models/x", None)
    lines = str(caught.value).splitlines()
    assert lines[0].startswith("models/x has a layout this workflow does not know.")
    assert "`unembedding:`" in lines[0]
    assert lines[1:] == ["  tall  500 × 8", "  next  64 × 8", "  small  8 × 8"]


def test_the_list_of_candidates_fits_a_screen():
    lines = refusal([f"layer{i:03}" for i in range(500)]).splitlines()
    assert len(lines) == 14
    assert lines[-1] == "  … and 488 more"


def test_a_checkpoint_without_matrices_says_so():
    assert "It holds 2 tensors, none of them a matrix." in refusal(["a", "b"], shape=(5,))


def test_heads_of_two_layouts_are_ambiguous():
    message = refusal(["lm_head.weight", "embed_out.weight"])
    assert "'lm_head.weight' and 'embed_out.weight', which belong to different layouts" in message
    assert "`unembedding:`" in message


def test_embeddings_of_two_layouts_are_ambiguous_only_where_one_is_needed():
    names = ["wte.weight", "embeddings.weight"]
    assert "belong to different layouts" in refusal(names)
    assert choose([*names, "lm_head.weight"]).tensor == "lm_head.weight"


def test_the_name_the_user_gives_overrides_every_layout():
    names = ["lm_head.weight", "embed_out.weight", "wte.weight", "my.table"]
    assert choose(names, {}, exact="my.table") == Choice("my.table", tied=False)


def test_the_tensor_the_user_names_is_tied_if_config_json_says_so():
    found = choose(["my.table"], {"tie_word_embeddings": True}, exact="my.table")
    assert found == Choice("my.table", tied=True)


def test_a_name_the_user_gives_is_exact():
    message = refusal(["lm_head.weight"], exact="lm_head")
    assert "holds no tensor 'lm_head' (`unembedding:` in the configuration)" in message
    assert "  lm_head.weight  64 × 8" in message


@pytest.mark.parametrize(
    "parts",
    [
        ["lm_head.qweight", "lm_head.qzeros", "lm_head.scales"],
        ["lm_head.weight_g", "lm_head.weight_v"],
        ["lm_head.parametrizations.weight.original0", "lm_head.parametrizations.weight.original1"],
        ["_orig_mod.lm_head.qweight", "_orig_mod.lm_head.scales"],
        ["language_model.lm_head.weight_mask", "language_model.lm_head.weight_orig"],
        ["embed_out.SCB"],
        ["lm_head.base_layer.weight", "lm_head.lora_A.default.weight"],
    ],
)
def test_a_head_that_is_quantised_split_or_adapted_is_no_missing_head(parts):
    for beside in ([], ["lm_head.weight"] if parts[0].startswith("lm_head.") else []):
        message = refusal(["model.embed_tokens.weight", *beside, *parts], {"model_type": "new"})
        assert "has a head that is no plain matrix, but quantised, split or adapted" in message
        assert parts[0] in message


def test_a_tensor_named_by_the_user_is_taken_whatever_lies_beside_it():
    names = ["lm_head.weight", "lm_head.weight_scale"]
    assert choose(names, exact="lm_head.weight").tensor == "lm_head.weight"


def test_what_leaves_a_matrix_as_it_is_may_lie_beside_it():
    names = ["lm_head.w_out.weight", "lm_head.norm.weight", "lm_head.w_out.bias"]
    assert choose(names).tensor == "lm_head.w_out.weight"
    assert choose(["wte.weight", "lm_head.bias"], {"model_type": "gpt2"}).tensor == "wte.weight"
    assert "lm_head.sz" in refusal([*names, "lm_head.sz"])  # OLMo-core's, which scales each row


NORMALISED = [
    {"model_type": "bailing_moe", "norm_head": True},
    {"model_type": "new", "llm_config": {"norm_head": True}},
    {"model_type": "baichuan", "vocab_size": 125696},
    {"model_type": "baichuan", "vocab_size": 125700},
    {"model_type": "baichuan"},
]


@pytest.mark.parametrize("config", NORMALISED)
def test_a_head_whose_rows_are_normalised_in_use_is_refused_by_name(config):
    message = refusal(["lm_head.weight", "model.embed_tokens.weight"], config)
    assert "divides the rows of its head by their norms" in message
    assert ("Baichuan 2" if config["model_type"] == "baichuan" else "norm_head") in message


@pytest.mark.parametrize("config", NORMALISED)
def test_a_head_that_is_normalised_in_use_is_taken_by_name_with_a_warning(config):
    found = choose(["lm_head.weight"], config, exact="lm_head.weight")
    assert found.warning.startswith("'lm_head.weight' was taken as it is stored. In use this model")


def test_a_head_that_is_not_normalised_is_taken():
    for config in ({"norm_head": False}, {"model_type": "baichuan", "vocab_size": 64000}):
        found = choose(["lm_head.weight"], config)
        assert found == Choice("lm_head.weight", tied=False)
