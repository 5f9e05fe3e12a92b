"""gemm_rows: Gemm over flattened rows, as in GPT-2."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.rules.rule_testing import Case, contract, fires, graph, ops, refused, weight

HEAD = "(float[B,S,8] x) => (float[B,S,6] y)"
BODY = "f = Reshape(x, rows) g = Gemm(f, w, b) r = Reshape(g, back) y = Relu(r)"
SHAPES = {"rows": np.array([-1, 8]), "back": np.array([3, -1, 6])}
SYMBOLS = {"B": 3, "S": 4}


def made(body: str = BODY, head: str = HEAD, **more: np.ndarray) -> onnx.ModelProto:
    weights = {"w": weight(8, 6), "b": weight(6), **SHAPES, **more}
    return graph(f"{head} {{ {body} }}", **{k: v for k, v in weights.items() if f" {k}" in body})


def static(body: str = BODY, **more: np.ndarray) -> onnx.ModelProto:
    return made(body, "(float[3,4,8] x) => (float[3,4,6] y)", **more)


test_contract = contract(Case("gemm_rows", static, "g"))


def test_product_of_the_tensor_itself() -> None:
    assert ops(fires(static(), "gemm_rows", symbols=SYMBOLS)) == {"MatMul": 1, "Add": 1, "Relu": 1}


def test_shape_computed_from_the_input() -> None:
    # What the exporter writes: the leading sizes are read from x.
    body = (
        "s = Shape(x) b0 = Gather(s, i0) b1 = Gather(s, i1) u0 = Unsqueeze(b0, a0) u1 = Unsqueeze(b1, a0) "
        "back = Concat<axis=0>(u0, u1, six) " + BODY
    )
    sizes = {"i0": np.array(0), "i1": np.array(1), "a0": np.array([0]), "six": np.array([6])}
    weights = {"w": weight(8, 6), "b": weight(6), "rows": SHAPES["rows"], **sizes}
    model = graph(f"{HEAD} {{ {body} }}", **weights)
    result = fires(model, "gemm_rows", "dead_code", symbols=SYMBOLS)
    assert ops(result) == {"MatMul": 1, "Add": 1, "Relu": 1}


def test_epilogues_follow() -> None:
    result = fires(static(), "gemm_rows", "matmul_epilogue", symbols=SYMBOLS)
    assert ops(result) == {"cuvil::FusedMatMul": 1}


def test_merged_heads_before_the_rows() -> None:
    # Reshape [3, S, 2, 4] straight to rows, where [3, S, 8] was split before.
    body = BODY.replace("f = Reshape(x, rows)", "h = Reshape(x, heads) f = Reshape(h, rows)")
    model = static(body, heads=np.array([0, 0, 2, 4]))
    assert ops(fires(model, "gemm_rows", "dead_code", symbols=SYMBOLS))["Reshape"] == 0


@pytest.mark.parametrize("gemm", ["Gemm(f, w)", "Gemm<transB=1>(f, v, b)", "Gemm<beta=1.0, alpha=1.0>(f, w, b1)"])
def test_other_writings(gemm: str) -> None:
    model = static(BODY.replace("Gemm(f, w, b)", gemm), v=weight(6, 8), b1=weight(1, 6))
    fires(model, "gemm_rows", symbols=SYMBOLS)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"Gemm(": "Gemm<alpha=2.0>("}, "alpha is not 1"),
        ({"Gemm(": "Gemm<beta=2.0>("}, "beta is not 1"),
        ({"(f, w, b)": "(f, w, c)"}, "no bias"),
    ],
)
def test_refusals(change: dict[str, str], reason: str) -> None:
    body = BODY
    for old, new in change.items():
        body = body.replace(old, new)
    model = made(body, "(float[3,4,8] x) => (float[3,4,6] y)", c=weight(12, 6))
    refused(model, "gemm_rows", reason)


def test_computed_transposed_weight_is_refused() -> None:
    head = "(float[3,4,8] x, float[6,8] v) => (float[3,4,6] y)"
    body = BODY.replace("Gemm(f, w, b)", "Gemm<transB=1>(f, v, b)")
    weights = {"b": weight(6), **SHAPES}
    refused(graph(f"{head} {{ {body} }}", **weights), "gemm_rows", "transposed weight is computed")


def test_rows_that_are_cut_otherwise_are_refused() -> None:
    model = made(BODY, "(float[4,3,8] x) => (float[3,4,6] y)")
    refused(model, "gemm_rows", "not known to join")


def test_double_precision_is_refused() -> None:
    body = "f = Reshape(x, rows) g = Gemm(f, w, b) y = Reshape(g, back)"
    model = made(body, "(double[3,4,8] x) => (double[3,4,6] y)", w=weight(8, 6, dtype=np.float64), b=np.zeros(6))
    refused(model, "gemm_rows", "element type")
