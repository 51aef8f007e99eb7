"""Planning a sweep of the size that labs run."""

import resource

from driver import TINY, Workflow
from hub import LoopbackHub

REVISIONS = 558  # of OLMo-7B
MODELS = ("one", "other")


def processor_seconds():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_a_dry_run_of_558_revisions_of_two_models_ends_in_seconds(tmp_path):
    models = {name: {"repo": f"lab/{name}", "revisions": ["step*"]} for name in MODELS}
    workflow = Workflow(tmp_path, models, keep_unembedding=False)
    pinned = [f"results/geometry/{name}/revisions.tsv" for name in MODELS]
    with LoopbackHub() as hub:
        for name in MODELS:
            for step in range(REVISIONS):
                hub.add(f"lab/{name}", f"step{step}", {"config.json": TINY / "README.md"})
        assert workflow.run(*pinned, HF_ENDPOINT=hub.endpoint) == 0, workflow.log
    before = processor_seconds()
    assert workflow.run("--dry-run", "--quiet", "rules") == 0
    # 13 seconds of the processor when measured (docs/benchmarks.md); a plan that is quadratic in
    # the revisions takes minutes.
    assert processor_seconds() - before < 30
    assert f"extract_unembedding       {len(MODELS) * REVISIONS}" in workflow.log
