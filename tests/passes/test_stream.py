"""A file that is written weight by weight holds the same model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper

from cuvil_onnx import optimize
from cuvil_onnx.passes import stream


def model(*weights: onnx.TensorProto) -> onnx.ModelProto:
    nodes = [helper.make_node("Identity", [w.name], [f"{w.name}_out"]) for w in weights]
    outputs = [helper.make_tensor_value_info(f"{w.name}_out", w.data_type, list(w.dims)) for w in weights]
    graph = helper.make_graph(nodes, "g", [], outputs, weights)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    made.metadata_props.add(key="k", value="v")
    return made


def arrays(proto: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {t.name: numpy_helper.to_array(t) for t in proto.graph.initializer}


@pytest.mark.parametrize("limit", [1, 100, 1 << 16])
def test_the_bytes_are_those_of_the_model(limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "STREAMED_BYTES", limit)
    kept = numpy_helper.from_array(np.arange(300, dtype=np.float32).reshape(3, 100), "kept")
    kept.doc_string = "about"
    typed = helper.make_tensor("typed", onnx.TensorProto.FLOAT16, [40], np.linspace(-1, 1, 40))  # in int32_data
    four = helper.make_tensor("four", onnx.TensorProto.INT4, [5], [1, -2, 3, -4, 5])
    text = helper.make_tensor("text", onnx.TensorProto.STRING, [2], [b"a", b"b" * 200])
    source = model(kept, typed, four, text, numpy_helper.from_array(np.zeros((0, 4), np.float32), "empty"))
    held = ir.from_proto(source)
    with (tmp_path / "m.onnx").open("wb") as file:
        stream.stream_model(held, file)
    found = onnx.load(tmp_path / "m.onnx")
    expected = ir.to_proto(held)
    assert [t.name for t in found.graph.initializer] == [t.name for t in expected.graph.initializer]
    assert found.graph.initializer[0].doc_string == "about"
    for name, array in arrays(expected).items():
        np.testing.assert_array_equal(arrays(found)[name], array)
    for proto in (found, expected):
        del proto.graph.initializer[:]
    assert found.SerializeToString(deterministic=True) == expected.SerializeToString(deterministic=True)
    onnx.checker.check_model(source)


def test_large_weights_reach_the_file(tmp_path: Path) -> None:
    weight = np.random.default_rng(0).standard_normal((300, 200)).astype(np.float32)
    result = optimize(model(numpy_helper.from_array(weight, "w")), tmp_path / "m.onnx")
    loaded = onnx.load(tmp_path / "m.onnx")
    np.testing.assert_array_equal(arrays(loaded)["w"], weight)
    assert loaded == result.model
