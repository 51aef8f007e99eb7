"""The distribution: it installs whole, and asks for torch alone."""

import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

FOLDER = Path(__file__).parents[3] / "packages/mamba-cpu"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "build")
    copy = shutil.copytree(FOLDER, folder / "source", ignore=ignored)
    pip = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-index", "--no-build-isolation"]
    subprocess.run([*pip, "--wheel-dir", folder, copy], check=True, capture_output=True)
    (made,) = folder.glob("*.whl")
    return ZipFile(made)


def test_the_wheel_holds_every_source_as_it_is(wheel):
    sources = FOLDER / "src"
    files = [file for file in sources.glob("mamba_cpu/**/*") if file.is_file()]
    expected = {str(f.relative_to(sources)): f.read_bytes() for f in files if f.suffix != ".pyc"}
    held = {name: wheel.read(name) for name in wheel.namelist() if name.startswith("mamba_cpu/")}
    assert held == expected


def test_the_wheel_has_its_licence_with_it(wheel):
    (licence,) = (name for name in wheel.namelist() if name.endswith("LICENSE"))
    assert b"Apache License" in wheel.read(licence)


def test_importing_it_loads_nothing_else_beside_torch(wheel, tmp_path):
    wheel.extractall(tmp_path)
    code = """
import sys
import torch
def loaded(): return {name.partition(".")[0] for name in sys.modules}
before = loaded()
import mamba_cpu, mamba_cpu.bench.timing, mamba_cpu.bench.whole_model
print(*(loaded() - before - sys.stdlib_module_names))
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["mamba_cpu"]
