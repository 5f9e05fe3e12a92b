"""A weight that several nodes read is quantized once, whatever they do with it."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import cuvil_onnx
from tests.quantize.quantize_testing import graph, ops, rows, run, weight, weights_of

IDS = np.array([[0, 95, 7], [-1, 3, 3]], np.int64)
HEAD = "(int64[B,S] ids) => (float[B,S,64] h, float[B,S,96] y)"


def tied(how: str, v: int = 96, d: int = 64, dtype: Any = np.float32) -> tuple[onnx.ModelProto, np.ndarray]:
    """A table [v, d] that is looked up and, transposed, the weight of the head."""
    table = weight(v, d, dtype=dtype)
    kind = "float" if dtype == np.float32 else "float16"
    head = f"(int64[B,S] ids) => ({kind}[B,S,{d}] h, {kind}[B,S,{v}] y)"
    bodies = {
        "transpose": "h = Gather(e, ids) t = Transpose<perm=[1,0]>(e) y = MatMul(h, t)",
        "copy": "h = Gather(e, ids) y = MatMul(h, t)",
        "identity": "i = Identity(e) h = Gather(i, ids) t = Transpose<perm=[1,0]>(i) y = MatMul(h, t)",
    }
    constants = {"e": table} | ({"t": table.T.copy()} if how == "copy" else {})
    return graph(f"{head} {{ {bodies[how]} }}", **constants), table


def floats(model: onnx.ModelProto) -> int:
    """Elements of float initializers beyond scales: what was not quantized."""
    kept = [t for t in model.graph.initializer if t.data_type in (1, 10) and "scales" not in t.name]
    return int(sum(np.prod(t.dims) for t in kept))


@pytest.mark.parametrize("how", ["transpose", "copy", "identity"])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("group", [16, 32, -1])
@pytest.mark.parametrize("bits", [4, 8])
def test_table_and_head_share_codes(how: str, symmetric: bool, group: int, bits: int) -> None:
    model, table = tied(how)
    result = cuvil_onnx.quantize(model, bits=bits, group_size=group, symmetric=symmetric, verify=True)
    assert floats(result.model) == 0 and ops(result.model)["cuvil::MatMulInt4"] == 1
    codes = [t for t in result.model.graph.initializer if t.data_type in (2, 3, 21, 22) and np.prod(t.dims) == 96 * 64]
    assert len(codes) == 1
    (rounded,) = weights_of(result.model)
    h, y = run(result.model, ids=IDS)
    expected = rounded.T[IDS]
    np.testing.assert_allclose(h, expected, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(y, expected @ rounded, rtol=1e-4, atol=2e-5)
    assert np.linalg.norm(rounded - table.T) < (0.13 if bits == 4 else 0.02) * np.linalg.norm(table)
    assert "shared with" in result.report.quantization.layers[0].note  # type: ignore[union-attr]


@pytest.mark.parametrize(("v", "d"), [(97, 50), (33, 130), (4097, 33)])
def test_odd_sizes_and_half(v: int, d: int) -> None:
    for dtype, group in ((np.float32, 32), (np.float16, 64), (np.float32, -1)):
        model, _ = tied("transpose", v, d, dtype)
        result = cuvil_onnx.quantize(model, group_size=group, include=["*"])
        (rounded,) = weights_of(result.model)
        h, _ = run(result.model, ids=IDS % v)
        np.testing.assert_allclose(h, rounded.T[IDS % v], rtol=2e-3, atol=1e-6)
        assert floats(result.model) == 0


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("d", [64, 50])
def test_matmulnbits(bits: int, symmetric: bool, d: int) -> None:
    model, _ = tied("transpose", 96, d)
    how = {"bits": bits, "group_size": 32, "symmetric": symmetric, "include": ["*"]}
    result = cuvil_onnx.quantize(model, format="matmulnbits", verify=True, **how)
    (rounded,) = weights_of(cuvil_onnx.quantize(model, **how).model)
    h, y = run(result.model, ids=IDS)
    whole = d % 32 == 0  # GatherBlockQuantized cannot look up rows that end within a byte-aligned group
    np.testing.assert_allclose(h, rounded.T[IDS], rtol=1e-6, atol=1e-7) if whole else None
    np.testing.assert_allclose(y, h.astype(np.float64) @ rounded, rtol=1e-4, atol=2e-5)
    assert ops(result.model)["com.microsoft::GatherBlockQuantized"] == int(whole)
    if not whole:
        assert "not a multiple" in result.report.quantization.skipped[-1].reason  # type: ignore[union-attr]


def test_tables_alone_and_on_demand_stay_float() -> None:
    table = weight(96, 64)
    alone = graph("(int64[B,S] ids) => (float[B,S,64] h) { h = Gather(e, ids) }", e=table)
    assert ops(cuvil_onnx.quantize(alone).model) == {"Gather": 1}
    model, _ = tied("transpose")
    result = cuvil_onnx.quantize(model, embeddings=False, verify=True)
    assert ops(result.model)["Gather"] == 1 and floats(result.model) == table.size


def test_weight_that_another_node_reads_stays_for_it() -> None:
    w = weight(64, 96)
    body = "p = MatMul(x, w) s = Add(w, g) y = MatMul(x, s) z = Add(p, y)"
    model = graph(f"(float[M,64] x, float[64,96] g) => (float[M,96] z) {{ {body} }}", w=w)
    result = cuvil_onnx.quantize(model, verify=True)
    x, g = rows(3, 64), rows(64, 96)
    (rounded,) = weights_of(result.model)
    expected = x.astype(np.float64) @ rounded + x.astype(np.float64) @ (w.astype(np.float64) + g)
    np.testing.assert_allclose(run(result.model, x=x, g=g)[0], expected, rtol=1e-4, atol=1e-4)


def test_one_weight_both_ways_round() -> None:
    w = weight(64, 64)
    body = "t = Transpose<perm=[1,0]>(w) a = MatMul(x, w) b = MatMul(a, t) c = MatMul(b, w)"
    model = graph(f"(float[M,64] x) => (float[M,64] c) {{ {body} }}", w=w)
    result = cuvil_onnx.quantize(model, group_size=32, verify=True, include=["*"])
    layers = result.report.quantization.layers  # type: ignore[union-attr]
    assert len(layers) == 2 and ops(result.model)["cuvil::MatMulInt4"] == 3
    one, two, three = weights_of(result.model)
    np.testing.assert_array_equal(one, three)
    x = rows(3, 64)
    np.testing.assert_allclose(run(result.model, x=x)[0], x.astype(np.float64) @ one @ two @ one, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("form", ["cuvil", "matmulnbits"])
def test_half_precision_takes_lookups_and_products_along(form: str) -> None:
    model, _ = tied("transpose")
    how = cuvil_onnx.quantize_settings("rtn:g32", format=form)
    result = cuvil_onnx.optimize(model, quantize=how, precision="fp16", verify=True)
    found = ops(result.model)
    assert found["Cast"] == 2 and floats(result.model) == 0  # of the two outputs
    assert all(t.data_type != onnx.TensorProto.FLOAT for t in result.model.graph.initializer)
    ours = cuvil_onnx.optimize(model, quantize="rtn:g32", precision="fp16")
    (rounded,) = weights_of(ours.model)
    h, y = run(result.model, ids=IDS)
    np.testing.assert_allclose(h, rounded.T[IDS], rtol=1e-3, atol=1e-6)  # float16 has 11 bits
    np.testing.assert_allclose(y, rounded.T[IDS] @ rounded, rtol=2e-3, atol=2e-3)
