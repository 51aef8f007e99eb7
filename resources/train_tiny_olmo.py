"""Train a tiny OLMo on the nouns of WordNet and keep five checkpoints of its training.

The text is one line for each noun synset of WordNet 3.0: its lemmas, its kinds (hypernyms) and its
gloss. It is read from `data.noun`, which Debian's `wordnet-base` package holds:

    apt-get download wordnet-base
    dpkg-deb -x wordnet-base_*.deb wordnet
    python resources/train_tiny_olmo.py wordnet/usr/share/wordnet resources/tiny-olmo

Each checkpoint is a folder in the Hub's layout, named as OLMo names its revisions on the Hub
(`step1000-tokens4B`). One seed on one machine gives the same files each time.
"""

import argparse
import math
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from tqdm import tqdm
from transformers import (
    OlmoConfig,
    OlmoForCausalLM,
    PreTrainedTokenizerFast,
    get_cosine_schedule_with_warmup,
)

VOCABULARY = 1024
CONTEXT = 128  # tokens in a block
BATCH = 32  # blocks in a step, so 4096 tokens
HELD_OUT = 256  # blocks kept for evaluation, so 32768 tokens
END, PADDING = "<|endoftext|>", "<|padding|>"


class Synset(NamedTuple):
    """One noun synset; `kinds` and `instances` are the offsets of the synsets above it."""

    lemmas: list[str]
    kinds: list[str]
    instances: list[str]
    gloss: str


def parse_synset(line: str) -> tuple[str, Synset]:
    """Return a line of `data.noun` as its offset and its synset (the format is in wndb(5WN))."""
    data, gloss = line.split(" | ", 1)
    fields = data.split()
    end = 4 + 2 * int(fields[3], 16)
    pointers = list(zip(fields[end + 1 :: 4], fields[end + 2 :: 4], strict=True))
    return fields[0], Synset(
        lemmas=[lemma.replace("_", " ") for lemma in fields[4:end:2]],
        kinds=[offset for symbol, offset in pointers if symbol == "@"],
        instances=[offset for symbol, offset in pointers if symbol == "@i"],
        gloss=gloss.strip(),
    )


def describe(synset: Synset, synsets: dict[str, Synset]) -> str:
    """Return a synset as text, such as `oak, oak tree: a kind of tree; a deciduous tree ...`."""
    clauses = [synset.gloss]
    for relation, above in (("a kind of", synset.kinds), ("an instance of", synset.instances)):
        if above:
            names = " and ".join(synsets[offset].lemmas[0] for offset in above)
            clauses.insert(0, f"{relation} {names}")
    return f"{', '.join(synset.lemmas)}: {'; '.join(clauses)}"


def read_nouns(wordnet: Path) -> list[str]:
    """Return one line of text for each noun synset, in the order of `data.noun`."""
    lines = (wordnet / "data.noun").read_text(encoding="utf-8").splitlines()
    # The licence at the head of the file is indented by two spaces; no synset is.
    synsets = dict(parse_synset(line) for line in lines if not line.startswith("  "))
    return [describe(synset, synsets) for synset in synsets.values()]


