"""A real conda, and a channel that stands for conda-forge, for the whole session."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
# What envs/geometry.yaml and envs/plots.yaml name; pip brings what these require.
PACKAGES = ["numpy", "scipy", "matplotlib", "huggingface_hub", "threadpoolctl", "tqdm", "pip"]
PACKAGES += ["safetensors", "xxhash"]


@pytest.fixture(scope="session")
def conda(tmp_path_factory):
    """Return the environment variables under which `conda` is ours and so is conda-forge."""
    folder = tmp_path_factory.mktemp("conda")
    prefix, wheels, mirror = folder / "prefix", folder / "wheels", folder / "mirror"
    subprocess.run(
        ["bash", HERE / "setup_conda.sh", prefix],
        check=True,
        env={**os.environ, "PYTHON": sys.executable},
    )
    constraints = ROOT / "requirements/constraints.txt"
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    options = ["--only-binary=:all:", f"--constraint={constraints}", f"--dest={wheels}"]
    subprocess.run([*pip, *options, *PACKAGES], check=True)
    make = [prefix / "bin/python", HERE / "make_channel.py", mirror / "conda-forge", wheels]
    subprocess.run(make, check=True)
    (prefix / ".condarc").write_text(
        f"channel_alias: file://{mirror}\ndefault_channels: []\nsolver: classic\n"
        "channel_priority: strict\nregister_envs: false\n"
    )
    return {
        **os.environ,
        "PATH": f"{prefix / 'bin'}:{os.environ['PATH']}",
        "CONDA_PKGS_DIRS": str(folder / "packages"),
    }
