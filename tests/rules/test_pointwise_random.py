"""pointwise on random graphs: whatever is fused where, the result is the same bit for bit."""

from __future__ import annotations

import numpy as np
import onnx
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from tests.rules.rule_testing import apply, feeds, run

SHAPES = [("N", 4, 6), (1, 4, 1), (6,), ("N", 1, 6), ("N", 4, 1)]
UNARY = ["Neg", "Abs", "Relu", "Sigmoid", "Tanh", "Floor", "Round", "Sign", "LeakyRelu", "HardSigmoid", "Softmax"]
BINARY = ["Add", "Sub", "Mul", "Max", "Min", "Div", "PRelu"]


@st.composite
def models(draw: st.DrawFn) -> onnx.ModelProto:
    """A graph of up to 14 nodes on inputs that broadcast to each other; Softmax is what no region may contain."""
    inputs = [helper.make_tensor_value_info(f"x{i}", TensorProto.FLOAT, shape) for i, shape in enumerate(SHAPES)]
    values = [i.name for i in inputs]
    weights = [
        numpy_helper.from_array(np.array(draw(st.sampled_from([0.5, -1.0, np.inf, np.nan])), np.float32), "c"),
        numpy_helper.from_array(np.array([[[2.0]]], np.float32), "c3"),
    ]
    nodes = []
    for index in range(draw(st.integers(2, 14))):
        kind = draw(st.sampled_from([*UNARY, *BINARY, *BINARY, "Where", "Half"]))
        pick = st.sampled_from([*values, *values, "c", "c3"])
        out = f"v{index}"
        if kind in BINARY:
            nodes.append(helper.make_node(kind, [draw(st.sampled_from(values)), draw(pick)], [out]))
            if kind == "PRelu":  # the slope must not enlarge the result
                nodes[-1].input[1] = "c"
        elif kind == "Where":
            nodes.append(helper.make_node("Greater", [draw(pick), draw(pick)], [out + "b"]))
            nodes.append(helper.make_node("Where", [out + "b", draw(st.sampled_from(values)), draw(pick)], [out]))
        elif kind == "Half":
            nodes.append(helper.make_node("Cast", [draw(st.sampled_from(values))], [out + "h"], to=TensorProto.FLOAT16))
            nodes.append(helper.make_node("Cast", [out + "h"], [out], to=TensorProto.FLOAT))
        else:
            nodes.append(helper.make_node(kind, [draw(st.sampled_from(values))], [out]))
        values.append(out)
    made = [v for v in values if v.startswith("v")]
    chosen = sorted(set(draw(st.lists(st.sampled_from(made), min_size=1, max_size=3)) + made[-1:]))
    outputs = [helper.make_tensor_value_info(v, TensorProto.FLOAT, None) for v in chosen]
    graph = helper.make_graph(nodes, "random", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(models())
def test_fused_regions_compute_the_same(model: onnx.ModelProto) -> None:
    result = apply(model, "pointwise").model
    for n in (1, 3):
        inputs = feeds(model, {"N": n})
        for old, new in zip(run(model, inputs, plain=True), run(result, inputs, plain=True), strict=True):
            assert old.shape == new.shape
            np.testing.assert_array_equal(new, old)