def train_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    """Return a byte-level BPE tokenizer of exactly `VOCABULARY` tokens, both specials included."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END, PADDING],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=PADDING,
        model_max_length=CONTEXT,
        model_input_names=["input_ids", "attention_mask"],
    )


def make_blocks(
    texts: list[str], tokenizer: PreTrainedTokenizerFast, seed: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return token ids to train on and to evaluate on, each [blocks, CONTEXT].

    The texts are shuffled and packed end to end, with the end token between them.
    """
    order = np.random.default_rng(seed).permutation(len(texts))
    encoded = tokenizer.backend_tokenizer.encode_batch([texts[i] + END for i in order])
    ids = torch.tensor([token for text in encoded for token in text.ids])
    blocks = ids[: len(ids) // CONTEXT * CONTEXT].view(-1, CONTEXT)
    return blocks[HELD_OUT:], blocks[:HELD_OUT]


def batches(blocks: torch.Tensor, steps: int) -> Iterator[torch.Tensor]:
    """Yield `steps` batches of token ids, each [BATCH, CONTEXT], in a new order each epoch."""
    per_epoch = len(blocks) // BATCH
    for step in range(steps):
        if step % per_epoch == 0:
            order = torch.randperm(len(blocks))
        start = step % per_epoch * BATCH
        yield blocks[order[start : start + BATCH]]


def make_model(tokenizer: PreTrainedTokenizerFast) -> OlmoForCausalLM:
    """Return an untrained OLMo of 64 dimensions and 2 layers with an unembedding of its own."""
    return OlmoForCausalLM(
        OlmoConfig(
            vocab_size=len(tokenizer),
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            max_position_embeddings=CONTEXT,
            tie_word_embeddings=False,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )


@torch.no_grad()
def evaluate(model: OlmoForCausalLM, blocks: torch.Tensor) -> float:
    """Return the mean cross-entropy over blocks [blocks, CONTEXT], in nats per token."""
    losses = [model(input_ids=batch, labels=batch).loss for batch in blocks.split(BATCH)]
    return float(torch.stack(losses).mean())


def unembedding_geometry(model: OlmoForCausalLM) -> tuple[int, float, float]:
    """Return rank, condition number and effective rank of the covariance of the unembedding.

    With γ [V, d] the unembedding, the covariance is (γ - μ)ᵀ(γ - μ)/V, in float64; its effective
    rank is the exponential of the entropy of its normalised spectrum.
    """
    γ = model.lm_head.weight.detach().double()
    centred = γ - γ.mean(dim=0)
    covariance = centred.T @ centred / len(γ)
    λ = torch.linalg.eigvalsh(covariance)
    p = λ / λ.sum()
    rank = int(torch.linalg.matrix_rank(covariance, hermitian=True))
    return rank, float(λ[-1] / λ[0]), math.exp(float(torch.special.entr(p).sum()))


def checkpoint_steps(steps: int) -> list[int]:
    """Return the steps to keep: 0 and four that grow fivefold up to the last."""
    return [0, *(steps // 5**power for power in (3, 2, 1, 0))]


def revision_name(step: int) -> str:
    """Return a checkpoint's name as OLMo's Hub revisions have it, in thousands below a million."""
    tokens = step * BATCH * CONTEXT
    count = f"{tokens / 1e3:.0f}K" if 0 < tokens < 1e6 else f"{tokens / 1e6:.0f}M"
    return f"step{step}-tokens{count}"


def save_checkpoint(
    model: OlmoForCausalLM,
    step: int,
    held_out: torch.Tensor,
    output: Path,
) -> None:
    """Write a checkpoint to its own folder in `output` and print its row of the table."""
    folder = output / revision_name(step)
    model.save_pretrained(folder)
    loss = evaluate(model, held_out)
    rank, condition, effective = unembedding_geometry(model)
    tokens = step * BATCH * CONTEXT
    tqdm.write(
        f"| `{folder.name}` | {tokens:,} | {loss:.3f} | {rank} | {condition:.2f} "
        f"| {effective:.2f} |"
    )


def train(
    model: OlmoForCausalLM,
    blocks: tuple[torch.Tensor, torch.Tensor],
    steps: int,
    output: Path,
) -> None:
    """Train for `steps` steps of AdamW with warmup and cosine decay, and keep the checkpoints."""
    training, held_out = blocks
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, betas=(0.9, 0.95), weight_decay=0.1)
    schedule = get_cosine_schedule_with_warmup(optimizer, steps // 25, steps)
    kept = checkpoint_steps(steps)
    save_checkpoint(model, 0, held_out, output)
    progress = tqdm(batches(training, steps), total=steps, unit="step")
    for step, batch in enumerate(progress, start=1):
        loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        progress.set_postfix(loss=f"{loss.item():.3f}")
        if step in kept:
            save_checkpoint(model, step, held_out, output)


def parse_arguments() -> argparse.Namespace:
    """Return the command line's arguments."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("wordnet", type=Path, help="the folder that holds data.noun")
    parser.add_argument("output", type=Path, help="the folder for the checkpoints")
    parser.add_argument("--steps", type=int, default=2500, help="of 4096 tokens, 125 or more")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main() -> None:
    """Train the tokenizer and the model, and print the table of the checkpoints."""
    arguments = parse_arguments()
    # One thread sums in one order, which is what makes two runs agree to the last bit.
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(arguments.seed)
    texts = read_nouns(arguments.wordnet)
    tokenizer = train_tokenizer(texts)
    training, held_out = make_blocks(texts, tokenizer, arguments.seed)
    model = make_model(tokenizer)
    print(f"{len(texts):,} synsets, such as: {texts[len(texts) // 2]}")
    print(f"{training.numel():,} tokens to train on, {held_out.numel():,} held out")
    print(f"{model.num_parameters():,} parameters, {len(tokenizer):,} tokens in the vocabulary")
    print("\n| revision | tokens | held-out loss | rank | condition number | effective rank |")
    print("|---|---|---|---|---|---|", flush=True)
    train(model, (training, held_out), arguments.steps, arguments.output)
    tokenizer.save_pretrained(arguments.output)


if __name__ == "__main__":
    main()
