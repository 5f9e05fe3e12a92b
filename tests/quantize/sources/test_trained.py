"""Models trained with quantized weights, as tools write them: `quantize` gives 4-bit weights of the same codes."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import cuvil_onnx
from tests.rules.rule_testing import ops, run

K, N = 128, 48
CONSTANTS = {"lo": -8, "hi": 7}


def export(form: str, opset: int) -> tuple[onnx.ModelProto, np.ndarray]:
    """One layer whose weight lies on a grid of 4 bits a column, and that weight [K, N]."""
    rng = np.random.default_rng(7)
    codes = rng.integers(-8, 8, (K, N)).astype(np.int8)
    steps = rng.uniform(0.01, 0.02, N).astype(np.float32)
    floats = codes * steps * rng.uniform(0.99, 1.01, (K, N)).astype(np.float32)  # training keeps more than the grid
    arrays = {"w": floats, "s": steps, "q": codes, "z": np.zeros(N, np.int8)}
    kind = np.int8 if form == "clipped" else np.float32
    arrays |= {name: np.array(value, kind) for name, value in CONSTANTS.items()}
    text = {
        "bytes": "v = DequantizeLinear<axis=1>(q, s, z)",
        "clipped": "i = QuantizeLinear<axis=1>(w, s, z) c = Clip(i, lo, hi) v = DequantizeLinear<axis=1>(c, s, z)",
        "written out": "d = Div(w, s) r = Round(d) c = Clip(r, lo, hi) v = Mul(c, s)",
    }[form]
    parsed = onnx.parser.parse_graph(f"g (float[M,{K}] x) => (float[M,{N}] y) {{ {text} y = MatMul(x, v) }}")
    used = {name for node in parsed.node for name in node.input}
    parsed.initializer.extend(numpy_helper.from_array(a, n) for n, a in arrays.items() if n in used)
    made = helper.make_model(parsed, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    onnx.checker.check_model(made)
    return made, codes


@pytest.mark.parametrize("form", ["bytes", "clipped", "written out"])
@pytest.mark.parametrize("opset", [13, 17, 21])
def test_codes_come_out_as_they_were_trained(form, opset):
    made, codes = export(form, opset)
    result = cuvil_onnx.quantize(made, "rtn")
    assert ops(result.model) == {"cuvil::MatMulInt4": 1}
    (held,) = (i for i in result.model.graph.initializer if i.data_type == TensorProto.INT4)
    np.testing.assert_array_equal(numpy_helper.to_array(held).astype(np.int8), codes)
    x = {"x": np.random.default_rng(0).standard_normal((3, K)).astype(np.float32)}
    np.testing.assert_allclose(run(result.model, x)[0], run(made, x, plain=True)[0], rtol=1e-5, atol=1e-5)


def test_for_other_runtimes_they_stay_as_they_are():
    made, _ = export("bytes", 21)
    result = cuvil_onnx.quantize(made, "rtn", format="matmulnbits")
    assert ops(result.model) == {"DequantizeLinear": 1, "MatMul": 1}
