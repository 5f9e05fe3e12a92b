"""Behind com.microsoft's quantized operators types and sizes are known, though the file does not give them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import cuvil_onnx
from tests.rules.rule_testing import ops, run

V, D, N, BLOCK = 9, 64, 32, 32


def quantized(bits: int = 4, dtype: type = np.float32) -> onnx.ModelProto:
    """Lookup -> RMS norm, written out -> product -> + residual -> RMS norm."""
    rng = np.random.default_rng(0)
    in_byte, blocks = 8 // bits, D // BLOCK
    kind = TensorProto.FLOAT if dtype is np.float32 else TensorProto.FLOAT16
    constants = {
        "table": rng.integers(0, 256, (V, D // in_byte), np.uint8),
        "ts": rng.uniform(0.01, 0.1, (V, blocks)).astype(dtype),
        "q": rng.integers(0, 256, (D, blocks, BLOCK // in_byte), np.uint8),
        "s": rng.uniform(0.01, 0.02, D * blocks).astype(dtype),
        "two": np.array(2, dtype),
        "eps": np.array(1e-3, dtype),
        "gain": rng.uniform(0.5, 1.5, D).astype(dtype),
    }
    attrs = {"block_size": BLOCK, "bits": bits}
    make = helper.make_node
    nodes = [
        make("GatherBlockQuantized", ["table", "ids", "ts"], ["x"], domain="com.microsoft", **attrs),
        *norm("x", "n"),
        make("MatMulNBits", ["n", "q", "s"], ["p"], domain="com.microsoft", K=D, N=D, **attrs),
        make("Add", ["x", "p"], ["r"]),
        *norm("r", "y"),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["B", "S"])],
        [helper.make_tensor_value_info("y", kind, ["B", "S", D])],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def norm(x: str, y: str) -> list[onnx.NodeProto]:
    make = helper.make_node
    return [
        make("Pow", [x, "two"], [f"{y}1"]),
        make("ReduceMean", [f"{y}1"], [f"{y}2"], axes=[-1]),
        make("Add", [f"{y}2", "eps"], [f"{y}3"]),
        make("Sqrt", [f"{y}3"], [f"{y}4"]),
        make("Div", [x, f"{y}4"], [f"{y}5"]),
        make("Mul", [f"{y}5", "gain"], [y]),
    ]


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_what_stands_around_quantized_operators_is_fused(bits, dtype):
    made = quantized(bits, dtype)
    result = cuvil_onnx.optimize(made, verify=False).model
    found = ops(result)
    assert found == {
        "com.microsoft::GatherBlockQuantized": 1,
        "com.microsoft::MatMulNBits": 1,
        "cuvil::LayerNorm": 2,  # the second one with the residual
    }
    ids = {"ids": np.array([[0, 8, -1], [3, 3, 1]])}
    tolerance = 1e-5 if dtype is np.float32 else 1e-2  # a few roundings to 11 bits
    np.testing.assert_allclose(run(result, ids)[0], run(made, ids, plain=True)[0], rtol=tolerance, atol=tolerance)


def test_quantize_leaves_quantized_operators_alone():
    made = quantized()
    result = cuvil_onnx.quantize(made, "rtn", verify=False)
    names = ("MatMulNBits", "GatherBlockQuantized")
    nodes = [[n for n in m.graph.node if n.op_type in names] for m in (made, result.model)]
    assert [list(n.input) for n in nodes[0]] == [list(n.input) for n in nodes[1]]
    assert [list(n.attribute) for n in nodes[0]] == [list(n.attribute) for n in nodes[1]]
    held = {i.name: i.raw_data for i in result.model.graph.initializer}
    assert all(held[i.name] == i.raw_data for i in made.graph.initializer if i.name in ("table", "ts", "q", "s"))
    assert "cuvil::MatMulInt4" not in ops(result.model)
    ids = {"ids": np.array([[0, 8, -1]])}
    np.testing.assert_allclose(run(result.model, ids)[0], run(made, ids)[0], rtol=1e-5, atol=1e-5)
