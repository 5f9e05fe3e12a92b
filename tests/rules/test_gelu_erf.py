"""gelu_erf: every order and grouping of x * 0.5 * (1 + erf(x / sqrt 2))."""

from __future__ import annotations

import numpy as np
import pytest

from tests.rules.rule_testing import Case, attributes, contract, fires, graph, node_of, ops, refused, weight

ROOT2, HALF, ONE = np.float32(2**0.5), np.float32(0.5), np.float32(1)
HEAD = "(float[2,8] x) => (float[2,8] y)"


def base(opset: int = 17):
    text = HEAD + "{ u = Div(x, r) e = Erf(u) a = Add(e, one) p = Mul(x, a) y = Mul(p, half) }"
    return graph(text, opset, r=ROOT2, one=ONE, half=HALF)


test_contract = contract(Case("gelu_erf", base, "a"))


@pytest.mark.parametrize(
    "body",
    [
        "u = Div(x, r) e = Erf(u) a = Add(one, e) p = Mul(a, x) y = Mul(half, p)",
        "u = Mul(x, ri) e = Erf(u) a = Add(e, one) h = Mul(x, half) y = Mul(h, a)",
        "u = Mul(ri, x) e = Erf(u) a = Add(e, one) h = Mul(half, x) y = Mul(a, h)",
        "u = Div(x, r) e = Erf(u) a = Add(e, one) h = Mul(a, half) y = Mul(x, h)",
        "u = Div(x, r) e = Erf(u) a = Add(e, one) p = Mul(x, a) y = Div(p, two)",
        "u = Div(x, r) e = Erf(u) a = Add(e, one) h = Div(x, two) y = Mul(h, a)",
    ],
)
def test_forms(body: str) -> None:
    constants = {"r": ROOT2, "ri": 1 / ROOT2, "one": ONE, "half": HALF, "two": np.float32(2)}
    used = {k: v for k, v in constants.items() if f" {k})" in body or f"({k}," in body}
    result = fires(graph(HEAD + "{" + body + "}", **used), "gelu_erf")
    assert ops(result) == {"cuvil::Gelu": 1}
    assert attributes(node_of(result, "Gelu")) == {"approximate": "none"}


def test_the_standard_operator_from_opset_20_on() -> None:
    assert ops(fires(base(20), "gelu_erf")) == {"Gelu": 1}


def test_input_that_is_itself_a_sum_and_constants_of_rank_1() -> None:
    text = HEAD + "{ x1 = Add(x, b) u = Div(x1, r) e = Erf(u) a = Add(e, one) p = Mul(x1, a) y = Mul(p, half) }"
    weights = {"r": ROOT2.reshape(1), "one": ONE.reshape(1), "half": HALF.reshape(1, 1)}
    assert ops(fires(graph(text, b=weight(8), **weights), "gelu_erf")) == {"Add": 1, "cuvil::Gelu": 1}


def test_float16_constants() -> None:
    text = "(float16[2,8] x) => (float16[2,8] y)" + HEAD_BODY
    halves = {"r": np.float16(2**0.5), "one": np.float16(1), "half": np.float16(0.5)}
    # The unfused chain rounds five times: a few units of 2^-11.
    fires(graph(text, **halves), "gelu_erf", rtol=4e-3, atol=4e-3)
    # Three of float16's steps off, which no rounding of two constants explains.
    refused(graph(text, **{**halves, "r": np.float16(1.418)}), "gelu_erf", "not GELU's argument")


HEAD_BODY = "{ u = Div(x, r) e = Erf(u) a = Add(e, one) p = Mul(x, a) y = Mul(p, half) }"


def test_another_argument_is_refused() -> None:
    refused(graph(HEAD + HEAD_BODY, r=np.float32(1.5), one=ONE, half=HALF), "gelu_erf", "not GELU's argument")


def test_few_digits_are_another_number() -> None:
    refused(graph(HEAD + HEAD_BODY, r=np.float32(1.4147), one=ONE, half=HALF), "gelu_erf", "not GELU's argument")
    fires(graph(HEAD + HEAD_BODY, r=np.float32(1.41421), one=ONE, half=HALF), "gelu_erf")


@pytest.mark.parametrize(("one", "half"), [(2.0, 0.5), (1.0, 0.25), (1.0002, 0.5), (1.0, 0.5002)])
def test_other_constants_are_not_the_pattern(one: float, half: float) -> None:
    refused(graph(HEAD + HEAD_BODY, r=ROOT2, one=np.float32(one), half=np.float32(half)), "gelu_erf", "")


def test_a_constant_that_raises_the_rank_is_not_taken() -> None:
    text = "(float[2,8] x) => (float[1,2,8] y)" + HEAD_BODY
    refused(graph(text, r=ROOT2, one=ONE, half=HALF.reshape(1, 1, 1)), "gelu_erf", "")


def test_overridable_constant_is_no_constant() -> None:
    text = "(float[2,8] x, float half) => (float[2,8] y)" + HEAD_BODY
    model = graph(text, r=ROOT2, one=ONE, half=HALF)
    refused(model, "gelu_erf", "")
