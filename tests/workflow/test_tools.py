"""Snakemake's own tools on the workflow."""

from running import snakemake


def test_lint_finds_nothing(workspace, config):
    run = snakemake(workspace, config, "--lint")
    assert run.code == 0, run.output
    assert "Congratulations" in run.output
