"""Profiling one stage, and keeping the profile whatever becomes of the stage."""

from __future__ import annotations

import cProfile
import io
import marshal
import pstats
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from unembedding.errors import UserError
from unembedding.files import replacing, write_text
from unembedding.stopwatch import Stopwatch
from unembedding.workflow.profiles.flamegraph import flame_graph, flame_page
from unembedding.workflow.profiles.stacks import StackSampler, from_root

SUFFIXES = (".prof", ".txt", ".svg", ".html")


@contextmanager
def profiled(
    stage: str, target: Path, on_failure: Path, base: FrameType | None = None
) -> Iterator[Stopwatch]:
    """Run the block under cProfile and the stack sampler, and yield a stopwatch for its steps.

    Writes ``target`` with the suffixes .prof, .txt, .svg and .html. Where the block raises, or
    SIGTERM ends the process, they go beside ``on_failure`` instead, since Snakemake deletes the
    outputs of a job that failed; the exception goes on. Stacks begin above the frame ``base``, by
    default the caller's. Needs the main thread.
    """
    profile, sampler, clock = cProfile.Profile(), StackSampler(), Stopwatch()
    terminated = signal.signal(signal.SIGTERM, _exit_on_signal)
    destination = on_failure
    sampler.start(base or sys._getframe(2))
    profile.enable()
    try:
        yield clock
        destination = target
    finally:
        profile.disable()
        sampler.stop()
        signal.signal(signal.SIGTERM, terminated)
        try:
            _write(stage, destination, profile, sampler)
            if destination is on_failure:
                print(f"The profile up to here is in {destination}.prof, .txt, .svg and .html")
        except UserError:
            if destination is target:
                raise
            # The disk is full, perhaps; what made the block fail is what a person has to read.


def _exit_on_signal(signum: int, _frame: FrameType | None) -> NoReturn:
    print(f"Ended by {signal.Signals(signum).name}", file=sys.stderr)
    raise SystemExit(128 + signum)


def _write(stage: str, target: Path, profile: cProfile.Profile, sampler: StackSampler) -> None:
    prof, txt, svg, html = (target.with_name(target.name + suffix) for suffix in SUFFIXES)
    profile.create_stats()
    with replacing(prof) as file:
        marshal.dump(profile.stats, file)  # type: ignore[attr-defined]
    write_text(txt, table(profile))
    stacks = sampler.seconds()
    write_text(svg, flame_graph(stacks, stage))
    write_text(html, flame_page(stacks, stage))


def table(profile: cProfile.Profile) -> str:
    """Return the functions with their calls and seconds, sorted by cumulative time."""
    text = io.StringIO()
    stats: Any = pstats.Stats(profile, stream=text)
    # Not strip_dirs(), which takes every __init__.py for one file and adds up their times.
    stats.stats = {(from_root(file), *rest): row for (file, *rest), row in stats.stats.items()}
    stats.sort_stats("cumulative").print_stats()
    return text.getvalue()
