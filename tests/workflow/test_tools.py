"""Snakemake's own tools on the workflow."""

from running import snakemake


def test_lint_finds_nothing(tmp_path, finished, config):
    run = snakemake(tmp_path, config, "--lint")
    assert run.code == 0, run.output
    assert "Congratulations" in run.output
