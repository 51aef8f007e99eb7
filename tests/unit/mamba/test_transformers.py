"""transformers' models with the fused scan and without it."""

import copy

import pytest
import torch

from mamba_cpu import accelerate

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
    undo = accelerate(model, convolution=convolution)
    fused = logits(model, tokens, use_cache=use_cache)
    undo()
    assert not torch.equal(fused, plain)  # something did change
    torch.testing.assert_close(fused, plain, rtol=1e-4, atol=1e-5)
    assert torch.equal(logits(model, tokens, use_cache=use_cache), plain)


@pytest.mark.parametrize("batch", [1, 2])
def test_no_tensor_is_copied_into_another_layout(model, batch):
    accelerate(model)
    tokens = torch.randint(50, (batch, 70))
    with torch.profiler.profile() as operators:
        logits(model, tokens, use_cache=False)
    assert not {"aten::clone", "aten::contiguous"} & {event.key for event in operators.events()}


def test_padding_is_masked_as_before(model):
    tokens = torch.randint(50, (2, 20))
    mask = torch.ones_like(tokens)
    mask[0, :7] = 0
    plain = logits(model, tokens, attention_mask=mask)
    accelerate(model)
    torch.testing.assert_close(
        logits(model, tokens, attention_mask=mask), plain, rtol=1e-4, atol=1e-5
    )


def test_generation_with_a_cache_gives_the_same_tokens(model):
    tokens = torch.randint(50, (1, 12))
    options = {"max_new_tokens": 10, "do_sample": False, "pad_token_id": 0}
    plain = model.generate(tokens, **options)
    accelerate(model)
    assert torch.equal(model.generate(tokens, **options), plain)


def test_gradients_are_the_same(model):
    tokens = torch.randint(50, (2, 9))
    model.train()

    def gradients():
        model.zero_grad()
        model(tokens, labels=tokens).loss.backward()
        return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}

    plain = gradients()
    accelerate(model)
    fused = gradients()
    assert fused.keys() == plain.keys()
    for name, gradient in plain.items():
        torch.testing.assert_close(fused[name], gradient, rtol=1e-3, atol=1e-6, msg=name)


@pytest.mark.parametrize("cut", [2, 30, 69])
def test_tokens_after_a_cache_continue_from_its_state(model, cut):
    tokens = torch.randint(50, (2, 70))
    whole = logits(model, tokens)[:, cut:]
    accelerate(model)
    with torch.inference_mode():
        first = model(tokens[:, :cut], use_cache=True)
        rest = model(tokens[:, cut:], cache=first.cache, use_cache=True).logits
    torch.testing.assert_close(rest, whole, rtol=1e-4, atol=1e-5)


def test_an_accelerated_model_is_exported(model):
    tokens = torch.randint(50, (2, 20))
    plain = logits(model, tokens, use_cache=False)
    accelerate(model)
    with torch.no_grad():
        exported = torch.export.export(model, (tokens,), {"use_cache": False}, strict=False)
        found = exported.module()(tokens, use_cache=False).logits
    torch.testing.assert_close(found, plain, rtol=1e-4, atol=1e-5)
    assert any("selective_scan" in str(node.target) for node in exported.graph.nodes)


def test_a_copy_is_accelerated_anew_and_undone_alone(model):
    tokens = torch.randint(50, (1, 9))
    plain = logits(model, tokens)
    accelerate(model)
    fused = logits(model, tokens)
    other = copy.deepcopy(model)
    accelerate(other)()
    assert torch.equal(logits(other, tokens), plain)
    assert torch.equal(logits(model, tokens), fused)


def mixers(model):
    return [layer.mixer for layer in model.backbone.layers]


def test_a_forward_of_ones_own_is_not_bypassed(model):
    mixer = mixers(model)[1]
    original = mixer.forward
    mixer.forward = lambda *args, **keywords: original(*args, **keywords) * 2
    with pytest.raises(TypeError, match="call accelerate first, and wrap the forward afterwards"):
        accelerate(model)
    del mixer.forward
    undo = accelerate(model)
    wrapper = mixer.forward = lambda *args, **keywords: 0
    with pytest.raises(RuntimeError, match="wrapped after accelerate"):
        undo()
    assert mixer.forward is wrapper


