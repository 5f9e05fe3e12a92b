"""QuantizeLinear, DequantizeLinear, DynamicQuantizeLinear: the codes of NumPy and of ONNX Runtime's CPU provider."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from tests.gpu.single_op import MakeSession, check, model, quick, reference, sample

Array = np.ndarray
INTEGERS = [np.uint8, np.int8, np.uint16, np.int16]
CODES = {t.__name__: helper.np_dtype_to_tensor_dtype(np.dtype(t)) for t in INTEGERS}
CODES |= {"uint4": TensorProto.UINT4, "int4": TensorProto.INT4, "uint2": TensorProto.UINT2, "int2": TensorProto.INT2}
CODES |= {"float8e4m3fn": TensorProto.FLOAT8E4M3FN, "float8e5m2": TensorProto.FLOAT8E5M2}
RANGE = {"uint4": (0, 15), "int4": (-8, 7), "uint2": (0, 3), "int2": (-2, 1)} | {
    t.__name__: (np.iinfo(t).min, np.iinfo(t).max) for t in INTEGERS
}
FLOAT8 = {"float8e4m3fn": ml_dtypes.float8_e4m3fn, "float8e5m2": ml_dtypes.float8_e5m2}
FLOATS = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}


def rounded(x: Array, dtype: str) -> Array:
    return x.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)).astype(np.float32)


def there_and_back(
    x: Array, scale: Array, zero: Array | None, code: str, dtype: str, attrs: dict[str, Any], opset: int
) -> onnx.ModelProto:
    """x float32, cast to `dtype`; codes of `code`, which leave as integers where NumPy has the type; and back."""
    to = FLOATS[dtype]
    nodes = [helper.make_node("Cast", [n], [n + "t"], to=to) for n in ("x", "scale")]
    names = ["xt", "scalet"]
    initializers = []
    if zero is not None:
        names.append("zero")
        initializers.append(helper.make_tensor("zero", CODES[code], zero.shape, zero.ravel().tolist()))
    quantizing = dict(attrs)
    if zero is None and code != "uint8":
        quantizing["output_dtype"] = CODES[code]
    dequantizing = {k: v for k, v in attrs.items() if k != "saturate"}
    nodes.append(helper.make_node("QuantizeLinear", names, ["q"], **quantizing))
    nodes.append(helper.make_node("DequantizeLinear", ["q", *names[1:]], ["yt"], **dequantizing))
    nodes.append(helper.make_node("Cast", ["yt"], ["y"], to=TensorProto.FLOAT))
    info = helper.make_tensor_value_info
    outputs = [info("y", TensorProto.FLOAT, None)]
    if code in INTEGER_NAMES:
        outputs.append(info("q", CODES[code], None))
    inputs = [info(n, TensorProto.FLOAT, a.shape) for n, a in (("x", x), ("scale", scale))]
    graph = helper.make_graph(nodes, "g", inputs, outputs, initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10 if opset < 25 else 13)


INTEGER_NAMES = [t.__name__ for t in INTEGERS]


def spread(a: Array, shape: tuple[int, ...], axis: int, block: int) -> Array:
    """A scale or zero point for every element of a tensor of `shape`."""
    if block:
        return np.repeat(a, block, axis)[tuple(slice(0, n) for n in shape)]
    return a if a.size == 1 else a.reshape([-1 if i == axis else 1 for i in range(len(shape))])


def check_there_and_back(
    make: MakeSession,
    shape: tuple[int, ...],
    code: str,
    dtype: str = "float32",
    *,
    axis: int | None = None,
    block: int = 0,
    zero: bool = True,
    opset: int = 21,
    saturate: int = 1,
) -> None:
    rng = np.random.default_rng(len(code) + sum(shape))
    size: tuple[int, ...] = ()
    if block and axis is not None:
        size = tuple(-(-n // block) if i == axis else n for i, n in enumerate(shape))
    elif axis is not None:
        size = (shape[axis],)
    # Powers of two: the division and the product are exact, so that a tie is a tie everywhere.
    scale = np.asarray(np.exp2(rng.integers(-6, -2, size)), np.float32)
    x = rounded(rng.normal(0, 20, shape).astype(np.float32), dtype)
    low, high = RANGE.get(code, (0, 0))
    zeros = np.asarray(rng.integers(low // 2, high // 2 + 1, size) if zero and code in RANGE else np.zeros(size, int))
    attrs: dict[str, Any] = {} if axis is None else {"axis": axis}
    if block:
        attrs["block_size"] = block
    if code in FLOAT8:
        attrs["saturate"] = saturate
    opset = 25 if code.endswith("int2") else opset
    m = there_and_back(x, scale, zeros if zero else None, code, dtype, attrs, opset)
    feeds = {"x": x, "scale": scale}
    session = make(m)
    found = session.run(None, feeds)
    per_element, offset = (spread(np.asarray(a), shape, axis or 0, block) for a in (scale, zeros))
    if code in FLOAT8:
        v = x / per_element
        largest = float(ml_dtypes.finfo(FLOAT8[code]).max)
        v = np.clip(v, -largest, largest) if saturate else v
        exact = v.astype(FLOAT8[code]).astype(np.float32) * per_element
    else:
        codes = np.clip(np.rint(x / per_element) + offset, low, high)
        exact = ((codes - offset) * per_element).astype(np.float32)
        if code in INTEGER_NAMES:
            np.testing.assert_array_equal(found[1], codes.astype(code))
    np.testing.assert_array_equal(found[0], rounded(exact, dtype))
    np.testing.assert_array_equal(session.run(None, feeds)[0], found[0])
    if dtype == "float32" and x.size:
        for ours, stock in zip(found, reference(m, feeds), strict=True):
            np.testing.assert_array_equal(ours, stock)


@pytest.mark.parametrize("code", list(CODES))
@pytest.mark.parametrize("dtype", list(FLOATS))
def test_codes_and_types(ep_session: MakeSession, code: str, dtype: str) -> None:
    check_there_and_back(ep_session, (5, 7, 3), code, dtype)
    check_there_and_back(ep_session, (4, 32), code, dtype, zero=False)
    check_there_and_back(ep_session, (4, 6, 16), code, dtype, axis=1)
    check_there_and_back(ep_session, (4, 33), code, dtype, axis=1)


@pytest.mark.parametrize("code", list(CODES))
@pytest.mark.parametrize(
    ("shape", "axis", "block"), [((3, 64), 1, 32), ((3, 20), 1, 7), ((10, 5), 0, 4), ((2, 9, 8), 1, 3), ((17,), 0, 16)]
)
def test_blocks(ep_session: MakeSession, code: str, shape: tuple[int, ...], axis: int, block: int) -> None:
    check_there_and_back(ep_session, shape, code, axis=axis, block=block)


@given(data=st.data())
@quick
def test_any_shape(ep_session: MakeSession, data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.sampled_from([0, 1, 2, 3, 8, 17]), min_size=1, max_size=4)))
    axis = data.draw(st.sampled_from([None, *range(len(shape))]))
    check_there_and_back(
        ep_session,
        shape,
        data.draw(st.sampled_from(list(CODES))),
        data.draw(st.sampled_from(list(FLOATS))),
        axis=axis,
        block=data.draw(st.integers(0, 5)) if axis is not None else 0,
    )


@pytest.mark.parametrize("code", list(FLOAT8))
@pytest.mark.parametrize("saturate", [0, 1])
def test_floats_beyond_the_range(ep_session: MakeSession, code: str, saturate: int) -> None:
    x = np.array(
        [448, 449, 464, 465, 1e6, -1e6, 57344, 61439, 61441, np.inf, -np.inf, np.nan, 2**-9, 2**-11, 0], np.float32
    )
    m = there_and_back(x, np.array(1, np.float32), np.zeros(()), code, "float32", {"saturate": saturate}, 19)
    # ml_dtypes rounds first and gives infinity (e5m2) or NaN (e4m3) where the result is too large. ONNX Runtime does
    # the same, but for 61441, which it rounds to a NaN of e5m2 instead of infinity.
    largest = float(ml_dtypes.finfo(FLOAT8[code]).max)
    exact = (np.clip(x, -largest, largest) if saturate else x).astype(FLOAT8[code]).astype(np.float32)
    found = ep_session(m).run(None, {"x": x, "scale": np.ones((), np.float32)})[0]
    np.testing.assert_array_equal(found, exact)


@pytest.mark.parametrize("opset", [10, 13, 19, 21, 23])
def test_every_opset(ep_session: MakeSession, opset: int) -> None:
    x = np.array([-300, -2.5, -1.5, 0.5, 1.5, 2.5, 300, 0], np.float32)
    scale, zero = np.array(1, np.float32), np.array(3, np.int8)
    check(ep_session, "QuantizeLinear", [x, scale, zero], opset=opset)
    check(ep_session, "DequantizeLinear", [sample((3, 5), np.int8), np.array(0.3, np.float32), zero], opset=opset)
    if opset >= 13:
        per_axis = [sample((3, 5), np.uint8), np.array([0.1, 0.2, 0.3], np.float32), np.array([1, 2, 200], np.uint8)]
        check(ep_session, "DequantizeLinear", per_axis, {"axis": -2}, opset=opset)


def test_int32(ep_session: MakeSession) -> None:
    x = np.array([[-(2**31), -7, 5], [2**31 - 1, 16777217, 0]], np.int32)
    check(ep_session, "DequantizeLinear", [x, np.array(0.37, np.float32)], opset=13)
    scale = np.array(2, np.float32)
    codes = np.clip(np.rint(x / 2.0), -128, 127).astype(np.int8)
    check(ep_session, "QuantizeLinear", [x, scale, np.array(0, np.int8)], opset=13, expected=[codes])


@pytest.mark.parametrize("code", ["uint4", "int4", "uint2", "int2"])
@pytest.mark.parametrize("count", [1, 7, 8, 30])
def test_weights_below_eight_bits(ep_session: MakeSession, code: str, count: int) -> None:
    low, high = RANGE[code]
    values = np.random.default_rng(0).integers(low, high + 1, count)
    zero = helper.make_tensor("z", CODES[code], (), [1])
    graph = helper.make_graph(
        [helper.make_node("DequantizeLinear", ["w", "s", "z"], ["y"])],
        "g",
        [helper.make_tensor_value_info("s", TensorProto.FLOAT, ())],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [helper.make_tensor("w", CODES[code], (count,), values.tolist()), zero],
    )
    two = code.endswith("2")
    imports = [helper.make_opsetid("", 25 if two else 21)]
    m = helper.make_model(graph, opset_imports=imports, ir_version=13 if two else 10)
    (found,) = ep_session(m).run(None, {"s": np.array(0.5, np.float32)})
    np.testing.assert_array_equal(found, (values - 1) * np.float32(0.5))


def test_microsoft_form(ep_session: MakeSession) -> None:
    x = sample((4, 6)) * 30
    info = helper.make_tensor_value_info
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], domain="com.microsoft", axis=0),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"], domain="com.microsoft", axis=0),
    ]
    outputs = [info("q", TensorProto.INT16, None), info("y", TensorProto.FLOAT, None)]
    scale, zero = np.array([0.25, 0.5, 1, 2], np.float32), np.array([5, -7, 0, 100], np.int16)
    initializers = [numpy_helper.from_array(scale, "s"), numpy_helper.from_array(zero, "z")]
    graph = helper.make_graph(nodes, "g", [info("x", TensorProto.FLOAT, x.shape)], outputs, initializers)
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    m = helper.make_model(graph, opset_imports=imports, ir_version=8)
    for ours, stock in zip(ep_session(m).run(None, {"x": x}), reference(m, {"x": x}), strict=True):
        np.testing.assert_array_equal(ours, stock)


@pytest.mark.parametrize("count", [1, 5, 8, 4097, 700_001])
@pytest.mark.parametrize("shift", [0, -5, 5])
def test_dynamic(ep_session: MakeSession, count: int, shift: int) -> None:
    x = sample((count,), seed=count) + np.float32(shift)
    check(ep_session, "DynamicQuantizeLinear", [x], opset=11, outputs=("q", "scale", "zero"))


def test_dynamic_of_zeros(ep_session: MakeSession) -> None:
    check(ep_session, "DynamicQuantizeLinear", [np.zeros((3, 2), np.float32)], opset=11, outputs=("q", "scale", "zero"))


def test_scales_that_do_not_fit_are_named(ep_session: MakeSession) -> None:
    x, scale = sample((2, 3)), np.ones(4, np.float32)
    m = model("QuantizeLinear", [x, scale, np.zeros(4, np.uint8)], opset=13)
    for value in m.graph.input:  # unknown to shape inference, so that the kernel meets them
        value.type.tensor_type.ClearField("shape")
    with pytest.raises(Exception, match=r"the scale has shape \[4\]; \[\] or \[3\] is required"):
        ep_session(m).run(None, {"x0": x, "x1": scale, "x2": np.zeros(4, np.uint8)})
