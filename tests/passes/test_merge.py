"""Equal nodes and equal initializers become one; dead ones go."""

from __future__ import annotations

import numpy as np

from tests.passes.pass_testing import basic, made, normal, ops, same


def test_equal_nodes_merge() -> None:
    model = made("(float[4] x) => (float[4] y) { a = Exp(x) b = Exp(x) y = Add(a, b) }")
    result = basic(model)
    assert ops(result.model) == {"Exp": 1, "Add": 1}
    same(model, result, x=normal(4))


def test_equal_nodes_with_other_attributes_do_not() -> None:
    body = "a = LeakyRelu<alpha=0.1>(x) b = LeakyRelu<alpha=0.2>(x) y = Add(a, b)"
    model = made(f"(float[4] x) => (float[4] y) {{ {body} }}")
    assert ops(basic(model).model)["LeakyRelu"] == 2


def test_random_twins_stay_two() -> None:
    body = "a = RandomUniformLike(x) b = RandomUniformLike(x) y = Sub(a, b)"
    model = made(f"(float[4] x) => (float[4] y) {{ {body} }}")
    assert ops(basic(model).model)["RandomUniformLike"] == 2


def test_two_outputs_from_equal_nodes_keep_both_names() -> None:
    model = made("(float[4] x) => (float[4] y, float[4] z) { y = Exp(x) z = Exp(x) }")
    result = basic(model)
    assert [o.name for o in result.model.graph.output] == ["y", "z"]
    same(model, result, x=normal(4))


def test_an_output_takes_over_its_twin() -> None:
    model = made("(float[4] x) => (float[4] y, float[4] z) { a = Exp(x) y = Exp(x) z = Neg(a) }")
    result = basic(model)
    assert ops(result.model) == {"Exp": 1, "Neg": 1}
    same(model, result, x=normal(4))


def test_initializers_merge_by_their_bits() -> None:
    zero = np.zeros(40, np.float32)
    body = "a = Add(x, p) b = Add(a, q) c = Mul(b, m) y = Add(c, p2)"
    model = made(f"(float[40] x) => (float[40] y) {{ {body} }}", p=zero, q=zero.copy(), m=-zero, p2=zero.copy())
    result = basic(model)
    assert len(result.model.graph.initializer) == 2, "+0 and -0 are different"
    same(model, result, x=normal(40))


def test_unused_nodes_and_weights_go() -> None:
    model = made("(float[4] x) => (float[4] y) { d = Mul(x, w) e = Exp(d) y = Neg(x) }", w=normal(4), unused=normal(9))
    result = basic(model)
    assert ops(result.model) == {"Neg": 1}
    assert not result.model.graph.initializer
