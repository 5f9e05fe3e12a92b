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


def check(case: testing.Case, example: Example, dtype: ir.DataType, session: ort.InferenceSession) -> None:
    cpu = ort.InferenceSession(case.model.SerializeToString(), providers=["CPUExecutionProvider"])
    # float32: sums of at most 200 terms in another order. float16: the kernel rounds once where the body rounds after
    # each op, a few units of 2^-11.
    loose = example.name in ("large_mean", "large_scores")
    rtol, atol = (4e-3, 8e-3) if dtype == ir.DataType.FLOAT16 else (2e-5, 3e-4 if loose else 2e-5)
    body = cpu.run(None, case.feeds)
    for _ in range(2):  # kernels choose algorithms in the first run
        found = session.run(None, case.feeds)
        for kernel, plain, exact in zip(found, body, case.expected, strict=True):
            assert kernel.shape == plain.shape and kernel.dtype == plain.dtype
            np.testing.assert_allclose(kernel, plain, rtol=rtol, atol=atol)
            np.testing.assert_allclose(kernel, exact, rtol=rtol, atol=atol)


@pytest.mark.parametrize("dtype", [ir.DataType.FLOAT, ir.DataType.FLOAT16], ids=["float32", "float16"])
@pytest.mark.parametrize(("spec", "example"), EXAMPLES)
def test_kernel_equals_body(
    spec: OpSpec, example: Example, dtype: ir.DataType, ep_session: Callable[..., ort.InferenceSession]
) -> None:
    if dtype == ir.DataType.FLOAT16 and not example.half:
        pytest.skip("the example is beyond float16")
    for constant in {(), WEIGHTS.get(spec.name, ())}:
        case = testing.build(spec, example, opset=max(17, example.opset), dtype=dtype, constant=constant)
        check(case, example, dtype, ep_session(case.model))
