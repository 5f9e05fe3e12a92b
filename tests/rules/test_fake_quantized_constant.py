"""Written-out fake-quantization of weights becomes 4-bit codes; every other Round of constants is folded as ever."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto

from cuvil_onnx.api import optimize
from tests.rules.rule_testing import Case, contract, fires, graph, node_of, ops, run, weight
from tests.rules.test_dequantized_matmul import model, steps

RULE = "fake_quantized_constant"
K, N = 64, 20
HEAD = f"(float[M,{K}] x) => (float[M,{N}] y)"
LOW, HIGH = np.float32(-8), np.float32(7)


def symmetric(scales: tuple[int, ...] = (N,), order: str = "round"):
    """Round(w / s), clipped, * s; `order` "clip": clipped first, as learned step sizes do."""
    quantize = {
        "round": "d = Div(w, s) r = Round(d) c = Clip(r, lo, hi)",
        "clip": "d = Div(w, s) b = Clip(d, lo, hi) c = Round(b)",
        "min_max": "d = Div(w, s) r = Round(d) b = Max(r, lo) c = Min(b, hi)",
    }[order]
    text = f"{HEAD} {{ {quantize} v = Mul(c, s) y = MatMul(x, v) }}"
    return model(text, w=weight(K, N), s=steps(*scales), lo=LOW, hi=HIGH)


# Where something else reads the weight the Round is folded, which counts, too.
test_contract = contract(Case(RULE, symmetric, "v", needs=("constant_folding",), exact=True, kept=1))


@pytest.mark.parametrize("scales", [(), (1,), (N,), (1, N), (K, 1)])
@pytest.mark.parametrize("order", ["round", "clip", "min_max"])
def test_symmetric(scales, order):
    result = fires(symmetric(scales, order), RULE, "constant_folding", "dead_code", exact=True)
    assert ops(result) == {"DequantizeLinear": 1, "MatMul": 1}
    assert sorted(i.data_type for i in result.graph.initializer) == [TensorProto.FLOAT, TensorProto.INT4]


def test_zero_points_of_columns():
    """The integers of different columns lie far apart, those of each within 4 bits."""
    codes = "d = Div(w, s) r = Round(d) a = Add(r, z) c = Clip(a, lo, hi)"
    text = f"{HEAD} {{ {codes} b = Sub(c, z) v = Mul(s, b) y = MatMul(x, v) }}"
    z = np.arange(N, dtype=np.float32) % 16
    made = model(text, w=weight(K, N), s=steps(N), z=z, lo=np.float32(0), hi=np.float32(15))
    result = fires(made, RULE, "constant_folding", "dead_code", exact=True)
    kinds = sorted(i.data_type for i in result.graph.initializer)
    assert kinds == [TensorProto.FLOAT, TensorProto.UINT4, TensorProto.UINT4]


@pytest.mark.parametrize("form", ["rows", "columns"])
def test_groups(form):
    """[N, K / 16, 16] read by a Gemm with transB, or [K / 16, 16, N]."""
    shape, scales = ((N, 4, 16), (N, 4, 1)) if form == "rows" else ((4, 16, N), (4, 1, N))
    target = [N, -1] if form == "rows" else [K, N]
    product = "Gemm<transB=1>(x, v)" if form == "rows" else "MatMul(x, v)"
    text = f"{HEAD} {{ d = Div(w, s) r = Round(d) c = Clip(r, lo, hi) m = Mul(c, s) v = Reshape(m, t) y = {product} }}"
    made = model(text, w=weight(*shape), s=steps(*scales), lo=LOW, hi=HIGH, t=np.array(target))
    result = fires(made, RULE, "constant_folding", "dead_code", exact=True)
    assert ops(result)["DequantizeLinear"] == 1 and "Reshape" not in ops(result)
    whole = optimize(made, verify=False).model
    assert ops(whole) == {"cuvil::MatMulInt4": 1}
    x = {"x": weight(3, K)}
    np.testing.assert_allclose(run(whole, x)[0], run(made, x, plain=True)[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("scales", [(), (N,)])
def test_whole_models_end_with_int4(scales):
    made = symmetric(scales)
    result = optimize(made, verify=False).model
    assert ops(result) == {"cuvil::MatMulInt4": 1}
    kinds = {i.name: i.data_type for i in result.graph.initializer}
    assert kinds[node_of(result, "MatMulInt4").input[1]] == TensorProto.INT4
    x = {"x": weight(3, K)}
    np.testing.assert_allclose(run(result, x)[0], run(made, x, plain=True)[0], rtol=1e-5, atol=1e-5)


OTHERS = {
    "8 bits": ("r = Round(d) c = Clip(r, lo8, hi8) v = Mul(c, s) y = MatMul(x, v)", 21),
    "division": ("r = Round(d) c = Clip(r, lo, hi) v = Div(c, s) y = MatMul(x, v)", 21),
    "no scale": ("v = Round(d) y = MatMul(x, v)", 21),
    "other reader": (
        "r = Round(d) c = Clip(r, lo, hi) v = Mul(c, s) e = MatMul(x, v) f = ReduceMax(v) y = Add(e, f)",
        21,
    ),
    "no product": (
        "r = Round(d) c = Clip(r, lo, hi) v = Mul(c, s) t = ReduceMax<keepdims=0>(v) y0 = MatMul(x, w) y = Add(y0, t)",
        21,
    ),
    "halves": ("r = Round(d) h = Add(r, half) c = Clip(h, lo, hi) v = Mul(c, s) y = MatMul(x, v)", 21),
    "old opset": ("r = Round(d) c = Clip(r, lo, hi) v = Mul(c, s) y = MatMul(x, v)", 17),
}


@pytest.mark.parametrize("case", OTHERS)
def test_other_rounds_are_folded(case):
    body, opset = OTHERS[case]
    text = f"{HEAD} {{ d = Div(w, s) {body} }}"
    constants = {"w": weight(K, N), "s": steps(N), "lo": LOW, "hi": HIGH, "half": np.float32(0.5)}
    constants |= {"lo8": np.float32(-128), "hi8": np.float32(127)}
    constants = {k: v for k, v in constants.items() if any(f"{a}{k}{b}" in text for a in "( " for b in ",)")}
    made = model(text, **constants) if opset == 21 else graph(text, opset, **constants)
    result = optimize(made, verify=False).model
    assert not {"Round", "Clip", "Mul", "Div", "cuvil::MatMulInt4", "DequantizeLinear"} & ops(result).keys()
    x = {"x": weight(3, K)}
    np.testing.assert_allclose(run(result, x)[0], run(made, x, plain=True)[0], rtol=1e-5, atol=1e-5)


def test_activations_are_not_constants():
    made = model(f"(float[M,{K}] x) => (float[M,{K}] y) {{ y = Round(x) }}")
    assert ops(optimize(made, verify=False).model) == {"Round": 1}
