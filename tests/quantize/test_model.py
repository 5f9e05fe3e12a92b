"""cuvil_onnx.quantize on whole models: the result computes with the weights that its codes stand for."""

from __future__ import annotations

import itertools
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import cuvil_onnx
from cuvil_onnx.errors import OptionError
from tests.quantize.quantize_testing import graph, ops, product, rows, run, session, weight, weights_of
from tests.rules.test_qkv_packing import made as packed_model

# Sums of at most 512 terms of order 0.1 to 1 in float32: 512 * 2^-24 = 3e-5 at worst, far less on average.
FLOAT = {"rtol": 1e-4, "atol": 2e-5}
# float16 weights and results are rounded once each (2^-11), results are of order 4.
HALF = {"rtol": 2e-3, "atol": 8e-3}


@pytest.mark.parametrize(("k", "n"), [(64, 96), (100, 47), (31, 7), (256, 32), (300, 33), (1, 5)])
@pytest.mark.parametrize("group", [16, 32, 64, 128, 256, -1])
@pytest.mark.parametrize("symmetric", [True, False])
def test_every_group_size_and_shape(k: int, n: int, group: int, symmetric: bool) -> None:
    w, x = weight(k, n), rows(3, k)
    result = cuvil_onnx.quantize(product(w), group_size=group, symmetric=symmetric, include=["*"], verify=True)
    assert ops(result.model) == {"cuvil::MatMulInt4": 1}
    onnx.checker.check_model(result.model, full_check=True)
    (rounded,) = weights_of(result.model)
    np.testing.assert_allclose(run(result.model, x=x)[0], x.astype(np.float64) @ rounded, **FLOAT)
    report = result.report.quantization
    assert report is not None and len(report.layers) == 1
    error = np.linalg.norm(rounded - w) / np.linalg.norm(w)
    # 4 bits over a range of some 5 standard deviations: a step of about 0.33, its 12th root 0.1.
    assert report.layers[0].relative_error == pytest.approx(error, rel=1e-3, abs=1e-6) and error < 0.16


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("symmetric", [True, False])
def test_types_of_16_bits(bits: int, dtype: str, symmetric: bool) -> None:
    kind = np.dtype(np.float16) if dtype == "float16" else np.dtype(ml_dtypes.bfloat16)
    w = weight(96, 40).astype(kind)
    model = product(w)
    if dtype == "bfloat16":  # ONNX Runtime's Python takes no such arrays
        model = graph(
            "(float[M,96] x) => (float[M,40] y) { a = Cast<to=16>(x) b = MatMul(a, w) y = Cast<to=1>(b) }", w=w
        )
    result = cuvil_onnx.quantize(model, bits=bits, group_size=32, symmetric=symmetric, include=["*"])
    (rounded,) = weights_of(result.model)
    x = rows(5, 96, dtype=np.float16 if dtype == "float16" else np.float32)
    expected = x.astype(kind).astype(np.float64) @ rounded
    tolerance = HALF if dtype == "float16" else {"rtol": 2e-2, "atol": 3e-2}
    np.testing.assert_allclose(run(result.model, x=x)[0].astype(np.float64), expected, **tolerance)
    assert np.linalg.norm(rounded - w.astype(np.float64)) / np.linalg.norm(w.astype(np.float64)) < 0.12


@pytest.mark.parametrize("scheme", ["rtn", "rtn:clip=1"])
@pytest.mark.parametrize("group", [16, 32, 64, 128, 256, -1])
@pytest.mark.parametrize("bits", [4, 8])
def test_onnx_runtime_fuses_the_body(tmp_path: Path, scheme: str, group: int, bits: int) -> None:
    for symmetric, dtype in itertools.product((True, False), (np.float32, np.float16)):
        w = weight(300, 48, dtype=dtype)
        kind = "float" if dtype == np.float32 else "float16"
        text = f"({kind}[M,300] x) => ({kind}[M,48] y) {{ p = MatMul(x, w) y = Add(p, b) }}"
        model = graph(text, w=w, b=weight(48, dtype=dtype))
        result = cuvil_onnx.optimize(
            model, quantize=cuvil_onnx.quantize_settings(scheme, group_size=group, symmetric=symmetric, bits=bits)
        )
        assert ops(result.model) == {"cuvil::MatMulInt4": 1}
        file = str(tmp_path / "optimized.onnx")
        session(result.model, file)
        found = ops(onnx.load(file))
        assert found.pop("com.microsoft::MatMulNBits") == 1 and set(found) <= {"Cast"}


