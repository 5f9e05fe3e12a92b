"""pointwise: regions of elementwise nodes become one node, exactly."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from cuvil_onnx.rewrite.graph import GraphContext
from cuvil_onnx.rules.pointwise import Pointwise
from tests.rules.rule_testing import Case, attributes, contract, count, fires, graph, node_of, ops, refused, weight

HEAD = "(float[N,4,6] x, float[N,4,6] z) => (float[N,4,6] y)"


def made(body: str, head: str = HEAD, opset: int = 17, **weights: np.ndarray) -> onnx.ModelProto:
    return graph(f"{head} {{ {body} }}", opset, **weights)


def program(model: onnx.ModelProto) -> list[str]:
    return [line.decode() for line in attributes(node_of(model, "Pointwise"))["program"]]


# A value that others read becomes an output.
test_contract = contract(Case("pointwise", lambda: made("a = Add(x, z) y = Relu(a)"), "a", kept=1, exact=True))


def fused(model: onnx.ModelProto, nodes: int = 1, **more: object) -> onnx.ModelProto:
    result = fires(model, "pointwise", times=nodes, exact=True, **more)
    assert ops(result)["cuvil::Pointwise"] == nodes
    return result


def test_cast_add_relu() -> None:
    model = made(
        "a = Cast<to=1>(x) b = Cast<to=1>(z) s = Add(a, b) y = Relu(s)",
        "(float16[N,4] x, float16[N,4] z) => (float[N,4] y)",
    )
    result = fused(model)
    assert ops(result) == {"cuvil::Pointwise": 1}
    assert program(result) == ["load.f16 0", "load.f16 1", "cast.f32 0", "cast.f32 1", "add.f32 2 3", "relu.f32 4"]


def test_diamond_and_constants() -> None:
    model = made(
        "a = Add(x, c) s = Sigmoid(a) t = Tanh(a) y = Mul(s, t)",
        "(float[N,4,6] x) => (float[N,4,6] y)",
        c=np.float32(0.5),
    )
    result = fused(model)
    assert ops(result) == {"cuvil::Pointwise": 1} and "const.f32 0x3f000000" in program(result)


def test_two_outputs_of_one_shape() -> None:
    model = made("a = Add(x, z) y = Relu(a) w = Tanh(a)", HEAD.replace("y)", "y, float[N,4,6] w)"))
    result = fused(model)
    assert ops(result) == {"cuvil::Pointwise": 1} and len(node_of(result, "Pointwise").output) == 2


def test_broadcast_inputs_and_squeeze_excite() -> None:
    head = "(float[N,8,H,W] x, float[N,8,1,1] g) => (float[N,8,H,W] y)"
    result = fused(made("h = HardSigmoid(g) y = Mul(x, h)", head))
    assert ops(result) == {"cuvil::Pointwise": 1}


def test_a_smaller_output_stays_a_node_of_its_own() -> None:
    head = "(float[N,8,H,W] x, float[N,8,1,1] g) => (float[N,8,H,W] y, float[N,8,1,1] h)"
    model = made("h = HardSigmoid(g) m = Mul(x, h) y = Relu(m)", head)
    result = fused(model)
    assert ops(result) == {"cuvil::Pointwise": 1, "HardSigmoid": 1}


def test_an_expensive_function_of_a_small_tensor_is_not_repeated() -> None:
    # A rotary table: the cosine of [S, 8] is not to be computed for every batch and head.
    head = "(float[B,4,S,8] x, float[S,8] angle) => (float[B,4,S,8] y)"
    result = fused(made("a = Neg(x) c = Cos(angle) m = Mul(a, c) y = Relu(m)", head))
    assert ops(result) == {"cuvil::Pointwise": 1, "Cos": 1}
    same = head.replace("[S,8] angle", "[B,4,S,8] angle")
    assert ops(fused(made("a = Neg(x) c = Cos(angle) m = Mul(a, c) y = Relu(m)", same))) == {"cuvil::Pointwise": 1}


def test_outputs_whose_shapes_are_not_known_to_be_equal() -> None:
    # b may be larger than a: only the part behind the sum has the shape of all inputs.
    head = "(float[A,4] x, float[B,4] z) => (float[A,4] p, float[C,4] y)"
    model = made("p = Abs(x) q = Neg(p) s = Add(q, z) y = Relu(s)", head)
    result = fused(model, nodes=2, symbols={"A": 1, "B": 3})
    first, second = (n for n in result.graph.node if n.op_type == "Pointwise")
    assert list(first.input) == ["x"] and list(second.output) == ["y"]


def test_one_output_needs_no_known_shapes() -> None:
    head = "(float[A,B] x, float[C,D] z) => (float[E,F] y)"
    fused(made("a = Add(x, z) b = Mul(a, x) y = Tanh(b)", head), symbols={"A": 1, "B": 5, "C": 4, "D": 1})


def test_a_path_that_leaves_and_comes_back() -> None:
    # Softmax reads a and feeds the sum: Add(a, ...) cannot be in a region with a.
    model = made("a = Relu(x) b = Tanh(a) s = Softmax(b) c = Add(a, s) y = Neg(c)")
    result = fused(model, nodes=2)
    assert ops(result) == {"cuvil::Pointwise": 2, "Softmax": 1}


def test_path_through_a_subgraph() -> None:
    branch = "{ %s_out = %s(b) }"
    text = (
        "(float[4] x, bool c) => (float[4] y) { a = Relu(x) b = Tanh(a) "
        f"s = If<then_branch=t () => (float[4] then_out) {branch % ('then', 'Neg')}, "
        f"else_branch=e () => (float[4] else_out) {branch % ('else', 'Abs')}>(c) d = Add(a, s) y = Neg(d) }}"
    )
    result = fires(graph(text), "pointwise", times=2, exact=True)
    assert ops(result)["cuvil::Pointwise"] == 2


def test_a_constant_of_higher_rank_is_an_input() -> None:
    model = made("a = Add(x, c) y = Neg(a)", "(float[2,3] x) => (float[1,2,3] y)", c=weight(1, 1, 1))
    result = fused(model)
    assert list(node_of(result, "Pointwise").input) == ["x", "c"]


def test_nan_and_infinite_constants() -> None:
    model = made(
        "a = Max(x, lo) b = Where(m, a, hole) y = Neg(b)",
        "(float[N,4] x, bool[N,4] m) => (float[N,4] y)",
        lo=np.float32(-np.inf),
        hole=np.float32(np.nan),
    )
    result = fused(model)
    assert {"const.f32 0xff800000", "const.f32 0x7fc00000"} <= set(program(result))


@pytest.mark.parametrize("dtype", ["double", "int32", "float16"])
def test_other_types(dtype: str) -> None:
    head = HEAD.replace("float[", f"{dtype}[")
    fused(made("a = Mul(x, z) b = Sub(a, z) y = Abs(b)", head))


def test_comparison_where_and_logic() -> None:
    body = "p = Greater(x, z) q = Less(x, c) r = Or(p, q) n = Not(r) y = Where(n, x, z)"
    result = fused(made(body, c=np.float32(-1)))
    assert ops(result) == {"cuvil::Pointwise": 1}


def test_a_constant_that_is_an_output_is_an_input() -> None:
    body = "c = Constant<value_float=2.0>() t = Mul(x, c) y = Neg(t)"
    fires(made(body, "(float[2,3] x) => (float[2,3] y, float c)"), "pointwise", exact=True)


def test_overridable_initializer_is_an_input() -> None:
    model = made("a = Mul(x, c) y = Relu(a)", "(float[N,4] x, float c) => (float[N,4] y)", c=np.float32(2))
    model.ir_version = 8
    assert list(node_of(fused(model), "Pointwise").input) == ["x", "c"]


def test_long_chains_become_several_nodes() -> None:
    names = ["x", *(f"v{i}" for i in range(100)), "y"]
    body = " ".join(f"{b} = {'Sin' if i % 2 else 'Cos'}({a})" for i, (a, b) in enumerate(itertools.pairwise(names)))
    result = fused(made(body, "(float[N,4] x) => (float[N,4] y)"), nodes=3)
    assert sum(ops(result).values()) == 3


@pytest.mark.parametrize(
    ("body", "head"),
    [
        ("y = Relu(x)", "(float[N,4] x) => (float[N,4] y)"),  # a single node
        ("a = Add(x, z) y = Abs(a)", "(int64[2] x, int64[2] z) => (int64[2] y)"),  # shape arithmetic
        ("a = Add(x, z) y = Sqrt(a)", "(float x, float z) => (float y)"),  # scalars
        ("s = Shape(x) a = Mul(s, s) y = Neg(a)", "(float[N,4] x) => (int64[2] y)"),
        ("a = Softmax(x) y = Relu(a)", "(float[N,4] x) => (float[N,4] y)"),
        ("a = Cast<to=8>(x) y = Cast<to=1>(a)", "(float[N,4] x) => (float[N,4] y)"),  # strings
    ],
)
def test_what_stays(body: str, head: str) -> None:
    refused(made(body, head), "pointwise", "")


def test_old_opset_with_broadcasting_as_an_attribute_stays() -> None:
    model = made("a = Add(x, z) y = Relu(a)", opset=13)
    assert count(model, "pointwise") == 1

    old = ir.from_proto(model)
    old.graph.opset_imports[""] = 6
    assert all(Pointwise().match(n, GraphContext(old)) is None for n in old.graph)


def test_equal_regions_share_a_function() -> None:
    body = "a = Add(x, z) b = Relu(a) s = Softmax(b) c = Add(s, z) d = Relu(c) y = Softmax(d)"
    result = fused(made(body), nodes=2)
    assert len(result.functions) == 1


def test_gelu_of_old_opsets_joins_a_region() -> None:
    body = "u = Div(x, r) e = Erf(u) a = Add(e, one) p = Mul(x, a) g = Mul(p, half) y = Mul(g, z)"
    model = made(body, opset=13, r=np.float32(2**0.5), one=np.float32(1), half=np.float32(0.5))
    result = fires(model, "pointwise", "gelu_erf", "dead_code")
    assert ops(result) == {"cuvil::Pointwise": 1} and "gelu.f32 0" in program(result)
