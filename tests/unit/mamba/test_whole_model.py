"""A whole model profiled before and after: what it reads, and what is drawn from the two passes."""

import json
import tracemalloc
from dataclasses import replace
from inspect import unwrap
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file

from mamba_cpu.bench.whole_model import (
    compare,
    forward,
    load_model,
    load_tokens,
    shares,
    side_by_side,
)
from mamba_cpu.errors import MambaCpuError

pytest.importorskip("transformers")


@pytest.fixture
def model():
    return load_model(layers=1, width=16, state=4, vocabulary=40)


@pytest.fixture
def tokens():
    return load_tokens(40, length=30)


@pytest.fixture
def result(kernel, model, tokens):
    return compare(model, tokens, repeats=1)


def test_random_weights_are_of_the_shape_asked_for_and_the_same_each_time(model):
    again = load_model(layers=1, width=16, state=4, vocabulary=40)
    assert model.config.num_hidden_layers == 1
    assert model.backbone.embeddings.weight.shape == (40, 16)
    assert model.backbone.layers[0].mixer.A_log.shape == (32, 4)
    pairs = zip(model.parameters(), again.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def test_a_folder_is_loaded_as_it_is(model, tokens, tmp_path):
    model.save_pretrained(tmp_path)
    assert torch.equal(forward(load_model(str(tmp_path)), tokens), forward(model, tokens))


def a_model_without_a_scan(folder):
    from transformers import GPT2Config, GPT2LMHeadModel

    GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=8, n_head=1, vocab_size=9)).save_pretrained(folder)


def weights_of_another_shape(folder):
    load_model(layers=1, width=16, state=4, vocabulary=40).save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": 41}))


def weights_that_lack_one(folder):
    load_model(layers=1, width=16, state=4, vocabulary=40).save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    del tensors["backbone.layers.0.mixer.A_log"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def a_broken_config(folder):
    folder.mkdir()
    (folder / "config.json").write_text("{")


def truncated_weights(folder):
    load_model(layers=1, width=16, state=4, vocabulary=40).save_pretrained(folder)
    with (folder / "model.safetensors").open("r+b") as file:
        file.truncate(100)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (a_model_without_a_scan, "is a GPT2LMHeadModel, without a selective scan"),
        (a_broken_config, "config.json"),
        (truncated_weights, "cannot load"),
        (weights_of_another_shape, "cannot load"),
        (weights_that_lack_one, "lacks 1 weights, backbone.layers.0.mixer.A_log among them"),
        (lambda folder: folder.mkdir(), "config.json"),
        (lambda folder: None, "cannot load"),
        (lambda folder: folder.touch(), "cannot load"),
    ],
)
def test_a_path_without_a_mamba_is_told_by_its_key_and_place(tmp_path, monkeypatch, make, said):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    make(tmp_path / "model")
    with pytest.raises(MambaCpuError, match=r"^mamba\.model\.path: ") as raised:
        load_model(str(tmp_path / "model"))
    assert said in str(raised.value) and str(tmp_path / "model") in str(raised.value)


def test_random_tokens_are_of_the_vocabulary_and_the_same_each_time(tokens):
    assert tokens.shape == (1, 30) and set(tokens[0].tolist()) <= set(range(40))
    assert torch.equal(tokens, load_tokens(40, length=30))


def test_a_text_is_read_as_bytes(tmp_path):
    (tmp_path / "a.txt").write_text("AB>\nC")
    tokens = load_tokens(256, "text", str(tmp_path / "a.txt"), length=512)
    assert tokens.tolist() == [[65, 66, 62, 10, 67]]


def test_a_fasta_file_is_read_without_its_headers(tmp_path):
    (tmp_path / "a.fa").write_text("\ufeff>one\n;a comment\nGAT\nT A\n>two\nCA\n")
    tokens = load_tokens(256, "fasta", str(tmp_path / "a.fa"), length=6)
    assert bytes(tokens[0].tolist()) == b"GATTAC"


