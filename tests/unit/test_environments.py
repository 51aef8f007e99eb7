"""The environments of conda, and the versions that pip is held to, agree."""

import re
from pathlib import Path

import pytest
import yaml
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENTS = sorted((ROOT / "envs").glob("*.yaml"))
PYPI_NAMES = {
    "matplotlib-base": "matplotlib",
    "python-xxhash": "xxhash",
    "pytorch": "torch",
    "pytorch-cpu": "torch",
}
NOT_FROM_PIP = {"python", "cuda-version", "cupy", "gxx", "pip"}


def constraints():
    files = [ROOT / "requirements" / name for name in ("constraints.txt", "bench.txt")]
    lines = [line for file in files for line in file.read_text().splitlines()]
    pinned = (line.split("==") for line in lines if "==" in line)
    return {canonicalize_name(name): version for name, version in pinned}


def dependencies(environment):
    """Return {PyPI's name: versions allowed} of an environment, pip's packages included."""
    specs = yaml.safe_load(environment.read_text())["dependencies"]
    specs += [spec for nested in specs if isinstance(nested, dict) for spec in nested["pip"]]
    found = {}
    for spec in specs:
        if isinstance(spec, str):
            name, allowed = re.fullmatch(r"([\w.-]+)\s*(.*)", spec).groups()
            exact = re.sub(r"^=(?!=)", "==", allowed)  # conda's single one
            found[canonicalize_name(PYPI_NAMES.get(name, name))] = SpecifierSet(exact)
    return found


@pytest.mark.parametrize("environment", ENVIRONMENTS, ids=lambda path: path.stem)
def test_an_environment_allows_the_versions_that_were_tested(environment):
    pinned = constraints()
    for name, allowed in dependencies(environment).items():
        if name not in NOT_FROM_PIP:
            assert name in pinned, f"{name} is not in constraints.txt"
            assert pinned[name] in allowed, f"{name} {pinned[name]} is not {allowed}"


@pytest.mark.parametrize("environment", ENVIRONMENTS, ids=lambda path: path.stem)
def test_an_environment_bounds_every_version_and_takes_conda_forge_alone(environment):
    content = yaml.safe_load(environment.read_text())
    assert content["channels"] == ["conda-forge", "nodefaults"]
    unbounded = [n for n, allowed in dependencies(environment).items() if not allowed]
    assert set(unbounded) <= {"pip"}
