"""Products and convolutions of 8-bit integers, with ONNX Runtime's results: exactly, where they are integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from tests.gpu.single_op import Array, MakeSession, check, model, quick, reference

BYTES = [np.uint8, np.int8]
MATMUL_SHAPES: list[tuple[list[int], list[int]]] = [
    ([128, 64], [64, 256]),
    ([7, 13], [13, 11]),
    ([1, 768], [768, 320]),
    ([5, 33], [33, 1]),
    ([2, 4, 16, 8], [8, 24]),
    ([2, 4, 6, 8], [2, 4, 8, 5]),
    ([2, 1, 6, 8], [1, 3, 8, 24]),
    ([6, 8], [2, 3, 8, 4]),
    ([3, 5], [2, 5, 17]),
]


def numbers(shape: Any, dtype: Any, seed: int = 0) -> Array:
    """All values of the type: sums of a few hundred products are far from 2^31."""
    info = np.iinfo(dtype)
    return np.random.default_rng(seed).integers(info.min, info.max + 1, tuple(shape)).astype(dtype)


def weights(shape: Any, dtype: Any, seed: int) -> Array:
    """Seven bits: on processors without VNNI, ONNX Runtime's kernel of u8 and i8 saturates sums of two products."""
    low = 64 if dtype is np.uint8 else -64
    return np.random.default_rng(seed).integers(low, low + 128, tuple(shape)).astype(dtype)


def zeros_of(dtype: Any, shape: Any = (), seed: int = 9) -> Array:
    return np.asarray(numbers(shape, dtype, seed))


@pytest.mark.parametrize("a_type", BYTES)
@pytest.mark.parametrize("b_type", BYTES)
@pytest.mark.parametrize(("a", "b"), MATMUL_SHAPES, ids=str)
def test_matmul_integer(ep_session: MakeSession, a: list[int], b: list[int], a_type: type, b_type: type) -> None:
    x, w = numbers(a, a_type), numbers(b, b_type, 1)
    za, zb, zbs = zeros_of(a_type), zeros_of(b_type), zeros_of(b_type, (b[-1],), 4)
    for zeros in ([], [za], [za, zb], [za, zbs]):
        left, right = (v.astype(np.int64) for v in (x, w))
        left = left - zeros[0].astype(np.int64) if zeros else left
        right = right - zeros[1].astype(np.int64) if len(zeros) > 1 else right
        for constant in ((), (1,)):
            expected = [np.asarray(left @ right).astype(np.int32)]
            check(ep_session, "MatMulInteger", [x, w, *zeros], opset=10, constant=constant, expected=expected)


@given(data=st.data())
@quick
def test_matmul_integer_of_any_shape(ep_session: MakeSession, data: st.DataObject) -> None:
    m, k, n = (data.draw(st.integers(0, 70)) for _ in range(3))
    a_type, b_type = data.draw(st.sampled_from(BYTES)), data.draw(st.sampled_from(BYTES))
    x, w = numbers((m, k), a_type), numbers((k, n), b_type, 1)
    za = zeros_of(a_type, data.draw(st.sampled_from([(), (m,)])))
    zb = zeros_of(b_type, data.draw(st.sampled_from([(), (n,)])))
    left = x.astype(np.int64) - za.astype(np.int64).reshape((-1, 1) if za.ndim else ())
    exact = left @ (w.astype(np.int64) - zb.astype(np.int64))
    constant = data.draw(st.sampled_from([(), (1,)])) if k * n else ()
    check(
        ep_session,
        "MatMulInteger",
        [x, w, za, zb],
        opset=10,
        constant=constant,
        expected=[exact.astype(np.int32)],
    )


def test_vectors(ep_session: MakeSession) -> None:
    x, w, v = numbers((33,), np.uint8), numbers((33, 5), np.int8, 1), numbers((33,), np.int8, 2)
    for a, b in ((x, w), (x, v), (w.T.copy(), v)):
        expected = [np.asarray(a.astype(np.int32) @ b.astype(np.int32))]
        check(ep_session, "MatMulInteger", [a, b], opset=10, expected=expected)


def test_long_sums_wrap_as_int32(ep_session: MakeSession) -> None:
    # 40,000 * 255 * 255 exceeds 2^31.
    x, w = np.full((2, 40_000), 255, np.uint8), np.full((40_000, 8), 255, np.uint8)
    expected = [np.full((2, 8), (40_000 * 255 * 255 + 2**31) % 2**32 - 2**31, np.int32)]
    check(ep_session, "MatMulInteger", [x, w], opset=10, expected=expected)


