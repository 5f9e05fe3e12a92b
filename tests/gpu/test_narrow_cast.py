"""Cast of 8-bit floats and of integers below a byte, exactly as ONNX Runtime's CPU provider and ml_dtypes cast."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from tests.conformance.values import run

FLOAT8 = [TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT8E4M3FNUZ, TensorProto.FLOAT8E5M2, TensorProto.FLOAT8E5M2FNUZ]
INTEGERS = [TensorProto.INT4, TensorProto.UINT4, TensorProto.INT2, TensorProto.UINT2]
WIDE = [np.float32, np.float16, ml_dtypes.bfloat16, np.int8, np.uint8, np.int32]
# Nothing, tails of every length, more than one block, and (with 2^16 + 3) more than one byte short of a vector.
SIZES = [0, 1, 2, 3, 5, 7, 8, 9, 16, 31, 4099, 65539]

MakeSession = Callable[..., ort.InferenceSession]


def cast(source: int, target: int, size: int, **attributes: int) -> onnx.ModelProto:
    node = helper.make_node("Cast", ["x"], ["y"], to=target, name="cast", **attributes)
    x, y = (helper.make_tensor_value_info(n, t, [size]) for n, t in (("x", source), ("y", target)))
    graph = helper.make_graph([node], "g", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)], ir_version=11)


def on_cpu(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    return run(ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"]), [x])[0]


def values(size: int, dtype: np.dtype) -> np.ndarray:
    """Small and large numbers, both signs, and for floats also halves, NaN and infinities."""
    rng = np.random.default_rng(size)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return rng.integers(max(info.min, -1000), min(info.max, 1000), size).astype(dtype)
    x = rng.standard_normal(size) * np.exp2(rng.integers(-12, 12, size))
    x[::5] = np.round(x[::5]) + 0.5
    x[::97], x[1::97], x[2::97], x[3::97] = np.nan, np.inf, -np.inf, -0.0
    return x.astype(dtype)


def same(found: np.ndarray, expected: np.ndarray) -> None:
    assert found.dtype == expected.dtype and found.shape == expected.shape
    a, b = found.astype(np.float32), expected.astype(np.float32)
    np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(np.signbit(a)[~np.isnan(a)], np.signbit(b)[~np.isnan(a)])


@pytest.mark.parametrize("dtype", WIDE, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("target", [*FLOAT8, *INTEGERS], ids=TensorProto.DataType.Name)
def test_to_narrow(ep_session: MakeSession, target: int, dtype: type) -> None:
    source = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    for size in SIZES:
        x, model = values(size, np.dtype(dtype)), cast(source, target, size)
        same(run(ep_session(model), [x])[0], on_cpu(model, x))


@pytest.mark.parametrize("target", FLOAT8, ids=TensorProto.DataType.Name)
def test_without_saturation(ep_session: MakeSession, target: int) -> None:
    # Not against ONNX Runtime, which rounds some numbers just beyond the largest down to it or makes NaN of them.
    x = np.concatenate([values(4099, np.dtype(np.float32)), np.linspace(200, 70000, 5000, dtype=np.float32)])
    model = cast(TensorProto.FLOAT, target, x.size, saturate=0)
    with np.errstate(all="ignore"):
        same(run(ep_session(model), [x])[0], x.astype(helper.tensor_dtype_to_np_dtype(target)))


@pytest.mark.parametrize("dtype", WIDE, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("source", [*FLOAT8, *INTEGERS], ids=TensorProto.DataType.Name)
def test_from_narrow(ep_session: MakeSession, source: int, dtype: type) -> None:
    target = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    narrow = np.dtype(helper.tensor_dtype_to_np_dtype(source))
    for size in SIZES:
        codes = np.random.default_rng(size).integers(0, 256, size)
        if source in INTEGERS:
            x = (codes % 3).astype(np.int8).astype(narrow) if source != TensorProto.INT2 else (codes % 2).astype(narrow)
        elif np.dtype(dtype).kind in "iu":  # integers take no NaN, and 8-bit ones no more than 127; uint8 no sign
            x = np.abs(codes.astype(np.uint8).view(narrow).astype(np.float32))
            x = np.where(x < 100, x, 3).astype(narrow)
        else:
            x = codes.astype(np.uint8).view(narrow)
        model = cast(source, target, size)
        same(run(ep_session(model), [x])[0], on_cpu(model, x))


@pytest.mark.parametrize("source", INTEGERS, ids=TensorProto.DataType.Name)
def test_every_code(ep_session: MakeSession, source: int) -> None:
    name = TensorProto.DataType.Name(source)
    bits, signed = 4 if "4" in name else 2, name.startswith("INT")
    codes = np.arange(2**bits) - (2 ** (bits - 1) if signed else 0)
    x = np.tile(codes, 9).astype(helper.tensor_dtype_to_np_dtype(source))
    found = run(ep_session(cast(source, TensorProto.FLOAT, x.size)), [x])[0]
    np.testing.assert_array_equal(found, np.tile(codes, 9).astype(np.float32))
