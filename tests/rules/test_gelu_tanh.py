"""gelu_tanh: the polynomial in every form."""

from __future__ import annotations

import numpy as np
import pytest

from tests.rules.rule_testing import Case, attributes, contract, fires, graph, node_of, ops, refused

K = np.float32((2 / np.pi) ** 0.5)
CONSTANTS = {
    "c": np.float32(0.044715),
    "k": K,
    "kc": K * np.float32(0.044715),
    "one": np.float32(1),
    "half": np.float32(0.5),
    "three": np.float32(3),
    "two": np.float32(2),
}
HEAD = "(float[2,8] x) => (float[2,8] y)"
TAIL = " g = Tanh(u) a = Add(g, one) p = Mul(x, a) y = Mul(half, p) }"
POW = "{ x3 = Pow(x, three) x3c = Mul(c, x3) s = Add(x, x3c) u = Mul(k, s)"


def made(body: str, opset: int = 17, **changes: np.ndarray):
    constants = {**CONSTANTS, **changes}
    return graph(HEAD + body, opset, **{k: v for k, v in constants.items() if f"({k}," in body or f" {k})" in body})


test_contract = contract(Case("gelu_tanh", lambda: made(POW + TAIL), "s"))


@pytest.mark.parametrize(
    "polynomial",
    [
        "{ x2 = Mul(x, x) x3 = Mul(x2, x) x3c = Mul(x3, c) s = Add(x3c, x) u = Mul(s, k)",
        "{ x2 = Mul(x, x) x2c = Mul(x2, c) f = Add(x2c, one) kx = Mul(x, k) u = Mul(kx, f)",
        "{ x2 = Pow(x, two) x2c = Mul(x2, kc) f = Add(x2c, k) u = Mul(x, f)",
        "{ cx = Mul(c, x) cx2 = Mul(cx, x) f = Add(one, cx2) kx = Mul(k, x) u = Mul(kx, f)",
    ],
)
def test_forms(polynomial: str) -> None:
    result = fires(made(polynomial + TAIL), "gelu_tanh")
    assert ops(result) == {"cuvil::Gelu": 1}
    assert attributes(node_of(result, "Gelu")) == {"approximate": "tanh"}


def test_the_standard_operator_from_opset_20_on() -> None:
    result = fires(made(POW + TAIL, 20), "gelu_tanh")
    assert attributes(node_of(result, "Gelu")) == {"approximate": "tanh"} and "Gelu" in ops(result)


@pytest.mark.parametrize(("name", "number"), [("c", 0.05), ("c", 0.04473), ("k", 0.7981)])
def test_another_coefficient_is_refused(name: str, number: float) -> None:
    refused(made(POW + TAIL, **{name: np.float32(number)}), "gelu_tanh", "not GELU's argument")


@pytest.mark.parametrize("name", ["c", "three", "k", "one", "half"])
def test_a_constant_that_raises_the_rank_is_not_taken(name: str) -> None:
    text = "(float[2,8] x) => (float[1,2,8] y)" + POW + TAIL
    used = {k: v for k, v in CONSTANTS.items() if f"({k}," in text or f" {k})" in text}
    refused(graph(text, **{**used, name: used[name].reshape(1, 1, 1)}), "gelu_tanh", "")


def test_tanh_of_something_else_is_not_the_pattern() -> None:
    text = (
        "(float[2,8] x, float[2,8] z) => (float[2,8] y) { g = Tanh(z) a = Add(g, one) p = Mul(x, a) y = Mul(half, p) }"
    )
    refused(graph(text, one=np.float32(1), half=np.float32(0.5)), "gelu_tanh", "")