@pytest.mark.parametrize("line", [60, 2**25])
def test_a_few_bases_of_a_large_fasta_file_take_little_memory(tmp_path, line):
    with (tmp_path / "a.fa").open("w") as file:
        file.write(">" + "chr1 " * 2**16 + "\n")
        for _ in range(2**25 // line):
            file.write("GATTACAT"[: line % 8 or 8] * (line // 8) + "\n")
    tracemalloc.start()
    tokens = load_tokens(256, "fasta", str(tmp_path / "a.fa"), length=512)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert tokens.shape == (1, 512) and bytes(tokens[0, :4].tolist()) == b"GATT"
    assert peak < 2**20


def test_the_length_is_counted_in_bytes(tmp_path):
    (tmp_path / "a.txt").write_text("äöü", encoding="utf-8")
    tokens = load_tokens(256, "text", str(tmp_path / "a.txt"), length=3)
    assert bytes(tokens[0].tolist()) == "äö".encode()[:3]


@pytest.mark.parametrize(
    ("kind", "content", "said"),
    [
        ("text", b"", "no character"),
        ("fasta", b"", "no sequence"),
        ("fasta", b">only a header\n", "no sequence"),
        ("fasta", b"\x1f\x8b\x08\x00", "not text in UTF-8 (byte 1)"),
    ],
)
def test_a_file_without_text_is_told_by_its_key_and_place(tmp_path, kind, content, said):
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(MambaCpuError, match=r"^mamba\.sequence\.path: ") as raised:
        load_tokens(256, kind, str(tmp_path / "a"))
    assert said in str(raised.value) and str(tmp_path / "a") in str(raised.value)


def test_a_folder_is_no_sequence(tmp_path):
    with pytest.raises(MambaCpuError, match=r"mamba\.sequence\.path: .* cannot be read"):
        load_tokens(256, "text", str(tmp_path))


def test_bytes_beyond_a_small_vocabulary_wrap_around(tmp_path):
    (tmp_path / "a.txt").write_text("AZ")
    assert load_tokens(40, "text", str(tmp_path / "a.txt")).tolist() == [[65 - 40, 90 - 2 * 40]]


def test_a_kind_that_needs_a_file_says_so():
    with pytest.raises(ValueError, match="'fasta', which needs"):
        load_tokens(40, "fasta")


@pytest.mark.parametrize("when", ["shares_before", "shares_after"])
def test_the_shares_of_a_pass_add_up_to_one(result, when):
    shares = result.summary[when]
    assert list(shares) == ["linear projections", "convolution", "scan", "other"]
    assert sum(shares.values()) == pytest.approx(1)
    assert all(share > 0 for share in shares.values())


def test_each_profile_names_the_functions_that_ran(result):
    assert "(mamba_selective_scan)" in result.before and ".scan}" not in result.before
    assert "(mamba_selective_scan)" not in result.after and ".scan}" in result.after
    assert "conv1d}" in result.before and ".causal_conv1d}" in result.after


def entry(code, itself, with_calls):
    return SimpleNamespace(code=code, inlinetime=itself, totaltime=with_calls)


def test_a_part_is_charged_for_what_it_calls_and_a_mixer_for_the_product_it_writes_out():
    from transformers.models.mamba import modeling_mamba as mamba

    mixer = unwrap(mamba.MambaMixer.forward).__code__
    scan, conv = (unwrap(f).__code__ for f in (mamba.mamba_selective_scan, mamba.causal_conv1d_fn))
    entries = [
        entry(mixer, 1, 10),  # of which 1 is the product of dt_proj, written as `@`
        entry("<built-in method torch._C._nn.linear>", 2, 2),
        entry(scan, 1, 4),
        entry("<built-in method torch.matmul>", 3, 3),  # called by the scan
        entry(conv, 0, 1),
        entry("<built-in method torch.conv1d>", 1, 1),
        entry("<built-in method torch.rsqrt>", 2, 2),
    ]
    assert shares(SimpleNamespace(getstats=lambda: entries)) == pytest.approx(
        {"linear projections": 0.3, "convolution": 0.1, "scan": 0.4, "other": 0.2}
    )


def test_the_longest_rows_of_both_stand_side_by_side():
    linear, exp = "<built-in method torch._C._nn.linear>", "<built-in method torch.exp>"
    before = [entry(linear, 1, 1), entry(exp, 3, 3), entry("small", 0, 0)]
    after = [entry(linear, 1.5, 1.5), entry("fused", 0.5, 0.5)]
    profiles = [SimpleNamespace(getstats=lambda own=own: own) for own in (before, after)]
    assert side_by_side(*profiles, rows=3).splitlines() == [
        "   before     after   seconds in the function itself",
        f"   3.0000         -   {exp}",
        f"   1.0000    1.5000   {linear}",
        "        -    0.5000   fused",
        "",
        "   before     after   share of the forward pass",
        "    25.0%     75.0%   linear projections",
        "     0.0%      0.0%   convolution",
        "     0.0%      0.0%   scan",
        "    75.0%     25.0%   other",
    ]


def test_the_summary_tells_times_speed_up_memory_and_difference(result):
    summary = result.summary
    assert list(summary["seconds"]) == ["off", "scan", "scan and convolution"]
    for name, seconds in summary["seconds"].items():
        assert summary["speed_up"][name] == summary["seconds"]["off"] / seconds
    assert 0 < summary["largest_relative_difference_in_logits"] < 1e-5
    assert all(peak > 2**20 for peak in summary["peak_bytes"].values())
    assert (summary["length"], summary["parameters"]) == (30, 2880)


def test_the_conclusion_is_of_the_summarys_numbers(result):
    numbers = {
        "length": 30,
        "seconds": {"off": 1.23, "scan and convolution": 0.5},
        "speed_up": {"scan and convolution": 2.46},
        "largest_relative_difference_in_logits": 9e-7,
    }
    assert replace(result, summary=numbers).conclusions() == [
        "A forward pass over 30 tokens takes 1.2 s as transformers has it, and 0.5 s with the "
        "fused scan and convolution (2.5 times as fast); logits differ by 9.0e-07 of the largest."
    ]


def test_the_model_is_left_as_it_was(model, tokens, kernel):
    plain = forward(model, tokens)
    compare(model, tokens, repeats=1)
    assert torch.equal(forward(model, tokens), plain)
    assert not any("forward" in vars(module) for module in model.modules())
