"""Runs that several tests look at, made once; a test that changes something gets a copy."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from checkpoints import LAYOUTS, matrix, random_matrix
from running import REPOSITORY, succeed

CONFIG = {
    "models": {
        "first": {"path": "models/first", "revisions": "all"},
        "second": {"path": "models/second"},
    }
}


@pytest.fixture(scope="session")
def finished(tmp_path_factory) -> SimpleNamespace:
    """A finished run: a model of two revisions, and a single checkpoint."""
    folder = tmp_path_factory.mktemp("finished")
    gammas = {
        "first/step1-tokens2B": matrix(folder / "models/first/step1-tokens2B", random_matrix(1)),
        "first/step20-tokens40B": matrix(
            folder / "models/first/step20-tokens40B", random_matrix(2)
        ),
        "second/local": matrix(folder / "models/second", random_matrix(3, 64, 8)),
    }
    run = succeed(folder, CONFIG)
    results = folder / "results/geometry"
    return SimpleNamespace(folder=folder, config=CONFIG, run=run, gammas=gammas, results=results)


@pytest.fixture
def workspace(finished, tmp_path) -> Path:
    """A copy of the finished run that a test may change."""
    return Path(shutil.copytree(finished.folder, tmp_path / "workspace"))


@pytest.fixture
def config() -> dict:
    """The configuration of the finished run, to change."""
    return {"models": {name: dict(model) for name, model in CONFIG["models"].items()}}


@pytest.fixture
def home(tmp_path) -> Path:
    """A copy of the workflow's code that a test may change."""
    copy = tmp_path / "home"
    for folder in ("workflow", "src", "packages", "envs", "profiles"):
        if (REPOSITORY / folder).is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(REPOSITORY / folder, copy / folder, ignore=ignored)
    shutil.copy2(REPOSITORY / "Snakefile", copy)
    return copy


@pytest.fixture(scope="session")
def layouts(tmp_path_factory) -> dict[str, tuple[Path, np.ndarray]]:
    """A checkpoint in each layout: its folder, and the γ it was written with."""
    root = tmp_path_factory.mktemp("layouts")
    return {
        name: (root / str(index), build(root / str(index)))
        for index, (name, build) in enumerate(LAYOUTS.items())
    }
