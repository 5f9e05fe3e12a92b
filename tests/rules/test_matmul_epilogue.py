"""matmul_epilogue: bias, residual and activation go into the product."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.rules.rule_testing import Case, attributes, contract, fires, graph, node_of, ops, refused, weight

HEAD = "(float[B,S,16] x, float[B,S,24] z) => (float[B,S,24] y)"
FLAT = "(float[M,16] x, float[M,24] z) => (float[M,24] y)"
PRODUCT = "p = MatMul(x, w) "
CONSTANTS = {"w": weight(16, 24), "wt": weight(24, 16), "b": weight(24, seed=1), "b2": weight(1, 1, 24, seed=2)}
GELU = {"r": np.float32(2**0.5), "one": np.float32(1), "half": np.float32(0.5)}


def made(body: str, head: str = HEAD, opset: int = 17, **changes: np.ndarray) -> onnx.ModelProto:
    weights = {**CONSTANTS, **GELU, **changes}
    used = {k: v for k, v in weights.items() if f" {k})" in body or f"({k}," in body or f" {k}," in body}
    return graph(f"{head} {{ {body} }}", opset, **used)


def fused(body: str, head: str = HEAD, *others: str) -> tuple[onnx.NodeProto, dict[str, object]]:
    result = fires(made(body, head), "matmul_epilogue", *others)
    assert ops(result) == {"cuvil::FusedMatMul": 1}
    node = node_of(result, "FusedMatMul")
    return node, attributes(node)


test_contract = contract(Case("matmul_epilogue", lambda: made(PRODUCT + "a = Add(p, b) y = Relu(a)"), "p"))


def test_bias() -> None:
    for body in ("y = Add(p, b)", "y = Add(b, p)", "y = Add(p, b2)"):
        node, found = fused(PRODUCT + body)
        assert len(node.input) == 3 and found["activation"] == "" and found["transB"] == 0


def test_bias_residual_activation() -> None:
    node, found = fused(PRODUCT + "a = Add(p, z) c = Add(a, b) y = Tanh(c)")
    assert list(node.input) == ["x", "w", "b", "z"] and found["activation"] == "Tanh"


def test_gelu_of_either_kind() -> None:
    body = "a = Add(b, p) u = Div(a, r) e = Erf(u) f = Add(e, one) m = Mul(a, f) y = Mul(m, half)"
    assert fused(PRODUCT + body, HEAD, "gelu_erf")[1]["activation"] == "Gelu"
    result = fires(made(PRODUCT + 'a = Add(b, p) y = Gelu<approximate="tanh">(a)', opset=20), "matmul_epilogue")
    assert attributes(node_of(result, "FusedMatMul"))["activation"] == "GeluTanh"


def test_swish_of_the_biased_product() -> None:
    assert fused(PRODUCT + "a = Add(p, b) s = Sigmoid(a) y = Mul(s, a)")[1]["activation"] == "Swish"


@pytest.mark.parametrize(
    ("gemm", "inputs"),
    [
        ("p = Gemm(x, w, b) ", ["x", "w", "b"]),
        ("p = Gemm<transB=1>(x, wt, b) ", ["x", "wt", "b"]),
        ("p = Gemm(x, w) ", ["x", "w"]),
        ("p = Gemm(x, w, z) ", ["x", "w", "", "z"]),
    ],
)
def test_gemm(gemm: str, inputs: list[str]) -> None:
    node, found = fused(gemm + "y = Relu(p)", FLAT)
    assert list(node.input) == inputs and found["transB"] == int("transB" in gemm)


@pytest.mark.parametrize(
    ("head", "body", "reason"),
    [
        (FLAT, "p = Gemm<alpha=0.5>(x, w, b) y = Relu(p)", "alpha or beta"),
        (FLAT, "p = Gemm<beta=0.5>(x, w, b) y = Relu(p)", "alpha or beta"),
        (FLAT.replace("[M,16]", "[16,M]"), "p = Gemm<transA=1>(x, w, b) y = Relu(p)", "A is transposed"),
        (FLAT, "p = Gemm(x, w, scalar) y = Relu(p)", "C is neither"),
        (HEAD.replace("[B,S,24] z", "[C,S,24] z"), PRODUCT + "y = Add(p, z)", "addend"),
        (HEAD.replace("z)", "z, float[1,1,24] c)"), PRODUCT + "a = Add(p, c) y = Relu(a)", ""),
        ("(float[16] x) => (float[24] y)", PRODUCT + "y = Relu(p)", "rank of A"),
    ],
)
def test_refusals(head: str, body: str, reason: str) -> None:
    refused(made(body, head, scalar=np.float32(0.5)), "matmul_epilogue", reason)


@pytest.mark.parametrize(
    ("head", "body"),
    [
        ("(float[B,4,16] x, float[B,16,24] w) => (float[B,4,24] y)", "p = MatMul(x, w) y = Relu(p)"),
        ("(float[4,16] x, float[4,24] z) => (float[4,1] y)", "p = MatMul(x, v) y = Relu(p)"),
        ("(float[1,16] x) => (float[4,24] y)", PRODUCT + "y = Add(p, tall)"),
        ("(float[4,16] x) => (float[1,4,24] y)", PRODUCT + "y = Add(p, b2)"),
    ],
)
def test_what_is_not_the_pattern(head: str, body: str) -> None:
    model = made(body, head, v=weight(16, 1), tall=weight(4, 24))
    if "w)" in head:
        del model.graph.initializer[:]
    if "MatMul(x, v)" in body:
        fires(model, "matmul_epilogue")  # one column is a product like any other
    else:
        refused(model, "matmul_epilogue", "")


def test_half() -> None:
    head = HEAD.replace("float[", "float16[")
    halves = {k: v.astype(np.float16) for k, v in CONSTANTS.items()}
    model = made(PRODUCT + "a = Add(p, z) c = Add(a, b) y = Relu(c)", head, **halves)
    # The chain rounds after the product and after each sum: a few units of 2^-11 of values up to 16.
    fires(model, "matmul_epilogue", rtol=4e-3, atol=1.6e-2)
