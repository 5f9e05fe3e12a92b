"""int4_epilogue: bias, residual and activation go into the product with a quantized weight."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import cuvil_onnx
from tests.rules.rule_testing import Case, attributes, contract, fires, graph, node_of, ops, refused, weight

HEAD = "(float[B,S,64] x, float[B,S,96] z) => (float[B,S,96] y)"
PRODUCT = "p = MatMul(x, w) "
CONSTANTS = {"w": weight(64, 96, scale=0.1), "b": weight(96, seed=1), "b2": weight(1, 1, 96, seed=2)}
CONSTANTS["b3"] = weight(1, 96, seed=3)


def made(body: str, head: str = HEAD, scheme: str = "rtn:g32", **changes: np.ndarray) -> onnx.ModelProto:
    """A model whose product is quantized already, and what follows it is not fused."""
    weights = {**CONSTANTS, **changes}
    used = {k: v for k, v in weights.items() if f" {k})" in body or f"({k}," in body or f" {k}," in body}
    return cuvil_onnx.quantize(graph(f"{head} {{ {body} }}", 21, **used), scheme, verify=False).model


def fused(body: str, head: str = HEAD, scheme: str = "rtn:g32") -> tuple[onnx.NodeProto, dict[str, object]]:
    result = fires(made(body, head, scheme), "int4_epilogue")
    assert ops(result) == {"cuvil::MatMulInt4": 1}
    node = node_of(result, "MatMulInt4")
    return node, attributes(node)


test_contract = contract(Case("int4_epilogue", lambda: made(PRODUCT + "a = Add(p, b) y = Relu(a)"), "p"))


@pytest.mark.parametrize("scheme", ["rtn:g32", "rtn:sym:channel", "rtn:w8a16"])
@pytest.mark.parametrize("body", ["y = Add(p, b)", "y = Add(b, p)", "y = Add(p, b2)"])
def test_bias(body: str, scheme: str) -> None:
    node, found = fused(PRODUCT + body, scheme=scheme)
    assert len(node.input) == 6 and found["activation"] == ""


def test_bias_residual_activation() -> None:
    node, found = fused(PRODUCT + "a = Add(p, z) c = Add(a, b) y = Tanh(c)")
    assert list(node.input)[5:] == ["b", "z"] and found["activation"] == "Tanh" and found["block_size"] == 32


def test_swish_of_the_biased_product() -> None:
    assert fused(PRODUCT + "a = Add(p, b) s = Sigmoid(a) y = Mul(s, a)")[1]["activation"] == "Swish"


def test_gemm_has_its_bias_already() -> None:
    flat = "(float[M,64] x, float[M,96] z) => (float[M,96] y)"
    node, found = fused("p = Gemm(x, w, b) a = Add(p, z) y = Relu(a)", flat)
    assert list(node.input)[5:] == ["b", "z"] and found["activation"] == "Relu"
    node, _ = fused("p = Gemm(x, w, b) y = Add(p, b3)", flat)  # two biases become one
    assert len(node.input) == 6 and node.input[5] not in ("b", "b3")


@pytest.mark.parametrize(
    ("head", "body", "reason"),
    [
        (HEAD.replace("[B,S,96] z", "[C,S,96] z"), PRODUCT + "y = Add(p, z)", "addend"),
        (HEAD.replace("z)", "z, float[1,1,96] c)"), PRODUCT + "a = Add(p, c) y = Relu(a)", ""),
    ],
)
def test_refusals(head: str, body: str, reason: str) -> None:
    refused(made(body, head), "int4_epilogue", reason)


@pytest.mark.parametrize(
    ("head", "body"),
    [
        ("(float[3,4,64] x) => (float[3,4,96] y)", "p = MatMul(x, experts) y = Relu(p)"),
        ("(float[1,64] x) => (float[4,96] y)", PRODUCT + "y = Add(p, tall)"),
    ],
)
def test_what_is_not_the_pattern(head: str, body: str) -> None:
    refused(made(body, head, experts=weight(3, 64, 96, scale=0.1), tall=weight(4, 96)), "int4_epilogue", "")
