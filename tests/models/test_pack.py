"""Archives of models: parts are joined, rounded weights are float32 again, a missing part is told."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from models import pack, zoo


@pytest.fixture
def shipped(tmp_path, monkeypatch):
    """A package of one model: the tiny one, with a weight that is worth rounding."""
    path = tmp_path / "weights.onnx"
    onnx.save(zoo.get("tiny").build(), path)
    monkeypatch.setattr(pack, "files", lambda _names: {"a_package/model/weights.onnx": path})
    monkeypatch.setattr(pack, "_SMALLEST", 100)
    return path


def weights(path):
    return {t.name: numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}


def test_parts_come_back_as_the_file(tmp_path, shipped):
    limit = shipped.stat().st_size // 2 - 100
    archives = pack.pack(tmp_path / "out", [], half=False, limit=limit)
    assert len(archives) == 3
    (back,) = pack.unpack(tmp_path / "models", archives)
    assert back == tmp_path / "models/a_package/model/weights.onnx"
    assert onnx.load(back) == onnx.load(shipped)
    with pytest.raises(zoo.MissingModelError, match="a part is missing"):
        pack.unpack(tmp_path / "other", archives[1:])


def test_halved_weights_are_float32_again_rounded_to_half(tmp_path, shipped):
    (archive,) = pack.pack(tmp_path / "out", [], half=True, limit=1 << 20)
    (back,) = pack.unpack(tmp_path / "models", [archive])
    given, got = weights(shipped), weights(back)
    assert {n: v.dtype for n, v in given.items()} == {n: v.dtype for n, v in got.items()}
    rounded = given["conv.weight"].astype(np.float16).astype(np.float32)
    np.testing.assert_array_equal(got["conv.weight"], rounded)
    assert (rounded != given["conv.weight"]).any()
    np.testing.assert_array_equal(got["norm.scale"], given["norm.scale"])  # small ones stay as they are
    onnx.checker.check_model(onnx.load(back))


def test_the_unpacked_folder_serves_the_zoo(tmp_path, shipped, monkeypatch):
    archives = pack.pack(tmp_path / "out", [], half=False, limit=1 << 20)
    pack.unpack(tmp_path / "models", archives)
    monkeypatch.setenv("CUVIL_MODELS", str(tmp_path / "models"))
    assert zoo.file_of_package("no-such-package", "model/weights.onnx").is_file()
