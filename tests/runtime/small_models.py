"""Small models for the session tests."""

from __future__ import annotations

import onnx
from onnx import TensorProto, helper


def affine(dims: tuple[int | str, ...] = ("N", 4), dtype: int = TensorProto.FLOAT) -> onnx.ModelProto:
    """z = Relu(x) + b, x of shape ``dims``, b [4]."""
    graph = helper.make_graph(
        [
            helper.make_node("Relu", ["x"], ["y"], name="relu"),
            helper.make_node("Add", ["y", "b"], ["z"], name="add"),
        ],
        "affine",
        [helper.make_tensor_value_info("x", dtype, dims), helper.make_tensor_value_info("b", dtype, [4])],
        [helper.make_tensor_value_info("z", dtype, dims)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def identity(dtype: int) -> onnx.ModelProto:
    """y = x, [N] of any type."""
    graph = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"], name="identity")],
        "identity",
        [helper.make_tensor_value_info("x", dtype, ["N"])],
        [helper.make_tensor_value_info("y", dtype, ["N"])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
