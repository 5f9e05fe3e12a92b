"""rms_norm: the written-out forms of root mean square normalization."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.rules.rule_testing import Case, attributes, contract, count, fires, graph, node_of, ops, refused, weight

HEAD = "(float[2,5,16] x) => (float[2,5,16] y)"
CORE = "q = Mul(x, x) v = ReduceMean<axes=[-1]>(q) ve = Add(v, eps) s = Sqrt(ve)"
TAIL = " n = Div(x, s) y = Mul(n, scale)"
CONSTANTS = {"eps": np.float32(1e-6), "two": np.float32(2), "one": np.float32(1), "mhalf": np.float32(-0.5)}


def made(body: str, opset: int = 17, head: str = HEAD, **changes: np.ndarray) -> onnx.ModelProto:
    weights = {**CONSTANTS, "scale": weight(16) + 1, "bias": weight(16, seed=1), **changes}
    used = {k: v for k, v in weights.items() if f" {k})" in body or f"({k}," in body}
    return graph(f"{head} {{ {body} }}", opset, **used)


test_contract = contract(Case("rms_norm", lambda: made(CORE + TAIL), "v"))


@pytest.mark.parametrize(
    "body",
    [
        CORE.replace("Mul(x, x)", "Pow(x, two)") + TAIL,
        CORE + " r = Reciprocal(s) n = Mul(x, r) y = Mul(scale, n)",
        CORE + " r = Div(one, s) n = Mul(r, x) y = Mul(scale, n)",
        CORE.replace("s = Sqrt(ve)", "r = Pow(ve, mhalf)") + " n = Mul(x, r) y = Mul(n, scale)",
    ],
)
def test_forms(body: str) -> None:
    result = fires(made(body), "rms_norm")
    assert ops(result) == {"cuvil::LayerNorm": 1}
    assert attributes(node_of(result, "LayerNorm")) == {"epsilon": pytest.approx(1e-6), "rms": 1}


def test_the_standard_operator_from_opset_23_on() -> None:
    body = (CORE + TAIL).replace("<axes=[-1]>(q)", "(q, axes)")
    assert ops(fires(made(body, 23, axes=np.array([-1])), "rms_norm")) == {"RMSNormalization": 1}


def test_llama_in_half_with_float32_statistics() -> None:
    body = "x = Cast<to=1>(h) " + CORE + " n = Div(x, s) n16 = Cast<to=10>(n) y = Mul(scale, n16)"
    head = "(float16[2,5,16] h) => (float16[2,5,16] y)"
    result = fires(made(body, head=head, scale=weight(16, dtype=np.float16)), "rms_norm", rtol=2e-3, atol=2e-3)
    assert ops(result) == {"cuvil::LayerNorm": 1}


def test_another_axis_is_refused() -> None:
    # Not yet known to be without a mean there: the layer_norm rule reports it.
    refused(made((CORE + TAIL).replace("axes=[-1]", "axes=[1]")), "layer_norm", "only the last axis", "rms_norm")


def test_layer_norm_is_not_rms_norm() -> None:
    body = "m = ReduceMean<axes=[-1]>(z) x = Sub(z, m) " + CORE + TAIL
    assert count(made(body, head="(float[2,5,16] z) => (float[2,5,16] y)"), "rms_norm") == 0


def test_scale_of_unknown_size_and_no_scale() -> None:
    body = CORE + " n = Div(x, s) y = Neg(n)"
    refused(made(body, head="(float[2,5,N] x) => (float[2,5,N] y)"), "rms_norm", "no scale")
