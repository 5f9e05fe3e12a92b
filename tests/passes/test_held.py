"""Weights as the file writes them: what is remembered of them is what onnx-ir says, and they are written unchanged."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from cuvil_onnx.passes.held import MAX_CACHED_BYTES, Held, hold_initializers

TENSORS = [
    helper.make_tensor("raw", TensorProto.FLOAT, [2, 3], np.arange(6, dtype=np.float32).tobytes(), raw=True),
    helper.make_tensor("fields", TensorProto.FLOAT, [3], [1.0, -0.0, 2.0]),
    helper.make_tensor("int64", TensorProto.INT64, [2], [1, -1]),
    helper.make_tensor("half", TensorProto.FLOAT16, [2], [1.0, 2.0]),
    helper.make_tensor("packed", TensorProto.INT4, [3], [1, -2, 3]),
    helper.make_tensor("scalar", TensorProto.BOOL, [], [True]),
    helper.make_tensor("none", TensorProto.FLOAT, [0, 4], []),
    helper.make_tensor("large", TensorProto.FLOAT, [MAX_CACHED_BYTES], [0.5] * MAX_CACHED_BYTES),
]


@pytest.mark.parametrize("proto", TENSORS, ids=lambda proto: proto.name)
def test_says_what_onnx_ir_says(proto: onnx.TensorProto) -> None:
    held, plain = Held(proto), ir.TensorProtoTensor(proto)
    for _ in range(2):  # what is remembered, too
        assert (held.dtype, held.size, held.nbytes, held.name) == (plain.dtype, plain.size, plain.nbytes, plain.name)
        assert held.shape.numpy() == plain.shape.numpy()
        assert held.tobytes() == plain.tobytes()
        np.testing.assert_array_equal(held.numpy(), plain.numpy(), strict=True)
    assert ir.serde.serialize_tensor(held) == proto


def test_what_is_remembered_cannot_be_changed() -> None:
    held = Held(TENSORS[2])
    with pytest.raises(ValueError, match="read-only"):
        held.numpy()[0] = 5


def test_large_elements_are_not_kept() -> None:
    assert Held(TENSORS[0]).numpy() is not Held(TENSORS[0]).numpy()
    held = Held(TENSORS[-1])
    assert held.numpy() is not held.numpy()


def test_all_initializers_are_held() -> None:
    info = helper.make_tensor_value_info("raw", TensorProto.FLOAT, [2, 3])
    graph = helper.make_graph([], "g", [], [info], TENSORS)
    model = ir.from_proto(helper.make_model(graph))
    hold_initializers(model)
    assert all(type(v.const_value) is Held for v in model.graph.initializers.values())
    assert list(ir.to_proto(model).graph.initializer) == TENSORS