def scale(value: Any) -> Array:
    return np.array(value, np.float32)


@pytest.mark.parametrize("a_type", BYTES)
@pytest.mark.parametrize("b_type", BYTES)
@pytest.mark.parametrize(("a", "b"), MATMUL_SHAPES[:8], ids=str)
def test_qlinear_matmul(ep_session: MakeSession, a: list[int], b: list[int], a_type: type, b_type: type) -> None:
    x, w = numbers(a, a_type), weights(b, b_type, 1)
    columns = np.random.default_rng(5).uniform(0.01, 0.03, b[-1]).astype(np.float32)
    # y's range is about that of the sums: 74 is the standard deviation of a byte.
    y_scale = scale(0.02 * 0.02 * 74 * 74 * a[-1] ** 0.5 / 60)
    # ONNX Runtime takes scales of columns for one matrix only.
    whole, each = (scale(0.02), zeros_of(b_type)), (columns, np.zeros(b[-1], b_type))
    for b_scale, b_zero in (whole, each) if len(b) == 2 else (whole,):
        inputs = [x, scale(0.02), zeros_of(a_type), w, b_scale, b_zero, y_scale, np.array(3, a_type)]
        expected = None
        if a_type is np.int8 and b_type is np.uint8:  # ONNX Runtime has no such kernel to compare with
            left, right = (
                v.astype(np.int32) - z for v, z in ((x, inputs[2].astype(np.int32)), (w, b_zero.astype(np.int32)))
            )
            factor = scale(0.02) * b_scale / y_scale
            codes = np.rint((left @ right).astype(np.float32) * factor) + 3
            expected = [np.clip(codes, -128, 127).astype(np.int8)]
        for constant in ((), (3,)):
            check(ep_session, "QLinearMatMul", inputs, opset=10, constant=constant, expected=expected)


