"""gated_unit: SwiGLU, GeGLU and GLU from separate and packed projections."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.rules.rule_testing import Case, attributes, contract, fires, graph, node_of, ops, refused, weight

HEAD = "(float[B,S,24] x) => (float[B,S,32] y)"
SYMBOLS = {"B": 2, "S": 5}
SWISH = "e = Sigmoid(g) a = Mul(g, e) "
PROJECT = "g = MatMul(x, wg) u = MatMul(x, wu) "
BIASED = "gp = MatMul(x, wg) g = Add(gp, bg) up = MatMul(x, wu) u = Add(bu, up) "
WEIGHTS = {
    "wg": weight(24, 32, seed=1),
    "wu": weight(24, 32, seed=2),
    "wn": weight(24, 1, seed=2),
    "w": weight(24, 64, seed=3),
    "bg": weight(32, seed=4),
    "bu": weight(32, seed=5),
    "sizes": np.array([32, 32]),
    "uneven": np.array([40, 24]),
    **{f"c{i}": np.array([i]) for i in (0, 1, 2, 32, 64)},
}


def made(body: str, head: str = HEAD, opset: int = 17) -> onnx.ModelProto:
    used = {k: v for k, v in WEIGHTS.items() if any(f"{a}{k}{b}" in body for a in " (" for b in ",)")}
    return graph(f"{head} {{ {body} }}", opset, **used)


test_contract = contract(Case("gated_unit", lambda: made(PROJECT + SWISH + "y = Mul(a, u)"), "a"))


@pytest.mark.parametrize("product", ["y = Mul(a, u)", "y = Mul(u, a)"])
def test_two_projections_become_one(product: str) -> None:
    result = fires(made(PROJECT + SWISH + product), "gated_unit", symbols=SYMBOLS)
    assert ops(result) == {"MatMul": 1, "cuvil::GatedUnit": 1}
    assert attributes(node_of(result, "GatedUnit")) == {
        "activation": "Swish",
        "activation_params": [],
        "gate_first": 1,
    }


@pytest.mark.parametrize("biased", [BIASED, BIASED.replace("g = Add(gp, bg) ", "").replace("gp =", "g =")])
def test_biases(biased: str) -> None:
    result = fires(made(biased + SWISH + "y = Mul(a, u)"), "gated_unit", symbols=SYMBOLS)
    assert ops(result) == {"MatMul": 1, "Add": 1, "cuvil::GatedUnit": 1}


@pytest.mark.parametrize(
    ("activation", "name", "opset"),
    [
        ("a = Gelu(g) ", "Gelu", 20),
        ('a = Gelu<approximate="tanh">(g) ', "GeluTanh", 20),
        ("a = Sigmoid(g) ", "Sigmoid", 17),
        ("a = Relu(g) ", "Relu", 17),
        ("a = LeakyRelu<alpha=0.1>(g) ", "LeakyRelu", 17),
    ],
)
def test_activations(activation: str, name: str, opset: int) -> None:
    result = fires(made(PROJECT + activation + "y = Mul(a, u)", opset=opset), "gated_unit", symbols=SYMBOLS)
    assert attributes(node_of(result, "GatedUnit"))["activation"] == name


CUTS = {
    "split": "p = MatMul(x, w) g, u = Split<axis=-1>(p) ",
    "sizes": "p = MatMul(x, w) g, u = Split<axis=2>(p, sizes) ",
    "slice": "p = MatMul(x, w) g = Slice(p, c0, c32, c2) u = Slice(p, c32, c64, c2) ",
    "swapped": "p = MatMul(x, w) u, g = Split<axis=-1>(p) ",
}


@pytest.mark.parametrize("kind", list(CUTS))
def test_halves_of_one_product(kind: str) -> None:
    result = fires(made(CUTS[kind] + SWISH + "y = Mul(u, a)"), "gated_unit", symbols=SYMBOLS)
    assert ops(result) == {"MatMul": 1, "cuvil::GatedUnit": 1}
    assert attributes(node_of(result, "GatedUnit"))["gate_first"] == int(kind != "swapped")


def test_a_part_that_others_read_stays() -> None:
    model = made(CUTS["split"] + SWISH + "y = Mul(u, a)", HEAD.replace("y)", "y, float[B,S,32] u)"))
    refused(model, "gated_unit", "graph output")


@pytest.mark.parametrize(
    ("body", "head", "reason"),
    [
        # The gate and what it opens come from different tensors.
        ("g = MatMul(x, wg) u = MatMul(z, wu) " + SWISH, HEAD.replace("x)", "x, float[B,S,24] z)"), ""),
        ("g = MatMul(x, wg) u = MatMul(x, wn) " + SWISH, HEAD, ""),  # broadcast
        ("g = MatMul(x, wg) u = Neg(g) " + SWISH, HEAD, ""),
        ("g = MatMul(x, wg) e = Sigmoid(g) f = Mul(g, e) a = Identity(f) u = Exp(x9) ", "", ""),
        (PROJECT + SWISH + "v = Neg(u) ", HEAD.replace("y)", "y, float[B,S,32] v)"), "read elsewhere"),
        ("p = MatMul(x, w) g = Slice(p, c0, c32, c2) u = Slice(p, c0, c32, c2) " + SWISH, HEAD, ""),
    ],
)
def test_near_misses(body: str, head: str, reason: str) -> None:
    if not head:
        body, head = body.replace("x9", "s"), HEAD.replace("x)", "x, float[B,S,32] s)")
    refused(made(body + "y = Mul(a, u)", head), "gated_unit", reason)


def test_old_opsets_are_refused() -> None:
    refused(made(PROJECT + SWISH + "y = Mul(a, u)", opset=10), "gated_unit", "opset 11")


def test_half_precision() -> None:
    model = made(PROJECT + SWISH + "y = Mul(a, u)", HEAD.replace("float[", "float16["))
    for tensor in model.graph.initializer:
        tensor.CopyFrom(
            onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor).astype(np.float16), tensor.name)
        )
    # fp16: three roundings of 2^-11 of values up to about 10.
    assert ops(fires(model, "gated_unit", rtol=4e-3, atol=2e-2, symbols=SYMBOLS))["cuvil::GatedUnit"] == 1
