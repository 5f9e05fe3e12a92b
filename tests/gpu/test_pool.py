"""MaxPool, AveragePool, the global pools, cuvil::Pool and BatchNormalization on the GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import custom_ops
from custom_ops import testing
from custom_ops.spec import Example
from tests.gpu.single_op import MakeSession, check, model, quick, reference, sample

# A maximum is one of its inputs: exact. An average of up to 10**4 values adds in float32, in another order than the
# reference (error below 10**4 * 2**-24 of the values' size, in fact far less), and rounds once.
ROUNDING = {"float32": 2e-6, "float16": 2**-11, "float64": 1e-14}
DTYPES = list(ROUNDING)

# X and attributes.
POOLS: dict[str, tuple[list[int], dict[str, Any]]] = {
    "3x3 strided": ([2, 8, 11, 12], {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    "2x2": ([1, 3, 7, 9], {"kernel_shape": [2, 2], "strides": [2, 2]}),
    "ceil": ([1, 3, 7, 8], {"kernel_shape": [2, 3], "strides": [2, 3], "ceil_mode": 1}),
    "ceil padded": ([1, 3, 6, 6], {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 0, 1, 1], "ceil_mode": 1}),
    "uneven": ([1, 3, 9, 8], {"kernel_shape": [3, 2], "pads": [0, 1, 2, 0], "strides": [1, 2]}),
    "same upper": ([1, 3, 10, 9], {"kernel_shape": [3, 2], "strides": [2, 2], "auto_pad": "SAME_UPPER"}),
    "same lower": ([1, 3, 10, 9], {"kernel_shape": [3, 2], "strides": [2, 2], "auto_pad": "SAME_LOWER"}),
    "valid": ([1, 3, 10, 9], {"kernel_shape": [3, 2], "strides": [2, 2], "auto_pad": "VALID"}),
    "1-D": ([2, 4, 31], {"kernel_shape": [4], "strides": [3], "pads": [2, 1]}),
    "3-D": ([1, 2, 6, 7, 8], {"kernel_shape": [2, 3, 2], "strides": [2, 1, 2], "pads": [0, 1, 1, 1, 1, 0]}),
}


def check_pool(make: MakeSession, op: str, x: np.ndarray, attrs: dict[str, Any], opset: int = 17) -> None:
    """Against ONNX Runtime on the same values in float32 (float64 for MaxPool of float64), then rounded."""
    wide = x if x.dtype == np.float64 and "Max" in op else x.astype(np.float32)
    (expected,) = reference(model(op, [wide], attrs, opset=opset), {"x0": wide})
    tolerance = 0.0 if "Max" in op else ROUNDING[x.dtype.name]
    if x.dtype == np.float64 and "Max" not in op:
        tolerance = ROUNDING["float32"]  # the reference itself is float32
    check(
        make, op, [x], attrs, opset=opset, expected=[expected.astype(x.dtype)], rtol=2 * tolerance, atol=2 * tolerance
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", POOLS)
def test_max_pool(ep_session: MakeSession, name: str, dtype: str) -> None:
    shape, attrs = POOLS[name]
    check_pool(ep_session, "MaxPool", sample(shape, dtype), attrs)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("include", [0, 1])
@pytest.mark.parametrize("name", POOLS)
def test_average_pool(ep_session: MakeSession, name: str, include: int, dtype: str) -> None:
    shape, attrs = POOLS[name]
    check_pool(ep_session, "AveragePool", sample(shape, dtype), {**attrs, "count_include_pad": include})


@given(data=st.data())
@quick
def test_pools_of_any_shape(ep_session: MakeSession, data: st.DataObject) -> None:
    op, rank = data.draw(st.sampled_from(["MaxPool", "AveragePool"])), data.draw(st.integers(1, 3))

    def values(low: int, high: int, count: int = rank) -> list[int]:
        return data.draw(st.lists(st.integers(low, high), min_size=count, max_size=count))

    kernel, dilations = values(1, 4), values(1, 2)
    size = [(k - 1) * d + 1 + e for k, d, e in zip(kernel, dilations, values(0, 7), strict=True)]
    attrs = {
        "kernel_shape": kernel,
        "strides": values(1, 4),
        "pads": [data.draw(st.integers(0, kernel[i % rank] - 1)) for i in range(2 * rank)],
        "dilations": dilations,
        "ceil_mode": data.draw(st.integers(0, 1)),
    }
    if op == "AveragePool":
        attrs["count_include_pad"] = data.draw(st.integers(0, 1))
    x = sample([*values(1, 3, 2), *size], np.float32, data.draw(st.integers(0, 9)))
    try:
        expected = reference(model(op, [x], attrs, opset=19), {"x0": x})[0]
    except Exception:
        assume(False)  # a shape that ONNX Runtime refuses (padding as wide as a dilated window, say)
    assume(expected.size > 0 and np.isfinite(expected).all())
    check_pool(ep_session, op, x, attrs, opset=19)


@pytest.mark.parametrize("op", ["GlobalMaxPool", "GlobalAveragePool"])
@pytest.mark.parametrize("shape", [[2, 5, 7, 7], [1, 64, 1, 1], [3, 2, 100, 100], [2, 3, 33], [1, 2, 3, 4, 5]], ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_global_pools(ep_session: MakeSession, op: str, shape: list[int], dtype: str) -> None:
    # ONNX Runtime has no float64 kernel of these, and the ONNX reference gives other shapes: NumPy says what is right.
    x = sample(shape, dtype)
    spatial = tuple(range(2, len(shape)))
    if op == "GlobalMaxPool":
        check(ep_session, op, [x], expected=[x.max(axis=spatial, keepdims=True)])
    else:
        mean = x.astype(np.float64).mean(axis=spatial, keepdims=True).astype(x.dtype)
        check(ep_session, op, [x], expected=[mean], rtol=2 * ROUNDING[dtype], atol=2 * ROUNDING[dtype])


def test_infinities_and_nan(ep_session: MakeSession) -> None:
    x = np.full((1, 1, 4, 4), -np.inf, np.float32)
    x[0, 0, 0, 0] = np.nan
    m = model("MaxPool", [x], {"kernel_shape": [2, 2], "strides": [2, 2]})
    (found,) = ep_session(m).run(None, {"x0": x})
    # The lowest finite number, which pads stand for, must not beat -infinity.
    np.testing.assert_array_equal(found.ravel(), np.float32([np.nan, -np.inf, -np.inf, -np.inf]))
    (found,) = ep_session(model("GlobalMaxPool", [x[:, :, 1:]])).run(None, {"x0": x[:, :, 1:]})
    assert found.ravel() == -np.inf


@pytest.mark.parametrize("channels", [64, 20, 7])
@pytest.mark.parametrize("mode", ["max", "average"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("whole", [False, True], ids=["window", "global"])
def test_nhwc_pool(ep_session: MakeSession, whole: bool, dtype: str, mode: str, channels: int) -> None:
    attrs = {"mode": mode, "layout": "NHWC", "kernel_shape": [3, 3], "strides": [2, 2], "dilations": [1, 1]}
    attrs |= {"pads": [1, 1, 1, 1], "count_include_pad": 1}
    if whole:
        attrs |= {"global": 1, "kernel_shape": [1, 1], "strides": [1, 1], "pads": [0] * 4}
    kind = {"float32": ir.DataType.FLOAT, "float16": ir.DataType.FLOAT16}[dtype]
    example = Example("case", (sample([3, 14, 15, channels], np.float64),), attrs)
    case = testing.build(custom_ops.specs()["Pool"], example, opset=20, dtype=kind)
    (found,) = ep_session(case.model).run(None, case.feeds)
    tolerance = 0.0 if mode == "max" else ROUNDING[dtype]
    expected = np.asarray(case.expected[0])
    np.testing.assert_allclose(found.astype(np.float64), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [*DTYPES, "int8", "uint8"])
@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize("name", POOLS)
def test_max_pool_indices(ep_session: MakeSession, name: str, order: int, dtype: str) -> None:
    shape, attrs = POOLS[name]
    # All values differ, so that which of several maxima is meant does not matter (8-bit ones may be equal, in which
    # case the first is taken).
    x = np.random.default_rng(1).permutation(np.prod(shape)).reshape(shape)
    x = (x % 250 - (0 if dtype == "uint8" else 125)).astype(dtype) if "int" in dtype else x.astype(dtype)
    attrs = {**attrs, "storage_order": order}
    wide = x.astype(np.float32)
    values, indices = reference(model("MaxPool", [wide], attrs, outputs=("y0", "y1")), {"x0": wide})
    expected = [values.astype(dtype), indices]
    check(ep_session, "MaxPool", [x], attrs, opset=12, outputs=("y0", "y1"), expected=expected)
    check(ep_session, "MaxPool", [x], attrs, opset=12, expected=expected[:1])


def test_max_pool_takes_the_first_of_equal_values_and_keeps_nan(ep_session: MakeSession) -> None:
    x = np.zeros((1, 1, 4, 4), np.float32)
    x[0, 0, 2, 1] = x[0, 0, 3, 3] = np.nan
    x[0, 0, 0, 2:] = x[0, 0, 1, 2:] = -np.inf
    m = model("MaxPool", [x], {"kernel_shape": [2, 2], "strides": [2, 2]}, outputs=("y0", "y1"))
    values, indices = ep_session(m).run(None, {"x0": x})
    np.testing.assert_array_equal(values.ravel(), np.float32([0, -np.inf, np.nan, np.nan]))
    np.testing.assert_array_equal(indices.ravel(), [0, 2, 9, 15])


@pytest.mark.parametrize("opset", [7, 9, 14, 15])
@pytest.mark.parametrize("shape", [[2, 5, 7, 9], [3, 4], [2, 8, 16, 16], [1, 3, 5], [2, 3, 2, 3, 4]], ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_batch_norm(ep_session: MakeSession, shape: list[int], dtype: str, opset: int) -> None:
    x = sample(shape, dtype)
    scale, bias, mean = (sample([shape[1]], dtype, seed) for seed in (1, 2, 3))
    variance = np.abs(sample([shape[1]], dtype, 4)) + np.asarray(0.5, dtype)
    column = 1, -1, *[1] * (len(shape) - 2)
    wide = [v.astype(np.float64).reshape(column) for v in (scale, bias, mean, variance)]
    exact = (x.astype(np.float64) - wide[2]) / np.sqrt(wide[3] + 1e-3) * wide[0] + wide[1]
    # A handful of float32 operations on values of at most about 10, cancelling in the worst case; one rounding to the
    # type. epsilon is a float32 attribute: relative error 2**-24 in any type.
    unit = max(ROUNDING[dtype], 1e-6)
    inputs, attrs = [x, scale, bias, mean, variance], {"epsilon": 1e-3}
    how = {"opset": opset, "rtol": unit, "atol": 10 * unit}
    check(ep_session, "BatchNormalization", inputs, attrs, expected=[exact.astype(dtype)], **how)