def test_half_scales_of_a_float_model_that_becomes_half() -> None:
    w, x = weight(128, 64), rows(4, 128)
    result = cuvil_onnx.optimize(product(w), quantize="rtn:g32:sym", precision="fp16", verify=True)
    assert ops(result.model) == {"Cast": 2, "cuvil::MatMulInt4": 1}
    (rounded,) = weights_of(result.model)
    scales = next(t for t in result.model.graph.initializer if "scales" in t.name)
    assert scales.data_type == TensorProto.FLOAT16
    np.testing.assert_allclose(run(result.model, x=x)[0], x.astype(np.float16).astype(np.float64) @ rounded, **HALF)
    assert "rtn" in result.report.quantization.label  # type: ignore[union-attr]


GEMMS = {
    "plain": ("y = Gemm(x, w)", lambda x, w, c: x @ w),
    "bias": ("y = Gemm(x, w, c)", lambda x, w, c: x @ w + c),
    "alpha_beta": ("y = Gemm<alpha=0.5, beta=2.0>(x, w, c)", lambda x, w, c: 0.5 * x @ w + 2 * c),
    "beta_zero": ("y = Gemm<beta=0.0>(x, w, c)", lambda x, w, c: x @ w),
    "trans_b": ("y = Gemm<transB=1>(x, wt, c)", lambda x, w, c: x @ w + c),
    "trans_a": ("y = Gemm<transA=1>(xt, w, c)", lambda x, w, c: x @ w + c),
    "both": ("y = Gemm<transA=1, transB=1, alpha=-2.0>(xt, wt, c)", lambda x, w, c: -2 * x @ w + c),
    "scalar": ("y = Gemm(x, w, one)", lambda x, w, c: x @ w + 0.5),
    "column": ("y = Gemm<beta=3.0>(x, w, tall)", lambda x, w, c: x @ w + 3 * np.arange(4.0)[:, None]),
    "computed": ("d = Abs(z) y = Gemm<beta=0.5>(x, w, d)", lambda x, w, c: x @ w + 0.5),
    "full": ("y = Gemm(x, w, z)", lambda x, w, c: x @ w + 1),
}


@pytest.mark.parametrize("form", ["cuvil", "matmulnbits"])
@pytest.mark.parametrize("case", GEMMS)
def test_gemm_with_any_arguments(case: str, form: str) -> None:
    body, reference = GEMMS[case]
    w, c, x = weight(96, 40), weight(40, seed=1), rows(4, 96)
    constants = {"w": w, "wt": w.T.copy(), "c": c, "one": np.float32(0.5), "tall": np.arange(4, dtype="f4")[:, None]}
    used = {name: a for name, a in constants.items() if f" {name})" in body or f" {name}," in body}
    head = "(float[4,96] x, float[96,4] xt, float[4,40] z) => (float[4,40] y)"
    model = graph(f"{head} {{ {body} }}", **used)
    before = model.SerializeToString(deterministic=True)
    result = cuvil_onnx.quantize(model, group_size=32, include=["*"], format=form, verify=True)
    assert model.SerializeToString(deterministic=True) == before
    assert ops(result.model)["cuvil::MatMulInt4" if form == "cuvil" else "com.microsoft::MatMulNBits"] == 1
    found = run(result.model, x=x, xt=x.T.copy(), z=np.ones((4, 40), np.float32))[0]
    expected = reference(x.astype(np.float64), w.astype(np.float64), c.astype(np.float64))
    # A step is some 0.5 / 15; its uniform error over 96 rows of inputs of order 1 sums to 0.1 a standard deviation, and
    # alpha is 2 at most: 0.6 is three deviations; a wrong transposition gives errors of 4.
    assert np.abs(found - expected).max() < 0.6
    if form == "cuvil":
        factor = {"alpha_beta": 0.5, "both": -2.0}.get(case, 1.0)
        (rounded,) = weights_of(result.model)
        np.testing.assert_allclose(found, reference(x.astype(np.float64), rounded / factor, c), **FLOAT)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("group", [16, 32, 128, -1])
