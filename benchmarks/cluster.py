"""What a sweep costs on Slurm, with its driver killed twice: prints a table of docs/benchmarks.md.

Serves revisions of a tiny model from a Hub on loopback, and computes them on the Slurm of one node
that the tests use (root on Debian), each revision in a submission of its own. The driver is ended
with SIGKILL after a third and after two thirds of them. Usage: python benchmarks/cluster.py
[--revisions 200].
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests/cluster")]

from driver import TINY, Workflow, slurm, wait_until  # noqa: E402
from hub import LoopbackHub  # noqa: E402

SLURM = ROOT / "tests/cluster/slurm.sh"
CHECKPOINT = TINY / "step100-tokens410K"


def sweep(folder: Path, hub: LoopbackHub, revisions: int) -> tuple[Workflow, float]:
    """Run the sweep in three parts; return it and the seconds its drivers lived."""
    for step in range(1, revisions + 1):
        hub.add("lab/tiny", f"step{step}", CHECKPOINT)
    workflow = Workflow(folder, {"tiny": {"repo": "lab/tiny", "revisions": ["step*"]}})
    seconds = 0.0
    for part in (1, 2, 3):
        started = time.perf_counter()
        # A matrix of 1024 × 64 needs one thread, so the node's four CPUs work on four revisions.
        driver = workflow.start("--cores=1", HF_ENDPOINT=hub.endpoint)
        if part == 3:
            if driver.wait():
                raise SystemExit(workflow.log[-3000:])
        else:
            enough = revisions * part // 3
            wait_until(lambda n=enough: len(workflow.results("geometry.json")) >= n, 3600, driver)
        seconds += time.perf_counter() - started
        if part < 3:
            workflow.kill(driver)
            print(f"Driver {part} killed after {seconds:.0f} s", file=sys.stderr, flush=True)
    return workflow, seconds


def seconds_of_submissions() -> list[int]:
    """Return how long each submission ran that Slurm still remembers (the last ten minutes')."""
    jobs = slurm("scontrol", "--oneliner", "show", "job").splitlines()
    times = [re.search(r"RunTime=(\d+):(\d+):(\d+)", j) for j in jobs if "JobState=COMPLETED" in j]
    return [int(t[1]) * 3600 + int(t[2]) * 60 + int(t[3]) for t in times if t]


def report(workflow: Workflow, seconds: float, revisions: int) -> None:
    with (workflow.folder / "results/geometry/summary.csv").open() as file:
        rows = len(list(csv.DictReader(file)))
    described = [json.loads(p.read_text()) for p in workflow.results("geometry.json").values()]
    stages = statistics.mean(sum(d["seconds"].values()) for d in described)
    submission = statistics.mean(seconds_of_submissions())
    print(
        f"| {revisions} revisions, one node of {os.cpu_count()} cores that pretends to have 4 | |"
    )
    print("|---|---:|")
    print(f"| rows of summary.csv, the driver killed twice | {rows} |")
    print(f"| wall time | {seconds:.0f} s |")
    print(f"| wall time per revision, four at once | {seconds / revisions:.1f} s |")
    print(f"| a submission of one revision | {submission:.1f} s |")
    print(f"| of it the three stages, imports included | {stages:.1f} s |")
    print(f"| Snakemake's and Slurm's share of a submission | {1 - stages / submission:.0%} |")
    if rows != revisions:
        raise SystemExit("rows are missing")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--revisions", type=int, default=200)
    revisions = parser.parse_args().revisions
    for step in ("install", "start"):
        subprocess.run(["bash", SLURM, step], check=True)
    try:
        with tempfile.TemporaryDirectory() as folder, LoopbackHub() as hub:
            workflow, seconds = sweep(Path(folder), hub, revisions)
            report(workflow, seconds, revisions)
    finally:
        subprocess.run(["bash", SLURM, "stop"], check=True)


if __name__ == "__main__":
    main()
