"""The digest of the code behind a result."""

import shutil

import pytest

from unembedding.workflow import provenance
from unembedding.workflow.provenance import code_digest


@pytest.fixture
def scripts(tmp_path, monkeypatch):
    """A copy of the scripts, whose digests are taken anew each time."""
    copy = tmp_path / "home"
    for folder in ("workflow", "src"):
        shutil.copytree(provenance.HOME / folder, copy / folder)
    monkeypatch.setattr(provenance, "HOME", copy)

    def forget():
        for cached in (code_digest, provenance._read, provenance._files):
            cached.cache_clear()

    def digest(script):
        forget()
        return code_digest(script)

    yield copy, digest
    forget()


@pytest.mark.parametrize(
    "module", ["transform.py", "tensors/files.py", "workflow/profiles/stacks.py"]
)
def test_a_changed_module_changes_the_digest_of_a_script_that_imports_it(scripts, module):
    folder, digest = scripts
    before = digest("transform_unembedding.py")
    with (folder / "src/unembedding" / module).open("a") as file:
        file.write("# changed\n")
    assert digest("transform_unembedding.py") != before


def test_a_module_that_a_script_does_not_import_leaves_its_digest(scripts):
    folder, digest = scripts
    before = digest("extract_unembedding.py")
    with (folder / "src/unembedding/transform.py").open("a") as file:
        file.write("# changed\n")
    assert digest("extract_unembedding.py") == before


def test_the_hub_is_not_in_the_digest_of_what_fetches_nothing(scripts):
    folder, digest = scripts
    before = digest("build_selective_scan.py")
    with (folder / "src/unembedding/hub/ranges.py").open("a") as file:
        file.write("# changed\n")
    assert digest("build_selective_scan.py") == before


def test_the_digest_does_not_depend_on_where_the_code_is(scripts, tmp_path, monkeypatch):
    folder, digest = scripts
    before = digest("decompose_covariance.py")
    monkeypatch.setattr(provenance, "HOME", shutil.copytree(folder, tmp_path / "elsewhere"))
    assert digest("decompose_covariance.py") == before
