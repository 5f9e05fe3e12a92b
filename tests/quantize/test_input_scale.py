"""An input scale goes into whatever computes the input, and the model still computes the same."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest

import cuvil_onnx
from cuvil_onnx.pipeline import all_rules
from cuvil_onnx.quantize.grid import Array, Grid, Quantized
from cuvil_onnx.quantize.scheme import Context, Layer, Scheme, make_scheme
from cuvil_onnx.quantize.settings import Settings
from tests.quantize.quantize_testing import graph, ops, run, weight
from tests.rules.test_attention import CONSTANTS, MERGE, SCORES, SPLIT


class Scaling(Scheme):
    """Round to nearest after random scales between 1/4 and 4."""

    name = "scaling"
    summary = "for tests"

    def input_scale(self, layers: Sequence[Layer], grid: Grid, context: Context) -> Array | None:
        k = layers[0].weight.shape[0]
        assert all(layer.weight.shape[0] == k for layer in layers)
        scale: Array = np.exp2(context.rng.uniform(-2, 2, k)).astype(np.float32)
        return scale

    def quantize(self, layer: Layer, grid: Grid, context: Context) -> Quantized:
        return make_scheme("rtn", {}).quantize(layer, grid, context)


def quantized(model: onnx.ModelProto, fuse: bool = False) -> cuvil_onnx.Optimized:
    how = Settings(Scaling(), bits=8, group_size=16, include=("*",))
    skip = () if fuse else [r.name for r in all_rules() if r.phase in ("structural",)]
    return cuvil_onnx.optimize(model, quantize=how, verify=True, skip=skip)


def scaled(result: cuvil_onnx.Optimized) -> int:
    """How many weights had their rows multiplied."""
    report = result.report.quantization
    assert report is not None
    return sum("inputs scaled" in layer.note for layer in report.layers)


G, B, W, V = weight(32, seed=1) + 1, weight(32, seed=2), weight(32, 48), weight(48, 32, seed=4)
HEAD = "(float[M,32] x) => (float[M,48] y)"

PRODUCERS = {
    "layer_norm": "n = LayerNormalization(x, g, b) y = MatMul(n, w)",
    "rms_norm": "n = RMSNormalization(x, g) y = MatMul(n, w)",
    "factor": "n = Mul(x, g) y = MatMul(n, w)",
    "factor_first": "n = Mul(g, x) y = MatMul(n, w)",
    "one_number": "n = Mul(x, two) y = MatMul(n, w)",
    "factor_and_term": "m = Mul(x, g) n = Add(m, b) y = MatMul(n, w)",
    "two_products_of_it": "n = Mul(x, g) p = MatMul(n, w) q = MatMul(n, w2) y = Add(p, q)",
    "gate": "a = MatMul(x, u) n = MatMul(x, u2) s = Sigmoid(a) m = Mul(s, n) y = MatMul(m, w)",
    "gate_other_side": "a = MatMul(x, u) n = MatMul(x, u2) s = Sigmoid(a) m = Mul(n, s) y = MatMul(m, w)",
    "product": "n = MatMul(x, u) y = MatMul(n, w)",
    "biased_product": "p = MatMul(x, u) n = Add(p, b) y = MatMul(n, w)",
    "gemm": "n = Gemm(x, u, b) y = MatMul(n, w)",
    "chain": "m = Mul(x, g) n = MatMul(m, u) y = MatMul(n, w)",
}
EXPECTED = {"two_products_of_it": 2, "chain": 2}

BARRIERS = {
    "graph_input": "y = MatMul(x, w)",
    "activation": "n = Relu(x) y = MatMul(n, w)",
    "second_reader": "n = Mul(x, g) p = MatMul(n, w) s = ReduceSum(n, one) y = Add(p, s)",
    "sum": "n = Add(x, b) y = MatMul(n, w)",
    "weight_of_two_inputs": "m = Mul(x, g) n = Mul(x, b) p = MatMul(m, w) q = MatMul(n, w) y = Add(p, q)",
    "no_row": "n = Mul(x, tall) y = MatMul(n, w)",
}


def made(body: str) -> onnx.ModelProto:
    constants = {"g": G, "b": B, "w": W, "w2": weight(32, 48, seed=6), "u": weight(32, 32, seed=7)}
    constants |= {"u2": weight(32, 32, seed=8), "two": np.float32(2), "one": np.array([1]), "tall": weight(7, 1)}
    used = {k: v for k, v in constants.items() if f" {k})" in body or f" {k}," in body or f"({k}," in body}
    head = HEAD.replace("M", "7") if "tall" in body else HEAD
    return graph(f"{head} {{ {body} }}", opset=23, **used)


@pytest.mark.parametrize("case", PRODUCERS)
def test_it_goes_into_the_producer(case: str) -> None:
    model = made(PRODUCERS[case])
    result = quantized(model)
    assert scaled(result) == EXPECTED.get(case, 1)
    x = np.random.default_rng(0).standard_normal((5, 32)).astype(np.float32)
    found, exact = run(result.model, x=x)[0], run(model, x=x)[0]
    # 8 bits with scales between 1/4 and 4 rounded in groups: a step of 16 * 0.5 / 255 of the smallest, a few percent.
    assert np.abs(found - exact).max() < 0.1 * np.abs(exact).max()
    assert set(ops(result.model)) <= set(ops(model)) | {"cuvil::MatMulInt4", "cuvil::Pointwise"}  # no further node


@pytest.mark.parametrize("case", BARRIERS)
def test_it_is_not_asked_for_where_it_would_cost_a_node(case: str) -> None:
    assert scaled(quantized(made(BARRIERS[case]))) == 0


def test_norm_with_a_skip_and_gated_unit() -> None:
    body = (
        "s = Add(x, z) n = RMSNormalization(s, g) a = MatMul(n, u) c = MatMul(n, u2) e = Sigmoid(a) f = Mul(a, e) "
        "m = Mul(f, c) d = MatMul(m, u3) y = Add(d, s)"
    )
    model = graph(
        f"(float[M,32] x, float[M,32] z) => (float[M,32] y) {{ {body} }}",
        opset=23,
        g=G,
        u=weight(32, 48, seed=7),
        u2=weight(32, 48, seed=8),
        u3=weight(48, 32, seed=9),
    )
    result = quantized(model, fuse=True)
    found = ops(result.model)
    assert found["cuvil::MatMulInt4"] == 2 and found["cuvil::GatedUnit"] == 1
    assert scaled(result) == 2  # the packed gate and up, behind the norm; down, through "up"


def test_values_of_packed_attention() -> None:
    project = (
        "qp = MatMul(x, wq) q = Add(qp, bq) kp = MatMul(x, wk) k = Add(bk, kp) vp = MatMul(x, wv) v = Add(vp, bv) "
    )
    merge = MERGE.replace("y = Reshape", "o = Reshape")
    assert "o = Reshape" in merge
    body = project + SPLIT + SCORES + merge + " y = MatMul(o, wo)"
    weights = {f"w{n}": weight(24, 32, seed=i) for i, n in enumerate("qkv")} | {"wo": weight(32, 32, seed=9)}
    weights |= {f"b{n}": weight(32, seed=10 + i) for i, n in enumerate("qkv")} | CONSTANTS
    used = {k: v for k, v in weights.items() if f" {k})" in body or f"({k}," in body or f" {k}," in body}
    model = graph(f"(float[2,5,24] x, float[2,1,1,5] mask) => (float[2,5,32] y) {{ {body} }}", 17, **used)
    result = quantized(model, fuse=True)
    assert ops(result.model)["cuvil::Attention"] == 1 and ops(result.model)["cuvil::MatMulInt4"] == 2
    assert scaled(result) == 1
