"""fp32 -> fp16: interface kept, few casts, and nothing in fp16 that does not survive it."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from cuvil_onnx.api import Optimized, optimize
from cuvil_onnx.errors import UnsupportedModelError
from cuvil_onnx.verify import HALF, compare
from tests.passes.pass_testing import made, normal, ops, run

MLP = "(float[2,8] x) => (float[2,4] y) { a = MatMul(x, w) b = Add(a, c) d = Relu(b) y = MatMul(d, v) }"
MLP_WEIGHTS = {"w": normal(8, 16), "c": normal(16), "v": normal(16, 4)}


def half(model: onnx.ModelProto, precision: str = "fp16", **options: object) -> Optimized:
    return optimize(model, precision=precision, level="basic", verify=False, **options)


def types(model: onnx.ModelProto) -> dict[str, int]:
    return {t.name: t.data_type for t in model.graph.initializer}


def close(model: onnx.ModelProto, result: Optimized, **inputs: np.ndarray) -> None:
    for want, got in zip(run(model, **inputs), run(result.model, **inputs), strict=True):
        assert not compare(got, want, HALF), compare(got, want, HALF)


def test_only_the_border_is_cast() -> None:
    model = made(MLP, **MLP_WEIGHTS)
    result = half(model)
    assert ops(result.model) == {"Cast": 2, "MatMul": 2, "Add": 1, "Relu": 1}
    assert set(types(result.model).values()) == {onnx.TensorProto.FLOAT16}
    assert [i.type.tensor_type.elem_type for i in (*result.model.graph.input, *result.model.graph.output)] == [1, 1]
    close(model, result, x=normal(2, 8))


def test_bf16() -> None:
    result = half(made(MLP, **MLP_WEIGHTS), "bf16")
    assert set(types(result.model).values()) == {onnx.TensorProto.BFLOAT16}
    onnx.checker.check_model(result.model)


def test_bf16_needs_an_opset_that_has_it() -> None:
    with pytest.raises(UnsupportedModelError, match="opset 12 has no bfloat16, 13 is required"):
        half(made(MLP, opset=12, **MLP_WEIGHTS), "bf16")


def test_weights_beyond_the_range_keep_their_node() -> None:
    model = made(MLP, **{**MLP_WEIGHTS, "w": normal(8, 16) * 1e5})
    result = half(model)
    assert types(result.model)["w"] == onnx.TensorProto.FLOAT
    assert run(result.model, x=normal(2, 8))[0].dtype == np.float32


def test_epsilons_that_would_vanish_keep_their_node() -> None:
    body = "a = MatMul(x, w) q = Abs(a) e = Add(q, eps) y = Div(a, e)"
    model = made(f"(float[2,8] x) => (float[2,16] y) {{ {body} }}", w=normal(8, 16), eps=np.float32(1e-12))
    result = half(model)
    inputs = np.zeros((2, 8), np.float32)
    assert np.isfinite(run(result.model, x=inputs)[0]).all(), "0 / (0 + 1e-12) is 0, not 0 / 0"


def test_masked_scores_stay_finite() -> None:
    """A row whose scores are all masked is uniform in float32; -inf everywhere would be NaN."""
    lowest = np.float32(np.finfo(np.float32).min)
    body = "n = Sub(one, m) b = Mul(n, low) s = MatMul(x, k) t = Add(s, b) p = Softmax<axis=-1>(t) y = MatMul(p, v)"
    model = made(
        f"(float[2,8] x, float[2,6] m) => (float[2,4] y) {{ {body} }}",
        one=np.float32(1),
        low=lowest,
        k=normal(8, 6) * 8,
        v=normal(6, 4),
    )
    mask = np.array([[1, 1, 1, 0, 0, 0], [0] * 6], np.float32)
    result = half(model)
    x = normal(2, 8) * 4
    (got,), (want,) = run(result.model, x=x, m=mask), run(model, x=x, m=mask)
    assert np.isfinite(got).all()
    assert not compare(got[0], want[0], HALF)


@pytest.mark.parametrize("square", ["Mul(d, d)", "Pow(d, two)"])
def test_squares_stay_in_float(square: str) -> None:
    body = f"d = MatMul(x, w) q = {square} m = ReduceMean<axes=[-1]>(q) y = Sqrt(m)"
    model = made(f"(float[2,8] x) => (float[2,1] y) {{ {body} }}", w=normal(8, 16) * 100, two=np.float32(2))
    close(model, half(model), x=normal(2, 8) * 10)


def test_positions_and_sizes_stay_in_float() -> None:
    body = "s = Shape<start=1>(x) f = Cast<to=1>(s) d = Mul(f, h) u = MatMul(x, w) e = Add(u, d) y = Relu(e)"
    model = made(f"(float[2,L] x) => (float[2,4] y) {{ {body} }}", w=normal(3001, 4) * 1e-3, h=np.float32(0.5))
    result = half(model)
    cast = next(n for n in result.model.graph.node if n.op_type == "Cast" and n.input[0] == "s")
    assert cast.attribute[0].i == onnx.TensorProto.FLOAT
    close(model, result, x=normal(2, 3001))


def test_subgraphs_stay_in_float() -> None:
    branches = (
        "then_branch = t () => (float[2,16] r) { r = Exp(a) }, else_branch = e () => (float[2,16] s) { s = Neg(a) }"
    )
    model = made(
        f"(float[2,8] x, bool c) => (float[2,4] y) {{ a = MatMul(x, w) b = If(c) <{branches}> y = MatMul(b, v) }}",
        w=normal(8, 16),
        v=normal(16, 4),
    )
    result = half(model)
    onnx.checker.check_model(result.model)
    for flag in (True, False):
        close(model, result, x=normal(2, 8) * 0.3, c=np.array(flag))


def test_resize_keeps_its_scales() -> None:
    model = made(
        "(float[1,2,4,4] x) => (float[1,2,8,8] y) { c = Conv(x, w) y = Resize(c, , s) }",
        w=normal(2, 2, 1, 1),
        s=np.array([1, 1, 2, 2], np.float32),
    )
    result = half(model)
    assert types(result.model)["s"] == onnx.TensorProto.FLOAT
    close(model, result, x=normal(1, 2, 4, 4))


def test_an_inner_output_is_cast_once() -> None:
    model = made(
        "(float[2,8] x) => (float[2,16] a, float[2,4] y) { a = MatMul(x, w) y = MatMul(a, v) }",
        w=normal(8, 16),
        v=normal(16, 4),
    )
    result = half(model)
    assert ops(result.model) == {"Cast": 3, "MatMul": 2}
    assert [o.name for o in result.model.graph.output] == ["a", "y"]
    close(model, result, x=normal(2, 8))


def test_models_that_are_half_already_stay_as_they_are() -> None:
    model = made("(float16[2,8] x) => (float16[2,8] y) { y = Relu(x) }")
    assert ops(half(model).model) == {"Relu": 1}


SEQUENCES = {
    "made": "a = MatMul(x, w) s = SequenceConstruct(a, x) y = SequenceAt(s, i)",
    "split": "a = MatMul(x, w) s = SplitToSequence<axis=0>(a, i1) y = SequenceAt(s, i)",
    "grown": "e = SequenceEmpty() a = MatMul(x, w) s = SequenceInsert(e, a) y = ConcatFromSequence<axis=0>(s)",
}


@pytest.mark.parametrize("kind", SEQUENCES)
def test_tensors_of_a_sequence_keep_their_type(kind: str) -> None:
    weights = {"w": normal(8, 8), "i": np.array(0), "i1": np.array(2)}
    model = made(f"(float[2,8] x) => (float[2,8] y) {{ {SEQUENCES[kind]} }}", **weights)
    close(model, half(model), x=normal(2, 8))


@pytest.mark.parametrize("reduction", ["add", "mul", "max"])
def test_scatters_that_accumulate_stay_in_float(reduction: str) -> None:
    body = f'a = MatMul(x, w) y = ScatterND<reduction="{reduction}">(a, i, u)'
    weights = {"w": normal(8, 8), "i": np.array([[0], [1], [0]]), "u": normal(3, 8)}
    model = made(f"(float[2,8] x) => (float[2,8] y) {{ {body} }}", opset=18, **weights)
    close(model, half(model), x=normal(2, 8))


def test_bits_are_read_from_floats() -> None:
    model = made("(float[2,8] x) => (int32[2,8] y) { a = Relu(x) y = BitCast<to=6>(a) }", opset=26, ir_version=13)
    onnx.checker.check_model(half(model).model, full_check=True)


FREQUENCIES = (1e4 ** -(np.arange(8) / 8)).astype(np.float32)
DEMANDS = {
    "angles": ("p = Cast<to=1>(i) q = Unsqueeze(p, k) f = {product} c = Cos(f) a = MatMul(x, w) y = Mul(a, c)"),
    "indices": "p = Cast<to=1>(i) f = Mul(p, h) j = Cast<to=7>(f) g = Gather(t, j) y = MatMul(g, w)",
    "ids": "p = Cast<to=1>(i) q = Unsqueeze(p, k) e = Equal(q, n) f = Cast<to=1>(e) a = MatMul(x, w) y = Mul(a, f)",
    "logs": "a = MatMul(x, w) s = Softmax(a) y = Log(s)",
}


@pytest.mark.parametrize("product", ["Mul(q, f0)", "MatMul(q, f0)"])
@pytest.mark.parametrize("kind", DEMANDS)
def test_what_angles_indices_and_logs_are_made_of_stays_in_float(kind: str, product: str) -> None:
    """fp16 counts to 2048 only, and ends at 6e-8: the results here would be others, not less precise ones."""
    weights = {"f0": FREQUENCIES[None], "w": normal(8, 8), "k": np.array([1]), "n": np.float32(4001)}
    weights |= {"h": np.float32(0.5), "t": normal(4000, 8)}
    body = DEMANDS[kind].format(product=product)
    model = made(f"(float[5,8] x, int64[5] i) => (float[5,8] y) {{ {body} }}", **weights)
    close(model, half(model), x=normal(5, 8) * 10, i=np.array([1, 2049, 4000, 4001, 4003]))


def test_a_cheap_node_alone_is_not_converted() -> None:
    """Its operand and its result are float32: converting it would only cost bits."""
    model = made("(float[2,8] x) => (float[2,8] z, float[2,4] y) { z = Identity(x) y = MatMul(x, w) }", w=normal(8, 4))
    x = normal(2, 8) * 1e3
    np.testing.assert_array_equal(run(half(model).model, x=x)[0], x)


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_mask_of_fused_attention_keeps_the_lowest_float32(precision: str) -> None:
    """-3.4e38 is -inf in bf16, and with -65504 a row that is hidden as a whole is no mean of all values any more."""
    text = """(float[2,3,8] x, bool[2,1,3,3] seen) => (float[2,3,8] y) {
        q = MatMul(x, w) q4 = Reshape(q, heads) qt = Transpose<perm=[0,2,1,3]>(q4)
        kt = Transpose<perm=[0,2,3,1]>(q4) m = Where(seen, zero, lowest)
        s = MatMul(qt, kt) a = Add(s, m) p = Softmax<axis=-1>(a) c = MatMul(p, qt)
        ct = Transpose<perm=[0,2,1,3]>(c) r = Reshape(ct, whole) y = MatMul(r, v) }"""
    weights = {"w": normal(8, 8), "v": normal(8, 8), "heads": np.array([2, 3, 2, 4]), "whole": np.array([2, 3, 8])}
    lowest = np.array(np.finfo(np.float32).min)
    model = made(text, zero=np.float32(0), lowest=lowest, **weights)
    result = optimize(model, precision=precision, verify=False)
    assert ops(result.model)["Attention"] == 1
    (where,) = (n for n in result.model.graph.node if n.op_type in ("Where", "Pointwise"))
    inferred = onnx.shape_inference.infer_shapes(result.model, check_type=True, strict_mode=True)
    kinds = {v.name: v.type.tensor_type.elem_type for v in inferred.graph.value_info}
    assert kinds[where.output[0]] == onnx.TensorProto.FLOAT
    if precision == "fp16":  # ONNX Runtime's CPU has no MatMul for bf16
        seen = np.ones((2, 1, 3, 3), bool)
        seen[0, 0, 1] = False
        close(model, result, x=normal(2, 3, 8), seen=seen)
