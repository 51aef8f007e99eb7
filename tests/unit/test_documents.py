"""What the documents say is so."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("config/*.md")])


def test_the_api_page_is_made_of_the_docstrings_of_today():
    code = "import runpy; print(runpy.run_path('docs/api.py')['page'](), end='')"
    made = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={"PYTHONPATH": "src:packages/mamba-cpu/src"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert (ROOT / "docs/api.md").read_text() == made.stdout, "run docs/api.py, and commit"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_to_a_file_leads_somewhere(document):
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", document.read_text())
    absent = [link for link in links if not (document.parent / link).exists()]
    assert not absent


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_source_that_is_named_is_there(document):
    if document.name == "CHANGELOG.md":
        pytest.skip("tells of what was")
    text = document.read_text()
    named = re.findall(r"`((?:src|packages|workflow|tests|benchmarks|envs|config)/[\w./-]+)`", text)
    absent = [path for path in named if not (ROOT / path).exists()]
    assert not absent