@pytest.mark.parametrize(("k", "n"), [(64, 24), (100, 7), (80, 5), (300, 6)])
def test_matmulnbits_computes_the_same(k: int, n: int, group: int, symmetric: bool, bits: int) -> None:
    w, x = weight(k, n), rows(2, 3, k)
    model = graph(f"(float[A,B,{k}] x) => (float[A,B,{n}] y) {{ y = MatMul(x, w) }}", w=w)
    how = {"bits": bits, "group_size": group, "symmetric": symmetric, "include": ["*"], "verify": True}
    ours = cuvil_onnx.quantize(model, **how)
    plain = cuvil_onnx.quantize(model, format="matmulnbits", **how)
    assert ops(plain.model) == {"com.microsoft::MatMulNBits": 1} and not plain.model.functions
    (rounded,) = weights_of(ours.model)
    np.testing.assert_allclose(run(plain.model, x=x)[0], x.astype(np.float64) @ rounded, **FLOAT)


def test_experts_are_quantized_one_by_one() -> None:
    w, x = weight(3, 64, 40), rows(3, 5, 64)
    for symmetric in (True, False):
        result = cuvil_onnx.quantize(product(w), group_size=32, symmetric=symmetric, include=["*"], verify=True)
        assert ops(result.model) == {"cuvil::MatMulInt4": 1}
        (rounded,) = weights_of(result.model)
        np.testing.assert_allclose(run(result.model, x=x)[0], x.astype(np.float64) @ rounded, **FLOAT)
        singles = [cuvil_onnx.quantize(product(m), group_size=32, symmetric=symmetric, include=["*"]) for m in w]
        np.testing.assert_array_equal(rounded, np.stack([weights_of(s.model)[0] for s in singles]))


def test_weights_inside_subgraphs() -> None:
    w = weight(64, 96)
    branch = [helper.make_node("MatMul", ["x", "w"], ["p"], name="inner")]
    other = [helper.make_node("MatMul", ["x", "v"], ["q"], name="own")]
    info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("p", "q")]
    v = onnx.numpy_helper.from_array(weight(64, 96, seed=3), "v")
    then, orelse = helper.make_graph(branch, "a", [], info[:1]), helper.make_graph(other, "b", [], info[1:], [v])
    nodes = [
        helper.make_node("If", ["c"], ["r"], then_branch=then, else_branch=orelse),
        helper.make_node("MatMul", ["x", "w"], ["s"], name="outer"),
        helper.make_node("Add", ["r", "s"], ["y"]),
    ]
    inputs = [
        helper.make_tensor_value_info("c", TensorProto.BOOL, []),
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["M", 64]),
    ]
    output = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["M", 96])]
    tensors = [onnx.numpy_helper.from_array(w, "w")]
    model = helper.make_model(
        helper.make_graph(nodes, "g", inputs, output, tensors),
        opset_imports=[helper.make_opsetid("", 21)],
        ir_version=8,
    )
    result = cuvil_onnx.quantize(model, group_size=32, verify=True)
    assert ops(result.model)["cuvil::MatMulInt4"] == 3 and "MatMul" not in ops(result.model)
    x = rows(3, 64)
    (rounded,) = weights_of(result.model)
    found = run(result.model, c=np.array(True), x=x)[0]
    np.testing.assert_allclose(found, 2 * x.astype(np.float64) @ rounded, **FLOAT)
    assert np.abs(run(result.model, c=np.array(False), x=x)[0] - x @ w - x @ weight(64, 96, seed=3)).max() < 0.5
    assert len(result.report.quantization.layers) == 2  # type: ignore[union-attr]


def test_packed_projections() -> None:
    model = packed_model(**{f"w{n}": weight(24, 32, seed=i) for i, n in enumerate("qkv")})
    how = cuvil_onnx.quantize_settings("rtn:g32", include=["*"])
    result = cuvil_onnx.optimize(model, quantize=how)
    found = ops(result.model)
    assert found["cuvil::MatMulInt4"] == 1 and found["cuvil::Attention"] == 1 and "MatMul" not in found
    assert [layer.shape for layer in result.report.quantization.layers] == [(24, 96)]  # type: ignore[union-attr]
    only = cuvil_onnx.optimize(model, quantize=cuvil_onnx.quantize_settings("rtn", include=["*"], exclude=["kp"]))
    assert "excluded" in [s.reason for s in only.report.quantization.skipped]  # type: ignore[union-attr]


