"""Every example of every op: its function body is valid ONNX and computes what the op's float64 reference says."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

import custom_ops
from custom_ops import testing
from custom_ops.spec import Example, OpSpec
from cuvil_onnx.passes.limits import newest_opset_and_ir

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
    if opset > newest_opset_and_ir()[0]:
        pytest.skip(f"this ONNX Runtime knows no opset {opset}")
    if opset >= 28 and spec.name == "MatMulInt4":
        pytest.skip("ONNX Runtime 1.32's CPU provider has no DequantizeLinear of version 28")
    case = testing.build(spec, example, opset=opset, dtype=dtype)
    onnx.checker.check_model(case.model, full_check=True)
    for found, expected in zip(run(case.model, case.feeds), case.expected, strict=True):
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=rtol, atol=atol)


@pytest.mark.parametrize("opset", [8, 11, 13, 17, 20, 23, 26, 28])
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


def emptied(example: Example, axis: int) -> Example:
    """The example without batch (axis 0) or without tokens (axis 1)."""

    def cut(array: np.ndarray | None, index: int) -> np.ndarray | None:
        if array is None or (axis == 0 and (array.shape[0] == 1 or array.ndim < 3)):
            return array
        if axis == 0:
            return array[:0]
        if index == 3:  # a mask [.., S, T]
            return array[..., :0, :0] if array.ndim > 1 and array.shape[-2] > 1 else array[..., :0]
        return array[:, :, :0] if array.ndim == 4 else array[:, :0]

    return dataclasses.replace(example, inputs=tuple(cut(a, i) for i, a in enumerate(example.inputs)))


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("opset", [11, 17, 23])
@pytest.mark.parametrize("name", ["Attention", "RotaryEmbedding", "GatedUnit"])
def test_bodies_take_empty_inputs(name: str, opset: int, axis: int) -> None:
    spec = custom_ops.get(name)
    for whole in spec.examples():
        first = whole.inputs[0]
        if first is None or first.ndim < 3 or first.shape[0] == 1:
            continue
        example = emptied(whole, axis)
        inputs = [None if a is None else ir.val(f"i{k}", FLOAT, a.shape) for k, a in enumerate(example.inputs)]
        node, function = custom_ops.make(name, inputs, example.num_outputs, example.attrs, opset=opset, dtype=FLOAT)
        for index, value in enumerate(node.outputs):
            value.name = f"y{index}"
        for value in inputs:  # the body must not depend on knowing which size is zero
            if value is not None:
                value.shape = ir.Shape([None if d == 0 else d for d in value.shape or ()])
        graph = ir.Graph([v for v in inputs if v is not None], node.outputs, nodes=[node], opset_imports={"": opset})
        graph.name = "empty"
        model = ir.Model(graph, ir_version=10)
        custom_ops.install(model, [function])
        y, *_ = run(ir.to_proto(model), {f"i{k}": a for k, a in enumerate(example.inputs) if a is not None})
        assert y.size == 0 and y.shape[axis] == 0 and y.ndim == 3, example.name
