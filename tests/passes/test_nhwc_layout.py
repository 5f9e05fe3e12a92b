"""Convolution regions in NHWC: one transpose per border, and the same numbers."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from cuvil_onnx.api import Optimized, optimize
from cuvil_onnx.report import collect
from cuvil_onnx.verify import HALF, ROUNDING, compare
from tests.passes.pass_testing import made, normal, run


def nhwc(model: onnx.ModelProto, **options: object) -> Optimized:
    return optimize(model, layout="nhwc", only=["nhwc_layout", "transpose", "reshape"], verify=False, **options)


def check(model: onnx.ModelProto, result: Optimized, tolerance: object = ROUNDING, **inputs: object) -> None:
    onnx.checker.check_model(result.model)
    for want, got in zip(run(model, **inputs), run(result.model, **inputs), strict=True):
        assert not compare(got, want, tolerance), compare(got, want, tolerance)


def _typed(weights: dict[str, object]) -> dict[str, np.ndarray]:
    """Python floats as float32, as all weights here are."""
    arrays = {name: np.asarray(value) for name, value in weights.items()}
    return {name: a.astype(np.float32) if a.dtype == np.float64 else a for name, a in arrays.items()}


STEM = "c = Conv<pads=[1, 1, 1, 1]>(x, w, b)"
WEIGHTS = {"w": normal(6, 4, 3, 3), "b": normal(6)}


@pytest.mark.parametrize(
    ("body", "out", "more"),
    [
        ("y = Relu(c)", "2,6,8,6", {}),
        ("y = MaxPool<kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]>(c)", "2,6,4,3", {}),
        ('y = MaxPool<kernel_shape=[2, 2], auto_pad="SAME_UPPER">(c)', "2,6,8,6", {}),
        ("y = AveragePool<kernel_shape=[3, 2], count_include_pad=1, pads=[1, 0, 1, 1]>(c)", "2,6,8,6", {}),
        ("y = GlobalAveragePool(c)", "2,6,1,1", {}),
        ("y = ReduceMean<axes=[2, 3]>(c)", "2,6,1,1", {}),
        ("y = Conv<group=6>(c, d)", "2,6,6,4", {"d": normal(6, 1, 3, 3)}),
        ("y = Mul(c, k)", "2,6,8,6", {"k": normal(6, 1, 1)}),
        ("y = Add(k, c)", "2,6,8,6", {"k": normal(1, 1, 8, 6)}),
        ("y = PRelu(c, k)", "2,6,8,6", {"k": normal(6, 1, 1)}),
        ("y = Resize(c, , k)", "2,6,16,18", {"k": [1.0, 1.0, 2.0, 3.0]}),
        ("y = Resize(c, , , k)", "2,6,4,9", {"k": [2, 6, 4, 9]}),
        ("r = Relu(c) y = Concat<axis=1>(c, r)", "2,12,8,6", {}),
        ("p = GlobalAveragePool(c) q = Conv(p, d) s = Sigmoid(q) y = Mul(c, s)", "2,6,8,6", {"d": normal(6, 6, 1, 1)}),
    ],
)
def test_regions(body: str, out: str, more: dict[str, object]) -> None:
    model = made(f"(float[2,4,8,6] x) => (float[{out}] y) {{ {STEM} {body} }}", **WEIGHTS, **_typed(more))
    result = nhwc(model)
    counts = collect(result.ir_model).ops
    assert counts["cuvil::FusedConv"] >= 1
    assert counts.get("Transpose", 0) + counts.get("Reshape", 0) == 2, "one on the way in, one on the way out"
    check(model, result, x=normal(2, 4, 8, 6))


def test_a_resize_of_opset_11_keeps_its_region_of_interest() -> None:
    body = f"{STEM} y = Resize(c, roi, k)"
    model = made(
        f"(float[2,4,8,6] x) => (float[2,6,16,18] y) {{ {body} }}",
        opset=11,
        **WEIGHTS,
        roi=np.zeros(0, np.float32),
        k=np.array([1, 1, 2, 3], np.float32),
    )
    result = nhwc(model)
    assert collect(result.ir_model).ops["Transpose"] == 2
    check(model, result, x=normal(2, 4, 8, 6))


def test_values_read_outside_are_given_back() -> None:
    body = f"{STEM} r = Relu(c) d = Conv(r, v) s = Shape(r) t = Transpose<perm=[0, 3, 1, 2]>(r)"
    model = made(
        f"(float[2,4,8,6] x) => (float[2,6,8,6] r, float[2,3,6,4] d, int64[4] s, float[2,6,6,8] t) {{ {body} }}",
        **WEIGHTS,
        v=normal(3, 6, 3, 3),
    )
    result = nhwc(model)
    assert [o.name for o in result.model.graph.output] == ["r", "d", "s", "t"]
    check(model, result, x=normal(2, 4, 8, 6))


def test_a_region_may_be_entered_again() -> None:
    """Squeeze-and-excite through Flatten and Gemm leaves the region and comes back."""
    body = (
        f"{STEM} p = GlobalAveragePool(c) f = Flatten(p) g = Gemm(f, u) h = Reshape(g, s) z = Mul(c, h) y = Conv(z, v)"
    )
    model = made(
        f"(float[2,4,8,6] x) => (float[2,3,6,4] y) {{ {body} }}",
        **WEIGHTS,
        u=normal(6, 6),
        v=normal(3, 6, 3, 3),
        s=[0, 6, 1, 1],
    )
    check(model, nhwc(model), x=normal(2, 4, 8, 6))


@pytest.mark.parametrize(
    ("head", "body", "more"),
    [
        ("(float[2,4,9] x) => (float[2,6,7] y)", "y = Conv(x, w)", {"w": normal(6, 4, 3)}),
        ("(float[1,2,4,4] x, float[3,2,3,3] w) => (float[1,3,2,2] y)", "y = Conv(x, w)", {}),
    ],
)
def test_other_convolutions_are_left_alone(head: str, body: str, more: dict[str, object]) -> None:
    result = nhwc(made(f"{head} {{ {body} }}", **more))
    assert collect(result.ir_model).ops == {"Conv": 1}


def test_automatic_only_for_16_bits_and_where_it_pays() -> None:
    body = f"{STEM} r = Relu(c) d = Conv(r, v) e = Relu(d) y = Conv(e, u)"
    weights = {**WEIGHTS, "v": normal(6, 6, 3, 3), "u": normal(3, 6, 3, 3)}
    model = made(f"(float[2,4,8,6] x) => (float[2,3,4,2] y) {{ {body} }}", **weights)
    assert not optimize(model, verify=False).report.trace.counts.get("nhwc_layout")
    result = optimize(model, precision="fp16", verify=False)
    assert result.report.trace.counts["nhwc_layout"] == 3
    check(model, result, HALF, x=normal(2, 4, 8, 6))
    assert not optimize(model, precision="fp16", layout="nchw", verify=False).report.trace.counts.get("nhwc_layout")
    single = made("(float[2,4,8,6] x) => (float[2,6,8,6] c) { " + STEM + " }", **WEIGHTS)
    refused = optimize(single, precision="fp16", verify=False).report.trace.refused
    assert any("not worth it" in r.reason for r in refused if r.rule == "nhwc_layout")