def test_bias_residual_and_activation_of_fused_products_stay() -> None:
    body = "p = MatMul(x, w) a = Add(p, b) c = Add(a, z) y = Relu(c)"
    w, b, x, z = weight(64, 96), weight(96), rows(2, 3, 64), rows(2, 3, 96)
    model = graph(f"(float[B,S,64] x, float[B,S,96] z) => (float[B,S,96] y) {{ {body} }}", w=w, b=b)
    fused = cuvil_onnx.optimize(model)
    assert ops(fused.model) == {"cuvil::FusedMatMul": 1}
    for result in (
        cuvil_onnx.quantize(fused.model, group_size=32, verify=True),
        cuvil_onnx.optimize(model, quantize="rtn:g32", verify=True),
    ):
        assert ops(result.model) == {"cuvil::MatMulInt4": 1}
        (rounded,) = weights_of(result.model)
        expected = np.maximum(x.astype(np.float64) @ rounded + b + z, 0)
        np.testing.assert_allclose(run(result.model, x=x, z=z)[0], expected, **FLOAT)


def test_what_is_left_alone_is_said() -> None:
    body = """
        a = MatMul(x, d) b = MatMul(c, x) e = MatMul(x, small) f = MatMul(x, v) g = MatMul(x, big)
        h = MatMul(x, big2)
    """
    outputs = "float[64,64] a, float[8,64] b, float[64,8] e, float[64] f, float[64,96] g, float[64,96] h"
    weights = {"c": weight(8, 64), "small": weight(64, 8), "v": weight(64), "big": weight(64, 96)}
    text = f"(float[64,64] x, float[64,64] d) => ({outputs}) {{ {body} }}"
    model = graph(text, big2=weight(64, 96, seed=1), **weights)
    result = cuvil_onnx.quantize(model, exclude=["big2"])
    reasons = {s.name: s.reason for s in result.report.quantization.skipped}  # type: ignore[union-attr]
    assert reasons["b"] == "the constant is the left operand" and "512 elements" in reasons["e"]
    assert "rank 1" in reasons["f"] and reasons["h"] == "excluded" and "a" not in reasons
    assert [layer.name for layer in result.report.quantization.layers] == ["g"]  # type: ignore[union-attr]
    for text in ("not quantized: b: the constant", "1 weights as rtn:w4a16:g128"):
        assert text in str(result)
    assert result.report.as_dict()["quantization"]["layers"][0]["shape"] == (64, 96)


def test_overrides_and_includes() -> None:
    body = "a = MatMul(x, u) b = MatMul(x, v) y = Add(a, b)"
    model = graph(
        f"(float[M,64] x) => (float[M,96] y) {{ {body} }}", u=weight(64, 96, seed=1), v=weight(64, 96, seed=2)
    )
    result = cuvil_onnx.quantize(model, overrides={"u": 8, "*": 16})
    assert ops(result.model) == {"cuvil::MatMulInt4": 1, "MatMul": 1, "Add": 1}
    assert [layer.bits for layer in result.report.quantization.layers] == [8]  # type: ignore[union-attr]
    only = cuvil_onnx.quantize(model, include=["b"])
    assert [layer.name for layer in only.report.quantization.layers] == ["b"]  # type: ignore[union-attr]
    for wrong in ({"include": ["nix"]}, {"exclude": ["x"]}, {"overrides": {"nix": 8}}):
        with pytest.raises(OptionError, match="names no product"):
            cuvil_onnx.quantize(model, **wrong)


def test_equal_seeds_give_equal_files_and_a_second_run_changes_nothing() -> None:
    model = product(weight(128, 96))
    one, two = (cuvil_onnx.quantize(model, "rtn:clip=1").model.SerializeToString(deterministic=True) for _ in range(2))
    assert one == two
    again = cuvil_onnx.quantize(onnx.load_from_string(one))
    assert "quantized already" in again.report.quantization.skipped[0].reason  # type: ignore[union-attr]
    assert not again.report.quantization.layers  # type: ignore[union-attr]


def test_clipping_lowers_the_error() -> None:
    model = product(weight(512, 64))
    errors = [cuvil_onnx.quantize(model, s).report.quantization.layers[0].relative_error for s in ("rtn", "rtn:clip=1")]  # type: ignore[union-attr]
    assert errors[1] < 0.97 * errors[0]
