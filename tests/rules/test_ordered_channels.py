"""A constant order of channels moves into the columns of the projection that computes them."""

from __future__ import annotations

import numpy as np
import pytest

from tests.rules.rule_testing import Case, contract, fires, graph, ops, refused, weight
from tests.rules.test_dequantized_matmul import codes, model, steps

RULE = "ordered_channels"
K, N = 48, 20
ORDER = np.random.default_rng(0).permutation(N)
HEAD = f"(float[M,S,{K}] x) => (float[M,S,{N}] y)"
PRODUCT = "p = MatMul(x, w) a = Add(p, b)"


def plain(body: str = f"{PRODUCT} y = Gather<axis=-1>(a, o)", opset: int = 17):
    constants = {"w": weight(K, N), "b": weight(N), "o": ORDER}
    return graph(f"{HEAD} {{ {body} }}", opset, **{k: v for k, v in constants.items() if f"{k})" in body})


test_contract = contract(Case(RULE, plain, "a", exact=True))


@pytest.mark.parametrize("axis", [-1, 2])
@pytest.mark.parametrize("body", [f"{PRODUCT} c = Relu(a)", f"{PRODUCT} c = Gelu(a)", "c = MatMul(x, w)"])
def test_projections_and_activations(axis, body):
    result = fires(plain(f"{body} y = Gather<axis={axis}>(c, o)", 20), RULE, "dead_code", exact=True)
    assert "Gather" not in ops(result)


@pytest.mark.parametrize("quantized", [False, True])
def test_gated_units(quantized):
    """Both halves of the joined projection are reordered."""
    rest = "e = Sigmoid(g) h = Mul(g, e) t = Mul(h, u) y = Gather<axis=-1>(t, o)"
    if quantized:
        dequantize = (f"w{i} = DequantizeLinear<axis=0, block_size=16>(q{i}, s{i}, z{i})" for i in (1, 2))
        parts = {f"{n}{i}": codes("u4", rows, N, seed=i) for i in (1, 2) for n, rows in (("q", K), ("z", 3))}
        parts |= {"s1": steps(3, N), "s2": steps(3, N) * 2, "o": ORDER}
        made = model(f"{HEAD} {{ {' '.join(dequantize)} g = MatMul(x, w1) u = MatMul(x, w2) {rest} }}", **parts)
    else:
        body = f"g = MatMul(x, w1) u = MatMul(x, w2) {rest}"
        made = graph(f"{HEAD} {{ {body} }}", w1=weight(K, N), w2=weight(K, N, seed=1), o=ORDER)
    result = fires(made, RULE, "gated_unit", "dequantized_matmul", "dead_code")
    assert ops(result) == {"cuvil::MatMulInt4" if quantized else "MatMul": 1, "cuvil::GatedUnit": 1}


def test_what_stays():
    refused(plain(f"{PRODUCT} n = Neg(a) d = Gather<axis=-1>(a, o) y = Add(d, n)"), RULE, "own order")
    for other in (np.zeros(N, np.int64), np.arange(N) - 1):
        made = graph(f"{HEAD} {{ p = MatMul(x, w) y = Gather<axis=-1>(p, o) }}", w=weight(K, N), o=other)
        refused(made, RULE, "")  # no permutation
    made = graph(f"{HEAD} {{ p = MatMul(x, w) y = Gather<axis=-1>(p, o) }}", w=weight(K, N + 1), o=ORDER)
    refused(made, RULE, "")  # some of the channels
    made = graph(f"{HEAD} {{ p = MatMul(x, w) s = Softmax(p) y = Gather<axis=-1>(s, o) }}", w=weight(K, N), o=ORDER)
    refused(made, RULE, "")  # not elementwise
    text = f"(float[{N},M,{K}] x) => (float[{N},M,{N}] y) {{ p = MatMul(x, w) y = Gather(p, o) }}"
    made = graph(text, w=weight(K, N), o=ORDER)
    refused(made, RULE, "")  # along another axis
