"""The scan's numbers for docs/benchmarks.md: every ratio is of medians of one interleaved run.

Usage: PYTHONPATH=packages/mamba-cpu/src python benchmarks/mamba.py [folder for compiled kernels]
Prints Markdown.
"""

from __future__ import annotations

import copy
import os
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import torch

from mamba_cpu import load_kernel, selective_scan_fn, use_fused_scan
from mamba_cpu.bench.timing import timed
from mamba_cpu.bench.variants import Inputs, Variant, all_variants, make_inputs
from mamba_cpu.build import cpu_model
from mamba_cpu.reference import selective_scan_reference

DIM, STATE = 1536, 16
THREADS = ThreadPoolExecutor(2)  # kept: a thread that has just started often shares a core
SLOW = ("einsum", "transformers", "mambapy", "associative_scan", "fused", "reordered", "unrolled")


def table(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rows])


def medians(
    variants: list[Variant], inputs: Inputs, repeats: int, slow_repeats: int = 3
) -> dict[str, float]:
    """Median milliseconds, interleaved; the slow ones go through fewer rounds."""
    times: dict[str, list[float]] = {variant.name: [] for variant in variants}
    with torch.inference_mode():
        for variant in variants:
            variant.run(inputs)
        for turn in range(repeats):
            for variant in variants:
                if variant.name not in SLOW or turn < slow_repeats:
                    times[variant.name].append(timed(variant.run, inputs))
    return {name: 1e3 * statistics.median(own) for name, own in times.items()}


def ladder(variants: list[Variant]) -> None:
    """L = 2048 on one thread and on two: what each step gains, and the rest beside it."""
    inputs = make_inputs(1, DIM, 2048, STATE)
    expected, _ = selective_scan_reference(inputs.u, inputs.delta, inputs.A, inputs.B, inputs.C)
    columns = {}
    for threads in (1, 2):
        torch.set_num_threads(threads)
        chosen = [v for v in variants if not v.longest and (threads == 1 or not v.one_thread)]
        columns[threads] = medians(chosen, inputs, repeats=25)
    rows = []
    for v in variants:
        if v.name not in columns[1]:
            continue
        error = (v.run(inputs) - expected).abs().max() / expected.abs().max() if v.exact else None
        row = [v.name]
        for threads in (1, 2):
            ms = columns[threads].get(v.name)
            gain = columns[threads]["einsum"] / ms if ms else 0
            row += [f"{ms:.2f}", f"{gain:.1f}"] if ms else ["", ""]
        rows.append([*row, "" if error is None else f"{error:.0e}"])
    head = ["variant", "1 thread, ms", "× einsum", "2 threads, ms", "× einsum", "error"]
    print(f"\n### L = 2048, D = {DIM}, N = {STATE}, float32\n\n{table(head, rows)}")


def two_halves(run: Callable[[Inputs], object], halves: list[Inputs], whole: Inputs) -> None:
    """A limit on two threads: the C function releases the interpreter, so two Python threads do."""
    del whole
    list(THREADS.map(run, halves))


