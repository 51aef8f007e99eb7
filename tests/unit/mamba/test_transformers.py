"""transformers' models with the fused scan and without it."""

import copy

import pytest
import torch

from mamba_cpu import use_fused_scan

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.usefixtures("kernel")

SIZE = {"num_hidden_layers": 2, "hidden_size": 24, "vocab_size": 50, "state_size": 16}


@pytest.fixture(params=["Mamba", "FalconMamba"])
def model(request):
    torch.manual_seed(0)
    config = getattr(transformers, f"{request.param}Config")(**SIZE)
    return getattr(transformers, f"{request.param}ForCausalLM")(config).eval()


def logits(model, tokens, **keywords):
    with torch.inference_mode():
        return model(tokens, **keywords).logits


@pytest.mark.parametrize("convolution", [True, False])
@pytest.mark.parametrize("use_cache", [True, False])
def test_logits_are_the_same(model, convolution, use_cache):
    tokens = torch.randint(50, (2, 70))
    plain = logits(model, tokens, use_cache=use_cache)
    undo = use_fused_scan(model, convolution=convolution)
    fused = logits(model, tokens, use_cache=use_cache)
    undo()
    assert not torch.equal(fused, plain)  # something did change
    torch.testing.assert_close(fused, plain, rtol=1e-4, atol=1e-5)
    assert torch.equal(logits(model, tokens, use_cache=use_cache), plain)


@pytest.mark.parametrize("batch", [1, 2])
def test_no_tensor_is_copied_into_another_layout(model, batch):
    use_fused_scan(model)
    tokens = torch.randint(50, (batch, 70))
    with torch.profiler.profile() as operators:
        logits(model, tokens, use_cache=False)
    assert not {"aten::clone", "aten::contiguous"} & {event.key for event in operators.events()}


def test_padding_is_masked_as_before(model):
    tokens = torch.randint(50, (2, 20))
    mask = torch.ones_like(tokens)
    mask[0, :7] = 0
    plain = logits(model, tokens, attention_mask=mask)
    use_fused_scan(model)
    torch.testing.assert_close(
        logits(model, tokens, attention_mask=mask), plain, rtol=1e-4, atol=1e-5
    )


def test_generation_with_a_cache_gives_the_same_tokens(model):
    tokens = torch.randint(50, (1, 12))
    options = {"max_new_tokens": 10, "do_sample": False, "pad_token_id": 0}
    plain = model.generate(tokens, **options)
    use_fused_scan(model)
    assert torch.equal(model.generate(tokens, **options), plain)


def test_training_keeps_the_original_code(model):
    use_fused_scan(model)
    tokens = torch.randint(50, (1, 9))
    model.train()
    with pytest.warns(UserWarning, match=r"call the model under torch\.inference_mode"):
        model(tokens, labels=tokens).loss.backward()
    assert all(p.grad is not None for p in model.parameters() if p.requires_grad)


def test_float64_keeps_the_original_code(model):
    model.double()
    tokens = torch.randint(50, (1, 9))
    plain = logits(model, tokens)
    use_fused_scan(model)
    torch.testing.assert_close(logits(model, tokens), plain)


def test_a_wide_convolution_keeps_the_original_code(model):
    wide = type(model)(type(model.config)(**SIZE, conv_kernel=40)).eval()
    tokens = torch.randint(50, (1, 50))
    plain = logits(wide, tokens)
    use_fused_scan(wide)
    torch.testing.assert_close(logits(wide, tokens), plain, rtol=1e-4, atol=1e-5)


def test_an_old_undo_leaves_a_later_patch(model):
    old = use_fused_scan(model)
    old()
    use_fused_scan(model)
    old()
    with pytest.raises(RuntimeError, match="already"):
        use_fused_scan(model)


def test_a_copy_computes_with_its_own_weights(model):
    tokens = torch.randint(50, (1, 9))
    use_fused_scan(model)
    before = logits(model, tokens)
    other = copy.deepcopy(model)
    assert torch.equal(logits(other, tokens), before)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(0.5)
    assert torch.equal(logits(model, tokens), before)
    assert not torch.equal(logits(other, tokens), before)


def test_a_patched_model_is_not_pickled_whole(model, tmp_path):
    undo = use_fused_scan(model)
    with pytest.raises(TypeError, match="undo that first, or save its weights"):
        torch.save(model, tmp_path / "model.pt")
    undo()
    torch.save(model, tmp_path / "model.pt")


def test_a_weight_on_another_device_is_no_reason_to_be_wrong(model):
    tokens = torch.randint(50, (1, 9))
    use_fused_scan(model)
    mixer = model.backbone.layers[0].mixer
    mixer.A_log = torch.nn.Parameter(mixer.A_log.to("meta"))
    with pytest.raises(RuntimeError, match="device"):
        logits(model, tokens)


def test_other_models_of_the_class_stay_as_they_are(model):
    other = type(model)(model.config).eval()
    use_fused_scan(model)
    mixers = [m for m in other.modules() if type(m).__name__.endswith("Mixer")]
    assert mixers and all("forward" not in vars(mixer) for mixer in mixers)


def test_twice_is_an_error_and_so_is_another_model(model):
    undo = use_fused_scan(model)
    with pytest.raises(RuntimeError, match="already"):
        use_fused_scan(model)
    undo()
    undo()  # harmless
    with pytest.raises(TypeError, match="no Mamba"):
        use_fused_scan(torch.nn.Linear(2, 2))
