"""A BatchNormalization that no layer takes in is one again in the function body of its region."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from cuvil_onnx.api import optimize
from tests.rules.rule_testing import apply, feeds, fires, graph, ops, run, weight

BODY = "n = BatchNormalization<epsilon=0.01>(x, s, b, m, v) y = Relu(n)"


def parameters(channels: int, dtype: Any = np.float32) -> dict[str, np.ndarray]:
    made = {name: weight(channels, seed=i, dtype=dtype) for i, name in enumerate("sbm")}
    return {**made, "v": np.abs(weight(channels, seed=9, dtype=dtype)) + dtype(0.1)}


def model(body: str = BODY, shape: str = "2,6,4,5", kind: str = "float", opset: int = 17) -> onnx.ModelProto:
    dtype = {"float": np.float32, "double": np.float64, "float16": np.float16}[kind]
    text = f"({kind}[{shape}] x) => ({kind}[{shape}] y) {{ {body} }}"
    return graph(text, opset, **parameters(6, dtype))


def body_ops(made: onnx.ModelProto) -> set[str]:
    (function,) = made.functions
    return {node.op_type for node in function.node}


@pytest.mark.parametrize("opset", [9, 14, 15, 17, 21])
@pytest.mark.parametrize("shape", ["2,6,4,5", "N,6,H,W", "2,6,4", "N,6,2,2,3"])
def test_the_body_normalizes_in_one_pass(shape: str, opset: int) -> None:
    new = fires(model(shape=shape, opset=opset), "pointwise", "batch_norm")
    assert ops(new) == {"cuvil::Pointwise": 1}
    assert {"BatchNormalization", "Relu"} <= body_ops(new) and "Mul" not in body_ops(new)


def test_the_program_is_that_of_the_product_and_the_sum() -> None:
    (node,) = fires(model(), "pointwise", "batch_norm").graph.node
    (program,) = (a.strings for a in node.attribute if a.name == "program")
    assert [line.split()[0] for line in program] == [
        b"load.f32",
        b"load.f32",
        b"load.f32",
        b"mul.f32",
        b"add.f32",
        b"relu.f32",
    ]


def test_double() -> None:
    assert "BatchNormalization" in body_ops(fires(model(kind="double"), "pointwise", "batch_norm"))


@pytest.mark.parametrize(
    ("shape", "kind", "opset"),
    [("2,6", "float", 17), ("2,6,4,5", "float16", 17), ("2,6,4,5", "float", 8)],
    ids=["a matrix", "16 bits", "no ConstantOfShape"],
)
def test_what_stays_a_product_and_a_sum(shape: str, kind: str, opset: int) -> None:
    tolerance = 1e-2 if kind == "float16" else 2e-5
    made = fires(model(shape=shape, kind=kind, opset=opset), "pointwise", "batch_norm", rtol=tolerance, atol=tolerance)
    assert "BatchNormalization" not in body_ops(made)


def test_a_written_product_and_sum_stay_exact() -> None:
    text = "(float[2,6,4,5] x) => (float[2,6,4,5] y) { p = Mul(x, k) y = Add(p, c) }"
    new = fires(graph(text, k=weight(6, 1, 1), c=weight(6, 1, 1, seed=1)), "pointwise", exact=True)
    assert body_ops(new) == {"Mul", "Add"}


def test_one_channel() -> None:
    text = "(float[2,1,4,5] x) => (float[2,1,4,5] y) { " + BODY + " }"
    assert "Relu" in body_ops(fires(graph(text, **parameters(1)), "pointwise", "batch_norm"))


def test_two_in_a_region_and_a_shared_input() -> None:
    body = (
        "n = BatchNormalization(x, s, b, m, v) r = Relu(n) o = BatchNormalization(r, b, s, m, v) t = Tanh(o) "
        "y = Add(t, n)"
    )
    new = fires(model(body), "pointwise", "batch_norm")
    assert ops(new) == {"cuvil::Pointwise": 1}
    (function,) = new.functions
    assert sum(node.op_type == "BatchNormalization" for node in function.node) == 2


def test_regions_of_other_sizes_share_a_function() -> None:
    text = "(float[2,6,4,5] x, float[2,3,4,5] z) => (float[2,6,4,5] y, float[2,3,4,5] w) { " + BODY
    text += " q = BatchNormalization<epsilon=0.01>(z, s3, b3, m3, v3) w = Relu(q) }"
    more = {f"{name}3": value for name, value in parameters(3).items()}
    new = fires(graph(text, **parameters(6), **more), "pointwise", "batch_norm", times=2)
    assert ops(new) == {"cuvil::Pointwise": 2} and len(new.functions) == 1


def test_the_normalized_value_is_an_output_and_in_a_subgraph() -> None:
    made = model()
    made.graph.output.append(helper.make_tensor_value_info("n", TensorProto.FLOAT, [2, 6, 4, 5]))
    new = fires(made, "pointwise", "batch_norm")
    assert "BatchNormalization" in body_ops(new)
    branches = []
    for name, op in (("then", "Relu"), ("else", "Tanh")):
        out = helper.make_tensor_value_info(f"{name}_y", TensorProto.FLOAT, [2, 6, 4, 5])
        nodes = [
            helper.make_node("BatchNormalization", ["x", *"sbmv"], [f"{name}_n"]),
            helper.make_node(op, [f"{name}_n"], [f"{name}_y"]),
        ]
        branches.append(helper.make_graph(nodes, name, [], [out]))
    outer = model()
    del outer.graph.node[:]
    outer.graph.input.append(helper.make_tensor_value_info("cond", TensorProto.BOOL, []))
    outer.graph.node.append(helper.make_node("If", ["cond"], ["y"], then_branch=branches[0], else_branch=branches[1]))
    assert all(
        "BatchNormalization" in {n.op_type for n in f.node}
        for f in apply(outer, "pointwise", "batch_norm").model.functions
    )
    fires(outer, "pointwise", "batch_norm", times=2)


def test_infinite_and_missing_numbers_go_the_same_way() -> None:
    made = model()
    inputs = feeds(made)
    inputs["x"][0, :, 0, :3] = (np.inf, -np.inf, np.nan)
    (old,), (new,) = run(made, inputs, plain=True), run(optimize(made, verify=False).model, inputs)
    np.testing.assert_allclose(new, old, rtol=2e-5, atol=2e-5)
