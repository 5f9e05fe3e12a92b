"""Every example of every op: the kernel on the GPU against the function body on ONNX Runtime's CPU provider."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest

import custom_ops
from custom_ops import testing
from custom_ops.spec import Example, OpSpec

EP = "CuvilExecutionProvider"
EXAMPLES = [pytest.param(s, e, id=f"{s.name}-{e.name}") for s in custom_ops.specs().values() for e in s.examples()]


@pytest.fixture(scope="module")
def provider() -> str:
    """The execution provider's name; skips where it or a GPU is missing."""
    cuvil_onnx = pytest.importorskip("cuvil_onnx")
    if EP not in ort.get_available_providers():
        register = getattr(cuvil_onnx, "register", None)
        try:
            if register is not None:
                register()
        except Exception as error:
            pytest.skip(f"{EP} cannot be registered: {error}")
    if not [d for d in ort.get_ep_devices() if d.ep_name == EP]:
        pytest.skip(f"no device of {EP}")
    return EP


def run(model: bytes, feeds: dict[str, np.ndarray], provider: str) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    if provider != "CPUExecutionProvider":
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    session = ort.InferenceSession(model, options, providers=[provider])
    assert session.get_providers()[0] == provider
    session.disable_fallback()
    return session.run(None, feeds)


@pytest.mark.parametrize("dtype", [ir.DataType.FLOAT, ir.DataType.FLOAT16], ids=["float32", "float16"])
@pytest.mark.parametrize(("spec", "example"), EXAMPLES)
def test_kernel_equals_body(spec: OpSpec, example: Example, dtype: ir.DataType, provider: str) -> None:
    if dtype == ir.DataType.FLOAT16 and not example.half:
        pytest.skip("the example is beyond float16")
    case = testing.build(spec, example, opset=max(17, example.opset), dtype=dtype)
    model = case.model.SerializeToString()
    found = run(model, case.feeds, provider)
    body = run(model, case.feeds, "CPUExecutionProvider")
    # float32: sums of at most 200 terms in another order. float16: the kernel rounds once where the body rounds after
    # each op, a few units of 2^-11.
    half = dtype == ir.DataType.FLOAT16
    loose = example.name in ("large_mean", "large_scores")
    rtol, atol = (4e-3, 8e-3) if half else (2e-5, 3e-4 if loose else 2e-5)
    for kernel, plain, exact in zip(found, body, case.expected, strict=True):
        assert kernel.shape == plain.shape and kernel.dtype == plain.dtype
        np.testing.assert_allclose(kernel, plain, rtol=rtol, atol=atol)
        np.testing.assert_allclose(kernel, exact, rtol=rtol, atol=atol)
