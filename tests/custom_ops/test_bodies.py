"""Every example of every op: its function body is valid ONNX and computes what the op's float64 reference says."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

import custom_ops
from custom_ops import testing
from custom_ops.spec import Example, OpSpec

EXAMPLES = [pytest.param(s, e, id=f"{s.name}-{e.name}") for s in custom_ops.specs().values() for e in s.examples()]
FLOAT, HALF = ir.DataType.FLOAT, ir.DataType.FLOAT16


def run(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    # MatMulNBits rounds activations to 8 bits otherwise: 5e-3 relative, which would hide errors of the body.
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"]).run(None, feeds)


def check(spec: OpSpec, example: Example, opset: int, dtype: ir.DataType, rtol: float, atol: float) -> None:
    if opset < example.opset:
        pytest.skip(f"the example needs opset {example.opset}")
    case = testing.build(spec, example, opset=opset, dtype=dtype)
    onnx.checker.check_model(case.model, full_check=True)
    for found, expected in zip(run(case.model, case.feeds), case.expected, strict=True):
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=rtol, atol=atol)


@pytest.mark.parametrize("opset", [8, 11, 13, 17, 20, 23, 26])
@pytest.mark.parametrize(("spec", "example"), EXAMPLES)
def test_body_float32(spec: OpSpec, example: Example, opset: int) -> None:
    # Sums here have at most 200 terms of order 1, so float32 is off by some 200 * 2^-24 = 1e-5 at worst; a variance
    # around a mean of 1000 loses three digits more in the mean itself (2^-24 * 1000 = 6e-5).
    loose = example.name in ("large_mean", "large_scores")
    check(spec, example, opset, FLOAT, rtol=2e-5, atol=3e-4 if loose else 2e-5)


@pytest.mark.parametrize("opset", [13, 17, 20, 23])
@pytest.mark.parametrize(("spec", "example"), EXAMPLES)
def test_body_float16(spec: OpSpec, example: Example, opset: int) -> None:
    if not example.half:
        pytest.skip("the example is beyond float16")
    # A float16 result is rounded by 2^-11 = 5e-4, in chains a few times (values up to 8 or so).
    check(spec, example, opset, HALF, rtol=4e-3, atol=8e-3)


@pytest.mark.parametrize(("spec", "example"), EXAMPLES)
def test_body_bfloat16(spec: OpSpec, example: Example) -> None:
    if not example.half or spec.name == "Pointwise":
        pytest.skip(
            "beyond bfloat16, or a body of original nodes, for which ONNX Runtime's CPU provider has no kernels"
        )
    # 8 bits of mantissa: 2^-9 = 2e-3 a rounding of values up to 8 or so.
    check(spec, example, max(17, example.opset), ir.DataType.BFLOAT16, rtol=2e-2, atol=3e-2)


def test_layer_norm_statistics_of_half_are_float32() -> None:
    # The sum of squares, 256 * 200^2 = 1e7, is beyond float16 (65504): only float32 statistics give a finite result.
    x = np.linspace(-200, 200, 256, dtype=np.float32).reshape(1, 256)
    ones = np.ones(256, np.float32)
    for opset in (11, 17):
        check(custom_ops.get("LayerNorm"), Example("big", (x, ones, ones)), opset, HALF, rtol=2e-3, atol=2e-3)


def test_attention_row_without_any_key_is_nan() -> None:
    spec = custom_ops.get("Attention")
    mask = np.zeros((1, 1, 2, 2), np.float32)
    mask[..., 0, :] = -np.inf
    qkv = np.ones((1, 2, 12), np.float32)
    example = Example("nan", (qkv, None, None, mask), {"num_heads": 2, "scale": 1.0, "layout": "packed"})
    case = testing.build(spec, example, opset=17, dtype=FLOAT)
    (y,) = run(case.model, case.feeds)
    assert np.isnan(y[0, 0]).all()
    np.testing.assert_allclose(y[0, 1], 1.0)
