"""Every example of every op: the kernel on the GPU against the function body on ONNX Runtime's CPU provider."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest

import custom_ops
from custom_ops import testing
from custom_ops.spec import Example, OpSpec

EXAMPLES = [pytest.param(s, e, id=f"{s.name}-{e.name}") for s in custom_ops.specs().values() for e in s.examples()]
# The inputs that are weights in real models: kernels see them when the session is built, and may keep packed copies.
WEIGHTS = {"FusedConv": (1, 2), "FusedMatMul": (1, 2), "LayerNorm": (1, 2, 4)}


# float32: sums of at most 200 terms in another order. 16 bits: the kernel rounds once where the body rounds after each
# op, a few units of 2^-11 or 2^-8 of values up to 8.
TOLERANCE = {
    ir.DataType.FLOAT: (2e-5, 2e-5),
    ir.DataType.FLOAT16: (4e-3, 8e-3),
    ir.DataType.BFLOAT16: (2e-2, 4e-2),
}

# The body of a quantized product rounds each weight to bfloat16 twice, by 2^-9: after the scale and after the offset.
# Over the examples, the sum of |a| times the larger of the two is at most 26.
SUM_OF_BFLOAT16 = 26 * 2 * 2.0**-9


def check(case: testing.Case, example: Example, dtype: ir.DataType, session: ort.InferenceSession) -> None:
    # ONNX Runtime's CPU provider has no bfloat16 kernels for the original nodes of a Pointwise: the reference decides.
    bodiless = dtype == ir.DataType.BFLOAT16 and example.region is not None
    model = case.model.SerializeToString()
    options = ort.SessionOptions()
    # In float32, not in the 8-bit integers that ONNX Runtime takes for activations of quantized products.
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    cpu = None if bodiless else ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    loose = example.name in ("large_mean", "large_scores")
    rtol, atol = (2e-5, 3e-4) if loose else TOLERANCE[dtype]
    if dtype == ir.DataType.BFLOAT16 and any(n.op_type == "MatMulInt4" for n in case.model.graph.node):
        atol = max(atol, SUM_OF_BFLOAT16)
    body = case.expected if cpu is None else cpu.run(None, case.feeds)
    for _ in range(2):  # kernels choose algorithms in the first run
        found = session.run(None, case.feeds)
        for kernel, plain, exact in zip(found, body, case.expected, strict=True):
            assert kernel.shape == plain.shape and (cpu is None or kernel.dtype == plain.dtype)
            np.testing.assert_allclose(kernel, plain, rtol=rtol, atol=atol)
            np.testing.assert_allclose(kernel, exact, rtol=rtol, atol=atol)


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=lambda d: d.name.lower())
@pytest.mark.parametrize(("spec", "example"), EXAMPLES)
def test_kernel_equals_body(
    spec: OpSpec, example: Example, dtype: ir.DataType, ep_session: Callable[..., ort.InferenceSession]
) -> None:
    if dtype != ir.DataType.FLOAT and not example.half:
        pytest.skip("the example is beyond 16-bit types")
    opset = 22 if dtype == ir.DataType.BFLOAT16 else 17  # the first whose elementwise ops all take bfloat16
    for constant in {(), WEIGHTS.get(spec.name, ())}:
        case = testing.build(spec, example, opset=max(opset, example.opset), dtype=dtype, constant=constant)
        check(case, example, dtype, ep_session(case.model))
