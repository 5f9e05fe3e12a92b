"""layer_norm: the written-out forms of layer normalization."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.rules.rule_testing import Case, attributes, contract, count, fires, graph, node_of, ops, refused, weight

HEAD = "(float[2,5,16] x) => (float[2,5,16] y)"
CORE = "m = ReduceMean<axes=[-1]>(x) d = Sub(x, m) q = Mul(d, d) v = ReduceMean<axes=[-1]>(q) ve = Add(v, eps)"
DIV = " s = Sqrt(ve) n = Div(d, s)"
TAIL = " ns = Mul(n, scale) y = Add(ns, bias)"
CONSTANTS = {"eps": np.float32(1e-5), "two": np.float32(2), "one": np.float32(1), "mhalf": np.float32(-0.5)}


def made(body: str, opset: int = 17, head: str = HEAD, **changes: np.ndarray) -> onnx.ModelProto:
    weights = {**CONSTANTS, "scale": weight(16) + 1, "bias": weight(16, seed=1), **changes}
    used = {k: v for k, v in weights.items() if f" {k})" in body or f"({k}," in body}
    return graph(f"{head} {{ {body} }}", opset, **used)


test_contract = contract(Case("layer_norm", lambda: made(CORE + DIV + TAIL), "d"))


@pytest.mark.parametrize(
    "body",
    [
        CORE.replace("Mul(d, d)", "Pow(d, two)") + DIV + TAIL,
        CORE + " s = Sqrt(ve) r = Reciprocal(s) n = Mul(d, r)" + TAIL,
        CORE + " s = Sqrt(ve) r = Div(one, s) n = Mul(r, d) ns = Mul(scale, n) y = Add(bias, ns)",
        CORE + " r = Pow(ve, mhalf) n = Mul(d, r)" + TAIL,
        CORE.replace("axes=[-1]", "axes=[2]").replace("Add(v, eps)", "Add(eps, v)") + DIV + TAIL,
    ],
)
def test_forms(body: str) -> None:
    result = fires(made(body), "layer_norm")
    assert ops(result) == {"LayerNormalization": 1}
    found = attributes(node_of(result, "LayerNormalization"))
    assert found["axis"] == -1 and found["epsilon"] == pytest.approx(1e-5)


@pytest.mark.parametrize("opset", [11, 13, 16])
def test_older_opsets_get_the_custom_op(opset: int) -> None:
    assert ops(fires(made(CORE + DIV + TAIL, opset), "layer_norm")) == {"cuvil::LayerNorm": 1}


def test_axes_as_an_input() -> None:
    body = (CORE + DIV + TAIL).replace("<axes=[-1]>(x)", "(x, axes)").replace("<axes=[-1]>(q)", "(q, axes)")
    assert ops(fires(made(body, 18, axes=np.array([-1])), "layer_norm")) == {"LayerNormalization": 1}


@pytest.mark.parametrize("tail", [" y = Identity(n)", " y = Mul(n, scale)"])
def test_scale_and_bias_are_optional(tail: str) -> None:
    assert ops(fires(made(CORE + DIV + tail), "layer_norm"))["LayerNormalization"] == 1


def test_scale_with_leading_ones() -> None:
    model = made(CORE + DIV + TAIL, scale=weight(1, 1, 16), bias=weight(1, 16))
    assert ops(fires(model, "layer_norm")) == {"LayerNormalization": 1}


def test_scale_that_is_no_vector_stays_outside() -> None:
    result = fires(made(CORE + DIV + TAIL, scale=weight(5, 16), bias=weight(5, 16)), "layer_norm")
    assert ops(result) == {"LayerNormalization": 1, "Mul": 1, "Add": 1}


def test_bias_that_enlarges_the_result_stays_outside() -> None:
    model = made(CORE + DIV + TAIL, head="(float[2,5,16] x) => (float[1,2,5,16] y)", bias=weight(1, 1, 1, 16))
    assert ops(fires(model, "layer_norm")) == {"LayerNormalization": 1, "Add": 1}


def test_half_with_float32_statistics() -> None:
    body = "x = Cast<to=1>(h) " + CORE + DIV + " n16 = Cast<to=10>(n) ns = Mul(n16, scale) y = Add(ns, bias)"
    head = "(float16[2,5,16] h) => (float16[2,5,16] y)"
    scale, bias = weight(16, dtype=np.float16), weight(16, seed=1, dtype=np.float16)
    result = fires(made(body, head=head, scale=scale, bias=bias), "layer_norm", rtol=2e-3, atol=2e-3)
    assert ops(result) == {"LayerNormalization": 1}


def test_half_with_float32_scale_that_float16_cannot_hold_keeps_its_casts() -> None:
    body = "x = Cast<to=1>(h) " + CORE + DIV + TAIL.replace("y =", "w =") + " y = Cast<to=10>(w)"
    result = fires(made(body, head="(float16[2,5,16] h) => (float16[2,5,16] y)"), "layer_norm", rtol=2e-3, atol=2e-3)
    assert ops(result) == {"Cast": 2, "LayerNormalization": 1}


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("v = ReduceMean<axes=[-1]>", "v = ReduceMean<axes=[1]>", "only the last axis"),
        ("m = ReduceMean<axes=[-1]>", "m = ReduceMean<axes=[1]>", "only the last axis"),
        ("v = ReduceMean<axes=[-1]>", "v = ReduceMean<axes=[1,2]>", "only the last axis"),
    ],
)
def test_other_axes_are_refused(old: str, new: str, reason: str) -> None:
    refused(made((CORE + DIV + TAIL).replace(old, new)), "layer_norm", reason)


def test_a_reduction_that_drops_its_axis_is_refused() -> None:
    body = (CORE + DIV + TAIL).replace("v = ReduceMean<axes=[-1]>", "v = ReduceMean<axes=[-1], keepdims=0>")
    refused(made(body, head="(float[16,16] x) => (float[16,16] y)"), "layer_norm", "keepdims")


def test_negative_epsilon_is_refused() -> None:
    refused(made(CORE + DIV + TAIL, eps=np.float32(-1e-5)), "layer_norm", "epsilon is")


def test_computed_epsilon_is_not_the_pattern() -> None:
    head = "(float[2,5,16] x, float eps) => (float[2,5,16] y)"
    assert count(graph(f"{head} {{ {CORE}{DIV} y = Neg(n) }}"), "layer_norm") == 0


def test_the_mean_of_something_else_is_not_layer_norm() -> None:
    head = "(float[2,5,16] x, float[2,5,16] z) => (float[2,5,16] y)"
    body = (CORE + DIV + TAIL).replace("(x) d", "(z) d")
    assert count(made(body, head=head), "layer_norm") == 0


@pytest.mark.parametrize(
    ("old", "new", "number"),
    [
        ("s = Sqrt(ve)", "s = Pow(ve, wide)", 0.5),
        ("n = Div(d, s)", "i = Div(wide, s) n = Mul(d, i)", 1.0),
        ("q = Mul(d, d)", "q = Pow(d, wide)", 2.0),
    ],
)
def test_a_constant_that_raises_the_rank_is_not_taken(old: str, new: str, number: float) -> None:
    body, wide = (CORE + DIV + TAIL).replace(old, new), np.full((1, 1, 1, 1), number, np.float32)
    refused(made(body, head="(float[2,5,16] x) => (float[1,2,5,16] y)", wide=wide), "layer_norm", "")
