"""GraphContext: what rules learn about values, and names that collide with nothing."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from cuvil_onnx.rewrite.pattern import operands, with_constant, with_scalar
from tests.rewrite.engine_testing import context


def test_uses() -> None:
    ctx = context("(float[4] x) => (float[4] y, float[4] z) { a = Neg(x) y = Add(a, a) z = Exp(y) }")
    neg, add, exp = ctx.model.graph
    assert ctx.use_count(neg.outputs[0]) == 2
    assert ctx.users(neg.outputs[0]) == (add,)
    assert ctx.single_user(neg.outputs[0]) is None, "read twice by one node"
    assert ctx.single_user(add.outputs[0]) is None, "a graph output"
    assert ctx.producer(exp.inputs[0], "Add") is add
    assert ctx.producer(exp.inputs[0], "Mul") is None


def test_a_reader_in_a_subgraph_is_no_single_user() -> None:
    branch = "then_branch = t () => (float[4] r) { r = Exp(a) }, else_branch = e () => (float[4] s) { s = Neg(x) }"
    ctx = context(f"(float[4] x, bool c) => (float[4] y) {{ a = Neg(x) y = If(c) <{branch}> }}")
    value = ctx.model.graph[0].outputs[0]
    assert ctx.use_count(value) == 1
    assert ctx.single_user(value) is None
    assert ctx.holder(ctx.users(value)[0], ctx.model.graph) is ctx.model.graph[1]


def test_constants() -> None:
    ctx = context(
        "(float[4] x, float c) => (float[4] y)"
        " { k = Constant<value_float = 2.5>() a = Mul(x, k) b = Mul(a, c) y = Mul(b, w) }",
        c=np.float32(1),
        w=np.float32(3),
    )
    constant, first, second, third = ctx.model.graph
    assert ctx.scalar(constant.outputs[0]) == 2.5
    assert ctx.constant(second.inputs[1]) is None, "an initializer that is an input can be overridden"
    assert ctx.scalar(third.inputs[1]) == 3
    assert with_constant(third, ctx) == (second.outputs[0], third.inputs[1])
    assert with_scalar(third, ctx, 3.0) is second.outputs[0]
    assert with_scalar(third, ctx, 4.0) is None
    assert [a.name for a, _ in operands(first)] == ["x", "k"]


def test_large_constants_are_not_read_unasked() -> None:
    ctx = context("(float[4] x) => (float[4] y) { y = Add(x, w) }", w=np.zeros(4, np.float32))
    weight = ctx.model.graph[0].inputs[1]
    assert ctx.constant(weight, max_elements=3) is None
    assert ctx.constant(weight, max_elements=None) is not None


@pytest.mark.parametrize(
    ("shape", "static", "known"), [("[2,3]", (2, 3), (2, 3)), ("[N,3]", None, ("N", 3)), ("", (), ())]
)
def test_shapes(shape: str, static: tuple[int, ...] | None, known: tuple[object, ...]) -> None:
    ctx = context(f"(float{shape} x) => (float{shape} y) {{ y = Neg(x) }}")
    x = ctx.model.graph.inputs[0]
    assert ctx.shape(x) == known
    assert ctx.static_shape(x) == static
    assert ctx.rank(x) == len(known)
    assert ctx.dtype(x) == ir.DataType.FLOAT


def test_unknown_sizes_are_never_equal() -> None:
    ctx = context("(float[N,?] x) => (float[N,?] y) { y = Neg(x) }")
    x, y = ctx.model.graph.inputs[0], ctx.model.graph.outputs[0]
    x.shape = ir.Shape(["N", None])
    y.shape = ir.Shape(["N", None])
    assert not ctx.same_shape(x, y)
    y.shape = x.shape = ir.Shape(["N", 3])
    assert ctx.same_shape(x, y)


def test_names_collide_with_nothing() -> None:
    ctx = context("(float[4] val_0) => (float[4] y) { Relu_1 = Neg(val_0) y = Neg(Relu_1) }")
    names = {ctx.fresh_name("Relu") for _ in range(3)}
    assert names == {"Relu", "Relu_2", "Relu_3"}
    assert ctx.fresh_name("y") != "y"
    node = ctx.node("Relu", [ctx.model.graph.inputs[0]])
    assert node.name not in names


def test_small_initializers_are_shared_and_large_ones_are_not() -> None:
    ctx = context("(float[4] x) => (float[4] y) { y = Neg(x) }")
    assert ctx.initializer(np.float32(1)) is ctx.initializer(np.float32(1))
    assert ctx.initializer(np.float32(0)) is not ctx.initializer(np.float32(-0.0))
    assert ctx.initializer(np.float32(1)) is not ctx.initializer(np.ones(1, np.float32))
    big = np.zeros(100, np.float32)
    assert ctx.initializer(big) is not ctx.initializer(big)