def test_a_subclass_of_a_mixer_is_one(model):
    tokens = torch.randint(50, (1, 9))
    plain = logits(model, tokens)
    for mixer in mixers(model):
        mixer.__class__ = type("Mine", (type(mixer),), {})
    accelerate(model)
    fused = logits(model, tokens)
    assert not torch.equal(fused, plain)
    torch.testing.assert_close(fused, plain, rtol=1e-4, atol=1e-5)


class Hook:
    """What accelerate's offload does: weights are there between the two calls only."""

    def __init__(self, module):
        self.kept = {name: p.data for name, p in module.named_parameters(recurse=False)}
        self.post_forward(module, None)

    def pre_forward(self, module, *args, **keywords):
        for name, data in self.kept.items():
            setattr(module, name, torch.nn.Parameter(data, requires_grad=False))
        return args, keywords

    def post_forward(self, module, output):
        for name, data in self.kept.items():
            meta = torch.nn.Parameter(data.to("meta"), requires_grad=False)
            setattr(module, name, meta)
        return output


def hooked(module):
    hook = module._hf_hook = Hook(module)
    module._old_forward = module.forward

    def forward(*args, **keywords):
        args, keywords = hook.pre_forward(module, *args, **keywords)
        return hook.post_forward(module, module._old_forward(*args, **keywords))

    module.forward = forward


def test_weights_that_hooks_bring_from_the_disk_are_there(model):
    tokens = torch.randint(50, (1, 9))
    plain = logits(model, tokens)
    for module in mixers(model)[1].modules():
        if list(module.parameters(recurse=False)):
            hooked(module)
    torch.testing.assert_close(logits(model, tokens), plain)
    undo = accelerate(model)
    fused = logits(model, tokens)
    assert not torch.equal(fused, plain)
    torch.testing.assert_close(fused, plain, rtol=1e-4, atol=1e-5)
    undo()
    torch.testing.assert_close(logits(model, tokens), plain)


def test_float64_keeps_the_original_code(model):
    model.double()
    tokens = torch.randint(50, (1, 9))
    plain = logits(model, tokens)
    accelerate(model)
    torch.testing.assert_close(logits(model, tokens), plain)


def test_a_wide_convolution_keeps_the_original_code(model):
    wide = type(model)(type(model.config)(**SIZE, conv_kernel=40)).eval()
    tokens = torch.randint(50, (1, 50))
    plain = logits(wide, tokens)
    accelerate(wide)
    torch.testing.assert_close(logits(wide, tokens), plain, rtol=1e-4, atol=1e-5)


def test_an_old_undo_leaves_a_later_patch(model):
    tokens = torch.randint(50, (1, 9))
    old = accelerate(model)
    accelerate(model)
    fused = logits(model, tokens)
    old()
    assert torch.equal(logits(model, tokens), fused)


def test_a_copy_computes_with_its_own_weights(model):
    tokens = torch.randint(50, (1, 9))
    accelerate(model)
    before = logits(model, tokens)
    other = copy.deepcopy(model)
    assert torch.equal(logits(other, tokens), before)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(0.5)
    assert torch.equal(logits(model, tokens), before)
    assert not torch.equal(logits(other, tokens), before)


def test_a_patched_model_is_not_pickled_whole(model, tmp_path):
    undo = accelerate(model)
    with pytest.raises(TypeError, match="undo that first, or save its weights"):
        torch.save(model, tmp_path / "model.pt")
    undo()
    torch.save(model, tmp_path / "model.pt")


def test_a_weight_on_another_device_is_no_reason_to_be_wrong(model):
    tokens = torch.randint(50, (1, 9))
    accelerate(model)
    mixer = model.backbone.layers[0].mixer
    mixer.A_log = torch.nn.Parameter(mixer.A_log.to("meta"))
    with pytest.raises(RuntimeError, match="device"):
        logits(model, tokens)


def test_other_models_of_the_class_stay_as_they_are(model):
    other = type(model)(model.config).eval()
    accelerate(model)
    assert all("forward" not in vars(mixer) for mixer in mixers(other))


def test_twice_is_as_once_and_another_model_is_an_error(model):
    tokens = torch.randint(50, (1, 9))
    plain = logits(model, tokens)
    accelerate(model)
    undo = accelerate(model)
    undo()
    undo()  # harmless
    assert torch.equal(logits(model, tokens), plain)
    with pytest.raises(TypeError, match="no Mamba"):
        accelerate(torch.nn.Linear(2, 2))
