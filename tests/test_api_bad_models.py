"""What ``optimize`` cannot work on is refused in one line."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import cuvil_onnx
from cuvil_onnx.errors import CuvilError, InvalidModelError, ModelLoadError, OptionError, UnsupportedModelError
from tests.api_testing import W, made


def _file(content: bytes) -> Any:
    def write(tmp_path: Path) -> Path:
        path = tmp_path / "bad.onnx"
        path.write_bytes(content)
        return path

    return write


def _changed(**changes: Any) -> Any:
    def build(tmp_path: Path) -> onnx.ModelProto:
        model = made()
        if "opset" in changes:
            model.opset_import[0].version = changes["opset"]
        if "ir" in changes:
            model.ir_version = changes["ir"]
        return model

    return build


def _missing_weights(tmp_path: Path) -> Path:
    path = tmp_path / "external.onnx"
    onnx.save(made(), path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    (tmp_path / "weights.bin").unlink()
    return path


def _short_weights(tmp_path: Path) -> Path:
    path = _missing_weights(tmp_path)
    (tmp_path / "weights.bin").write_bytes(b"1234")
    return path


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda p: p / "absent.onnx", ModelLoadError, "no such file"),
        (lambda p: p, ModelLoadError, "folder"),
        (_file(b""), ModelLoadError, "not an ONNX file"),
        (_file(b"hello, this is a text file\n" * 20), ModelLoadError, "not an ONNX file"),
        (_file(made().SerializeToString()[:-40]), ModelLoadError, "truncated"),
        (lambda p: b"\x00\x01\x02", ModelLoadError, "not an ONNX file"),
        (_missing_weights, ModelLoadError, "does not exist"),
        (_short_weights, ModelLoadError, "required"),
        (_changed(opset=99), UnsupportedModelError, "opset 99"),
        (_changed(ir=99), UnsupportedModelError, "IR version 99"),
        (lambda p: made("() => () { }"), UnsupportedModelError, "empty"),
        (lambda p: onnx.ModelProto(), UnsupportedModelError, "empty"),
        (lambda p: made("(float[4] x) => (float[4] y) { y = Add(x, nothing) }"), InvalidModelError, "'nothing'"),
        (lambda p: made("(float[4] x) => (float[4] y) { a = Neg(x) }"), InvalidModelError, "'y'"),
        (lambda p: made("(float[4] x) => (float[4] y) { y = Neg(x) y = Exp(x) }"), InvalidModelError, "'y'"),
        (lambda p: made("(float[4] x) => (float[4] y) { a = Add(x, y) y = Neg(a) }"), InvalidModelError, "cycle"),
        (lambda p: made("(float[4] x) => (float[4] y) { y = Conv(x) }"), InvalidModelError, "Conv"),
        (lambda p: 42, OptionError, "int"),
    ],
)
def test_bad_models_are_one_line(build: Any, error: type[CuvilError], message: str, tmp_path: Path) -> None:
    with pytest.raises(error, match=message) as caught:
        cuvil_onnx.optimize(build(tmp_path), tmp_path / "out.onnx")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out.onnx").exists()


def test_weights_outside_of_the_model_s_folder_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    path = folder / "external.onnx"
    onnx.save(made(), path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    (folder / "weights.bin").rename(tmp_path / "weights.bin")
    (folder / "weights.bin").symlink_to(tmp_path / "weights.bin")
    with pytest.raises(ModelLoadError, match="out of the model's folder"):
        cuvil_onnx.optimize(path)


def test_nonsense_that_no_runtime_accepts_is_the_model_s_fault() -> None:
    model = made("(float[1,1,4,4] x) => (float[1,1,2,2] y) { y = Conv<strides=[0,0]>(x, w) }", w=W[None, None, :2, :2])
    with pytest.raises(InvalidModelError, match="onnxruntime does not load it"):
        cuvil_onnx.optimize(model)


@pytest.mark.parametrize("seed", range(200))
def test_damaged_files_are_one_line_or_a_model(seed: int) -> None:
    """Bytes flipped in the nodes and names of a file: an error of ours at most, never another exception."""
    data = bytearray(made().SerializeToString())
    random = np.random.default_rng(seed)
    for place in random.integers(0, 160, 2):
        data[place] = random.integers(0, 256)
    try:
        cuvil_onnx.optimize(bytes(data), verify=False)
    except CuvilError as error:
        assert "\n" not in str(error)


def test_a_pipe_or_device_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ModelLoadError, match="no regular file"):
        cuvil_onnx.optimize(tmp_path / "pipe")


def test_a_graph_without_a_name_is_no_bad_model() -> None:
    model = made()
    model.graph.name = ""
    assert "within" in cuvil_onnx.optimize(model, verify=True).report.verification