def against_limits(variants: list[Variant]) -> None:
    """The kernel over the exponentials alone, from L = 512 up, by layout."""
    named = {v.name: v for v in variants}
    limit = named["limit: exponentials"]
    rows = []
    for length in (512, 2048, 8192, 32768, 131072, 262144):
        dim = DIM if length <= 32768 else 192
        inputs = make_inputs(1, dim, length, STATE)
        u, delta, A, B, C, out = inputs.rows
        halves = [make_inputs(1, dim // 2, length, STATE) for _ in range(2)]
        other = partial(selective_scan_fn, u, delta, A, B, C, out=out)
        for threads in (1, 2):
            torch.set_num_threads(threads)
            alone = limit.run if threads == 1 else partial(two_halves, limit.run, halves)
            runs = [
                Variant("limit", alone),
                Variant("dim", named["parallel"].run),
                Variant("length", lambda _, run=other: run()),
                Variant("new", named["parallel, new output"].run),
            ]
            ms = medians(runs, inputs, repeats=25)
            row = [str(length), str(dim), str(threads), f"{ms['limit']:.2f}"]
            row += [f"{ms[name] / ms['limit']:.2f}" for name in ("dim", "length", "new")]
            rows.append(row)
    head = ["L", "D", "threads", "limit, ms", "÷ limit", "÷ limit, time contiguous"]
    head += ["÷ limit, output allocated"]
    print(f"\n### Over the exponentials alone\n\n{table(head, rows)}")


def scaling() -> None:
    """Milliseconds from 8192 to 1,048,576 at D = 256, and the exponent."""
    import math

    torch.set_num_threads(2)
    lengths = [8192 * 4**k for k in range(4)] + [1048576]
    ms = []
    for length in lengths:
        inputs = make_inputs(1, 256, length, STATE)
        run = partial(selective_scan_fn, inputs.u, inputs.delta, inputs.A, inputs.B, inputs.C)
        out = torch.empty_like(inputs.u)
        run(out=out)
        seconds = []
        for _ in range(5):
            start = time.perf_counter()
            run(out=out)
            seconds.append(time.perf_counter() - start)
        ms.append(1e3 * statistics.median(seconds))
    points = [[math.log(x) for x in xs] for xs in (lengths, ms)]
    slope = statistics.linear_regression(*points).slope
    rows = [[f"{length:,}", f"{t:.1f}"] for length, t in zip(lengths, ms, strict=True)]
    print(f"\n### Scaling, D = 256, 2 threads: exponent {slope:.3f}\n")
    print(table(["L", "ms"], rows))


def whole_model(layers: int = 24) -> None:
    """A Mamba of 130M shape: the forward pass as it is, with the scan, and with the convolution."""
    from mamba_cpu.bench.whole_model import (
        forward,
        interleaved,
        load_model,
        load_tokens,
        profile,
        shares,
    )

    torch.set_num_threads(2)
    model = load_model(layers=layers, width=768, vocabulary=50280)
    tokens = load_tokens(50280, length=2048)
    exact = forward(copy.deepcopy(model).double(), tokens)
    undo = use_fused_scan(model)
    fused = forward(model, tokens)
    share = shares(profile(model, tokens))
    undo()
    plain = forward(model, tokens)
    apart = {
        "the two apart": largest_difference(fused, plain),
        "transformers from float64": largest_difference(plain, exact),
        "fused from float64": largest_difference(fused, exact),
    }
    del exact, fused, plain
    seconds = interleaved(model, tokens, repeats=3)
    rows = [[name, f"{s:.2f}", f"{seconds['off'] / s:.2f}"] for name, s in seconds.items()]
    print(f"\n### A Mamba of {layers} layers, width 768, L = 2048, 2 threads\n")
    print(table(["fused", "seconds", "speed-up"], rows))
    left = ", ".join(f"{part} {100 * s:.0f}%" for part, s in share.items())
    logits = ", ".join(f"{which} {d:.1e}" for which, d in apart.items())
    print(f"\nOf the remaining time: {left}. Largest relative difference in logits: {logits}.")


def largest_difference(logits: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference over the largest value."""
    return ((logits - expected).abs().max() / expected.abs().max()).item()


def main() -> None:
    """Print all tables."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "results/mamba/build")
    kernel = load_kernel(folder)
    cores = len(os.sched_getaffinity(0))
    print("## Selective scan\n")
    print(f"{cpu_model()}, {cores} cores; torch {torch.__version__}; {kernel.compiler}; ", end="")
    print(f"`{' '.join(kernel.flags)}`. Load when it began: {os.getloadavg()[0]:.1f}.", flush=True)
    variants = all_variants(folder)
    parts = {
        "ladder": partial(ladder, variants),
        "limits": partial(against_limits, variants),
        "scaling": scaling,
        "model": whole_model,
    }
    for name in sys.argv[2:] or parts:
        parts[name]()
        sys.stdout.flush()


if __name__ == "__main__":
    main()