CONVS: list[tuple[list[int], list[int], dict[str, Any]]] = [
    ([1, 3, 8, 8], [5, 3, 3, 3], {"pads": [1, 1, 1, 1]}),
    ([2, 8, 9, 7], [4, 8, 1, 1], {}),
    ([1, 2, 9, 7], [4, 2, 3, 2], {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    ([2, 4, 9, 7], [8, 2, 3, 2], {"group": 2, "strides": [2, 1], "pads": [0, 1, 2, 0]}),
    ([1, 6, 10, 10], [6, 1, 3, 3], {"group": 6, "dilations": [2, 2], "pads": [2, 2, 2, 2]}),
    ([3, 2, 11], [4, 2, 5], {"pads": [2, 2], "strides": [3]}),
    ([1, 2, 5, 6, 4], [3, 2, 2, 3, 2], {"pads": [1, 0, 1, 0, 1, 0]}),
]


@pytest.mark.parametrize("w_type", BYTES)
@pytest.mark.parametrize(("x_shape", "w_shape", "attrs"), CONVS, ids=str)
def test_conv_integer(
    ep_session: MakeSession, x_shape: list[int], w_shape: list[int], attrs: dict[str, Any], w_type: type
) -> None:
    x, w = numbers(x_shape, np.uint8), weights(w_shape, w_type, 1)
    for zeros in ([], [zeros_of(np.uint8)], [zeros_of(np.uint8), zeros_of(w_type)]):
        for constant in ((), (1,)):
            check(ep_session, "ConvInteger", [x, w, *zeros], attrs, opset=10, constant=constant)


@pytest.mark.parametrize(("x_type", "w_type"), [(np.uint8, np.uint8), (np.uint8, np.int8), (np.int8, np.int8)])
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize(("x_shape", "w_shape", "attrs"), CONVS, ids=str)
def test_qlinear_conv(
    ep_session: MakeSession,
    x_shape: list[int],
    w_shape: list[int],
    attrs: dict[str, Any],
    per_channel: bool,
    x_type: type,
    w_type: type,
) -> None:
    rng = np.random.default_rng(7)
    x, w = numbers(x_shape, x_type), weights(w_shape, w_type, 1)
    filters = w_shape[0]
    w_scale = rng.uniform(0.01, 0.03, filters).astype(np.float32) if per_channel else scale(0.02)
    # ONNX Runtime wants all zero points of W to be the same.
    w_zero = np.full((filters,) if per_channel else (), 3 if w_type is np.uint8 else 0, w_type)
    y_scale = scale(0.02 * 0.02 * 74 * 74 * np.prod(w_shape[1:]) ** 0.5 / 60)
    bias = rng.integers(-5000, 5000, filters).astype(np.int32)
    y_zero = np.array(5, x_type)
    for last in ([], [bias]):
        inputs = [x, scale(0.02), zeros_of(x_type), w, w_scale, w_zero, y_scale, y_zero, *last]
        for constant in ((), (3, 4, 5)):
            check(ep_session, "QLinearConv", inputs, attrs, opset=10, constant=constant)


def microsoft(op: str, inputs: dict[str, Array | None], constant: tuple[str, ...] = ()) -> Any:
    """One node of com.microsoft with output y."""
    names = [n if a is not None else "" for n, a in inputs.items()]
    while not names[-1]:  # ONNX Runtime 1.31.1 crashes on a trailing empty name
        names.pop()
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node(op, names, ["y"], domain="com.microsoft", name="node")],
        "g",
        [
            info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for n, a in inputs.items()
            if a is not None and n not in constant
        ],
        [info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(a, n) for n, a in inputs.items() if a is not None and n in constant],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def check_microsoft(make: MakeSession, op: str, inputs: dict[str, Array | None], constant: tuple[str, ...]) -> None:
    m = microsoft(op, inputs, constant)
    feeds = {n: a for n, a in inputs.items() if a is not None and n not in constant}
    (found,), (stock,) = make(m).run(None, feeds), reference(m, feeds)
    assert found.shape == stock.shape and found.dtype == stock.dtype
    # The integer sums are equal; a product and a sum in float32 follow, which may be fused.
    np.testing.assert_allclose(found, stock, rtol=1e-6, atol=1e-6 * np.abs(stock).max(initial=0))


@pytest.mark.parametrize("b_type", BYTES)
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize(("a", "b"), [([5, 33], [33, 12]), ([2, 3, 64], [64, 7])], ids=str)
def test_dynamic_quantize_matmul(
    ep_session: MakeSession, a: list[int], b: list[int], with_bias: bool, b_type: type
) -> None:
    rng = np.random.default_rng(3)
    x = rng.normal(0.5, 2, a).astype(np.float32)
    w, bias = weights(b, b_type, 1), rng.normal(0, 1, b[-1]).astype(np.float32) if with_bias else None
    for size in ((), (b[-1],)):
        inputs = {"x": x, "w": w, "s": np.asarray(rng.uniform(0.01, 0.1, size), np.float32)}
        inputs |= {"z": zeros_of(b_type, size), "bias": bias}
        for constant in ((), ("w", "s", "z")):
            check_microsoft(ep_session, "DynamicQuantizeMatMul", inputs, constant)
    check_microsoft(ep_session, "DynamicQuantizeMatMul", inputs | {"z": None}, ("w", "s"))


@pytest.mark.parametrize(("a_type", "b_type"), [(np.uint8, np.uint8), (np.uint8, np.int8), (np.int8, np.int8)])
def test_matmul_integer_to_float(ep_session: MakeSession, a_type: type, b_type: type) -> None:
    rng = np.random.default_rng(3)
    x, w = numbers((2, 5, 40), a_type), weights((40, 9), b_type, 1)
    for size in ((), (9,)):
        inputs = {"x": x, "w": w, "xs": scale(0.03), "ws": np.asarray(rng.uniform(0.01, 0.1, size), np.float32)}
        inputs |= {"xz": zeros_of(a_type), "wz": zeros_of(b_type, size), "bias": rng.normal(0, 1, 9).astype(np.float32)}
        check_microsoft(ep_session, "MatMulIntegerToFloat", inputs, ())
        check_microsoft(ep_session, "MatMulIntegerToFloat", inputs | {"bias": None}, ("w",))


def test_zero_points_that_do_not_fit_are_named(ep_session: MakeSession) -> None:
    inputs = [numbers((4, 8), np.uint8), numbers((8, 6), np.int8), zeros_of(np.uint8), np.zeros(5, np.int8)]
    with pytest.raises(Exception, match=r"the zero point of B has shape \[5\]; one value or 6 are required"):
        ep_session(model("MatMulInteger", inputs, opset=10)).run(None, {f"x{i}": a for i, a in enumerate(inputs)})
