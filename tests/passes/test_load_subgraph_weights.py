"""Weights of subgraphs become weights of the main graph, whatever names the branches share."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import cuvil_onnx


def made(outer: str, then: str, other: str) -> onnx.ModelProto:
    """y = c ? x @ then : x @ other, and z = x @ outer, each weight in its own graph under the given name."""

    def branch(name: str, seed: int) -> onnx.GraphProto:
        array = np.random.default_rng(seed).standard_normal((32, 16)).astype(np.float32)  # 2 KB: larger than small
        info = [helper.make_tensor_value_info(f"r{seed}", TensorProto.FLOAT, None)]
        node = helper.make_node("MatMul", ["x", name], [f"r{seed}"])
        return helper.make_graph([node], f"b{seed}", [], info, [numpy_helper.from_array(array, name)])

    own = numpy_helper.from_array(np.random.default_rng(3).standard_normal((32, 16)).astype(np.float32), outer)
    nodes = [
        helper.make_node("If", ["c"], ["y"], then_branch=branch(then, 1), else_branch=branch(other, 2)),
        helper.make_node("MatMul", ["x", outer], ["z"]),
    ]
    inputs = [
        helper.make_tensor_value_info("c", TensorProto.BOOL, []),
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["M", 32]),
    ]
    outputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["M", 16]) for n in "yz"]
    graph = helper.make_graph(nodes, "g", inputs, outputs, [own])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize(("outer", "then", "other"), [("u", "v", "w"), ("u", "v", "v"), ("v_0", "v", "v")])
def test_branches_keep_their_weights(outer: str, then: str, other: str) -> None:
    model = made(outer, then, other)
    before = model.SerializeToString(deterministic=True)
    result = cuvil_onnx.optimize(model, verify=True).model
    assert model.SerializeToString(deterministic=True) == before
    assert not any(a.g.initializer for n in result.graph.node for a in n.attribute)
    x = np.random.default_rng(0).standard_normal((3, 32)).astype(np.float32)
    for choice in (True, False):
        feeds = {"c": np.array(choice), "x": x}
        found, expected = (
            ort.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feeds)
            for m in (result, model)
        )
        for got, want in zip(found, expected, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)  # 32 terms of order 1 in another order
