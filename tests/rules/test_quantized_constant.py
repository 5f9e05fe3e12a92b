"""QuantizeLinear of constants becomes the codes that ONNX Runtime gives; fake-quantized weights become INT4."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto

from cuvil_onnx.api import optimize
from tests.rules.rule_testing import Case, contract, fires, node_of, ops, refused, run, weight
from tests.rules.test_dequantized_matmul import codes, model, steps

RULE = "quantized_constant"
K, N = 48, 20
ONE = f"(float[M,{K}] x) => (float[M,{N}] y)"
REST = "w = DequantizeLinear(q, s, z) y = MatMul(x, w)"
ONNX_TYPES = {"i4": TensorProto.INT4, "u4": TensorProto.UINT4, "i8": TensorProto.INT8, "u8": TensorProto.UINT8}


def pair(kind: str = "i4", axes: str = "axis=1", shape: tuple[int, ...] = (N,), dtype: type = np.float32):
    """Quantize and dequantize; weights beyond the range, on it, and halfway between two codes are among them."""
    step = steps(*shape, dtype=dtype)
    x = (weight(K, N, scale=2.0) * 0.3).astype(dtype)
    x[0] = x[1] = 100
    x[2] = -100
    x[3] = (np.arange(N) - 10 + 0.5).astype(dtype) * np.float32(0.0625)
    step.flat[0] = 0.0625
    zero = codes(kind, *shape, seed=3) if shape else np.asarray(codes(kind, 4)[3])
    float_name = {np.float32: "float", np.float16: "float16"}[dtype]
    text = (
        f"({float_name}[M,{K}] x) => ({float_name}[M,{N}] y) {{ q = QuantizeLinear<{axes}>(v, s, z) w = "
        f"DequantizeLinear<{axes}>(q, s, z) y = MatMul(x, w) }}"
    )
    return model(text, v=x, s=step, z=zero)


test_contract = contract(Case(RULE, pair, "w", exact=True, kept=1, plain=True))


@pytest.mark.parametrize("kind", ONNX_TYPES)
@pytest.mark.parametrize(
    ("axes", "shape"),
    [
        ("axis=1", (N,)),
        ("axis=0", (K,)),
        ("axis=1", ()),
        ("axis=0, block_size=16", (3, N)),
        ("axis=-1, block_size=8", (K, 3)),
    ],
)
def test_the_same_bits(kind, axes, shape):
    result = fires(pair(kind, axes, shape), RULE, exact=True)
    assert ops(result) == {"DequantizeLinear": 1, "MatMul": 1}
    assert {i.data_type for i in result.graph.initializer} == {ONNX_TYPES[kind], TensorProto.FLOAT}


def test_half():
    fires(pair("u4", dtype=np.float16), RULE, exact=True)


@pytest.mark.parametrize("kind", ["i4", "u4"])
@pytest.mark.parametrize(("axes", "shape"), [("axis=1", (N,)), ("axis=1", ()), ("axis=0, block_size=16", (3, N))])
def test_fake_quantized_weights_become_int4(kind, axes, shape):
    made = pair(kind, axes, shape)
    result = optimize(made, verify=False).model
    assert ops(result) == {"cuvil::MatMulInt4": 1}
    assert TensorProto.FLOAT not in [i.data_type for i in result.graph.initializer if list(i.dims) == [K, N]]
    x = {"x": weight(5, K)}
    np.testing.assert_allclose(run(result, x)[0], run(made, x, plain=True)[0], rtol=1e-5, atol=1e-4)


def test_bytes_that_are_clipped_to_4_bits():
    """Quantize to int8, Clip to [-8, 7], dequantize: how tools write 4 bits for opsets without a type for them."""
    text = (
        f"{ONE} {{ q = QuantizeLinear<axis=1>(v, s, z) c = Clip(q, lo, hi) w = "
        f"DequantizeLinear<axis=1>(c, s, z) y = MatMul(x, w) }}"
    )
    made = model(text, v=weight(K, N), s=steps(N), z=np.zeros(N, np.int8), lo=np.int8(-8), hi=np.int8(7))
    result = optimize(made, verify=False).model
    assert ops(result) == {"cuvil::MatMulInt4": 1}
    kinds = {i.name: i.data_type for i in result.graph.initializer}
    assert kinds[node_of(result, "MatMulInt4").input[1]] == TensorProto.INT4
    x = {"x": weight(5, K)}
    np.testing.assert_allclose(run(result, x)[0], run(made, x, plain=True)[0], rtol=1e-5, atol=1e-5)


def test_activations_are_not_constants():
    text = f"(float[M,{K}] x) => (int8[M,{K}] y) {{ y = QuantizeLinear(x, s, z) }}"
    refused(model(text, s=np.float32(0.1), z=np.int8(0)), RULE, "")


def test_computed_scales():
    text = f"(float[M,{K}] x, float s) => (float[M,{N}] y) {{ q = QuantizeLinear(v, s, z) {REST} }}"
    refused(model(text, v=weight(K, N), z=np.int8(0)), RULE, "computed")


def test_other_types():
    text = f"{ONE} {{ q = QuantizeLinear(v, s, z) {REST} }}"
    refused(model(text, v=weight(K, N), s=np.float32(0.1), z=np.int16(0)), RULE, "4 or 8 bits")
    refused(
        model(text, v=weight(K, N), s=np.float32(0.1), z=np.asarray(0, ml_dtypes.float8_e4m3fn)), RULE, "4 or 8 bits"
    )


def test_what_is_no_number():
    text = f"{ONE} {{ q = QuantizeLinear(v, s, z) {REST} }}"
    bad = weight(K, N)
    bad[1, 1] = np.nan
    refused(model(text, v=bad, s=np.float32(0.1), z=np.int8(0)), RULE, "NaN")
    refused(model(text, v=weight(K, N), s=np.float32(0), z=np.int8(0)), RULE, "scales of 0")
