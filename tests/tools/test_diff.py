"""``cuvil diff``: every kind of difference, bit for bit, and outputs that differ."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from cuvil_onnx import cli
from cuvil_onnx.tools.diff import diff, relative_difference

TEXT = "(float[N,4] x) => (float[N,4] y) { m = MatMul(x, w) y = Relu(m) }"
W = np.arange(16, dtype=np.float32).reshape(4, 4)


def save(path: Path, text: str = TEXT, opset: int = 18, **weights: Any) -> Path:
    graph = onnx.parser.parse_graph(f"g {text}")
    weights = weights or {"w": W}
    graph.initializer.extend(numpy_helper.from_array(np.asarray(a), name) for name, a in weights.items())
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9), path)
    return path


@pytest.fixture
def a(tmp_path: Path) -> Path:
    return save(tmp_path / "a.onnx")


def test_the_same_model(a: Path) -> None:
    found = diff(a, a, run=True)
    assert found.same() and found.outputs == {"y": 0.0} and found.runs == 3


def test_operators_versions_and_interface(a: Path, tmp_path: Path) -> None:
    text = "(float[N,4] x, float[4] z) => (float[N,4] y) { m = MatMul(x, w) t = Add(m, z) y = Tanh(t) }"
    found = diff(a, save(tmp_path / "b.onnx", text, 17))
    assert found.ops == {"Relu": (1, 0), "Add": (0, 1), "Tanh": (0, 1)}
    assert found.nodes == (2, 3)
    assert found.versions == {"opset ai.onnx": (18, 17)}
    assert found.interface == {"input z": (None, "float[4]")}
    assert not found.changed and not found.added and not found.removed


def test_weights_bit_for_bit(tmp_path: Path) -> None:
    nan = np.array([np.nan, 1], np.float32)
    first = save(tmp_path / "a.onnx", w=W, zero=np.float32(0.0), nan=nan, gone=W, kind=np.int64(1))
    other = W.copy()
    other[1, 1] += 0.5
    second = save(tmp_path / "b.onnx", w=other, zero=np.float32(-0.0), nan=nan, new=W, kind=np.int32(1))
    found = diff(first, second)
    assert found.added == ["new"] and found.removed == ["gone"]
    assert set(found.changed) == {"w", "zero", "kind"}  # NaN equals NaN, +0 is not -0
    assert found.changed["w"] == "1 of 16 elements, largest 0.5"
    assert found.changed["kind"] == "int64[] -> int32[]"


def test_outputs_that_differ_give_exit_code_1(a: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    b = save(tmp_path / "b.onnx", w=W * np.float32(1.01))
    assert cli.main(["diff", str(a), str(b), "--run", "--json"]) == 1
    out, err = capsys.readouterr()
    # every output grows by the factor 1.01, the largest one too
    assert json.loads(out)["outputs"]["y"] == pytest.approx(0.01, rel=1e-3)
    assert "outputs differ by 0.01" in err
    assert cli.main(["diff", str(a), str(b), "--run", "--tolerance", "0.02"]) == 0
    assert cli.main(["diff", str(a), str(b)]) == 0
    assert "w (15 of 16 elements" in capsys.readouterr().out  # W begins with a zero


def test_models_that_cannot_be_compared(a: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    b = save(tmp_path / "b.onnx", "(float[N,4] other) => (float[N,4] y) { y = MatMul(other, w) }")
    for args, message in (
        ((a, b, "--run"), "do not both run"),
        ((a, tmp_path / "none.onnx"), "no such file"),
    ):
        assert cli.main(["diff", *map(str, args)]) == 2
        err = capsys.readouterr().err
        assert message in err and err.count("\n") == 1


def test_weights_outside_of_the_folder_are_not_read(
    a: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "secret").write_bytes(b"x" * 64)
    (tmp_path / "d").mkdir()
    model = onnx.load(a)
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../secret")
    (tmp_path / "d" / "m.onnx").write_bytes(model.SerializeToString())
    assert cli.main(["diff", str(a), str(tmp_path / "d" / "m.onnx")]) == 2
    assert "leads out of the model's folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("got", "want", "expected"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0.0),
        ([1.0, 2.2], [1.0, 2.0], 0.1),
        ([np.nan, 1.0], [np.nan, 1.0], 0.0),
        ([np.nan, 1.0], [0.0, 1.0], np.inf),
        ([np.inf, 1.0], [-np.inf, 1.0], np.inf),
        ([1.0], [1.0, 1.0], np.inf),
        ([1e-9], [0.0], np.inf),
    ],
)
def test_relative_difference(got: list[float], want: list[float], expected: float) -> None:
    assert relative_difference(np.array(got), np.array(want)) == pytest.approx(expected)
