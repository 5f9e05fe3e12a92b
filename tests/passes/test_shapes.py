"""Shape inference of whole models."""

from __future__ import annotations

import time

import onnx
import onnx_ir as ir
import pytest

import cuvil_onnx
from cuvil_onnx.passes.shapes import infer_shapes
from cuvil_onnx.rewrite.graph import GraphContext
from cuvil_onnx.rewrite.trace import Trace


def test_long_vectors_cost_no_memory_for_each_element():
    """ONNX's data propagation would hold 64 Mi symbols, more than 10 GB, for this model."""
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 18]> g (float16[67108864] x, float[67108864] b) => (float[67108864] y)'
        "{ c = Cast <to = 1> (x)  s = Add(c, b)  y = Relu(s) }"
    )
    began = time.process_time()
    result = cuvil_onnx.optimize(model, verify=False)
    assert time.process_time() - began < 20
    assert [n.op_type for n in result.model.graph.node] == ["Pointwise"]
    (found,) = result.model.graph.output
    assert [d.dim_value for d in found.type.tensor_type.shape.dim] == [67108864]


@pytest.mark.parametrize(
    "maker",
    [
        "m = ConstantOfShape <value: tensor = float[1] {2}> (n)",
        "m = Expand (x, n)",
        "m = Tile (x, n)",
        "m = Range (zero, limit, step)",
        "m = Reshape (z, minus)",
        "m = Reshape (z, n)",
    ],
)
def test_long_vectors_made_of_little_cost_no_memory_for_each_element(maker: str):
    length = 1 << 26
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 18]> g (float[1] x, float[2, {length // 2}] z) => (float[k] y)'
        f"<int64[1] n = {{{length}}}, int64[1] minus = {{-1}}, float zero = {{0}}, float limit = {{{length}}},"
        f" float step = {{1}}> {{ {maker}  s = Add(m, x)  y = Cast <to = 1> (s) }}"
    )
    read = ir.from_proto(model)
    began = time.process_time()
    infer_shapes(GraphContext(read), Trace())
    assert time.process_time() - began < 5
    sizes = {v.name: v.shape for node in read.graph for v in node.outputs}
    assert sizes["m"] == sizes["s"] == ir.Shape([length])


@pytest.mark.parametrize(
    ("maker", "size"),
    [
        ("m = Expand (rows, n)", ["B", 1 << 18]),  # no vector: rows has two dimensions
        ("m = Expand (any, n)", None),  # may be one
        ("m = Expand (some, n)", [1 << 18]),
        ("m = Range (zero, limit, none)", [0]),
        ("m = Range (zero, limit, least)", [0]),
    ],
)
def test_what_is_no_long_vector_is_left_to_inference(maker: str, size: list[int | str] | None):
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 18]> g (float[B, 1] rows, float any, float[N] some) => (float y)'
        f"<int64[1] n = {{{1 << 18}}}, float zero = {{0}}, float limit = {{-300000}},"
        f" float none = {{1}}, float least = {{1e-42}}> {{ {maker}  y = Relu(m) }}"
    )
    model.graph.input[1].type.tensor_type.ClearField("shape")
    model.graph.output[0].type.tensor_type.ClearField("shape")
    read = ir.from_proto(model)
    infer_shapes(GraphContext(read), Trace())
    found = read.graph[0].outputs[0].shape
    assert found == (None if size is None else ir.Shape(size))


def test_symbols_of_the_user_are_never_taken_for_lengths():
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 18]> g (float16[200000] x, float[length200000] b) => (float[n] y)'
        "{ c = Cast <to = 1> (x)  s = Abs(b)  t = Neg(s)  y = Concat <axis = 0> (c, t) }"
    )
    read = ir.from_proto(model)
    infer_shapes(GraphContext(read), Trace())
    sizes = {v.name: v.shape for node in read.graph for v in node.outputs}
    assert sizes["c"] == ir.Shape([200000])
    assert sizes["s"] == sizes["t"] == ir.Shape(["length200000"])
