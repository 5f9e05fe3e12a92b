"""Nibbles: what is packed is what ONNX reads."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuvil_onnx.quantize.pack import CodeBuffer, code_tensor, codes_of, pack4, unpack4
from tests.quantize.quantize_testing import array_of

DTYPES = [ir.DataType.INT4, ir.DataType.UINT4, ir.DataType.INT8, ir.DataType.UINT8]
LIMITS = {"INT4": (-8, 7), "UINT4": (0, 15), "INT8": (-128, 127), "UINT8": (0, 255)}


def random_codes(dtype: ir.DataType, *shape: int) -> np.ndarray:
    low, high = LIMITS[dtype.name]
    kind = np.int8 if dtype.name.startswith("INT") else np.uint8
    return np.random.default_rng([*shape, int(dtype)]).integers(low, high + 1, shape).astype(kind)


@given(st.lists(st.integers(0, 15), max_size=33))
def test_unpacking_undoes_packing(codes: list[int]) -> None:
    array = np.array(codes, np.uint8)
    packed = pack4(array)
    assert packed.size == -(-array.size // 2)
    np.testing.assert_array_equal(unpack4(packed, array.size, signed=False), array)


def test_low_half_comes_first_and_an_odd_end_is_zero() -> None:
    assert pack4(np.array([1, 2, 15], np.uint8)).tolist() == [0x21, 0x0F]
    assert pack4(np.array([-1, -8], np.int8)).tolist() == [0x8F]
    assert unpack4(np.array([0x8F], np.uint8), 2, signed=True).tolist() == [-1, -8]


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
@pytest.mark.parametrize("shape", [(3, 5), (4, 6), (2, 3, 5), (1, 1), (0, 4)])
def test_tensors_as_onnx_reads_them(dtype: ir.DataType, shape: tuple[int, ...]) -> None:
    codes = random_codes(dtype, *shape)
    tensor = code_tensor(codes, dtype)
    assert tensor.dtype == dtype and tensor.nbytes == -(-codes.size * dtype.bitwidth // 8)
    proto = ir.to_proto(tensor)
    np.testing.assert_array_equal(array_of(proto).astype(np.int64), codes)
    np.testing.assert_array_equal(codes_of(tensor), codes)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
@pytest.mark.parametrize("n", [1, 7, 8, 33, 34])
def test_buffer_takes_columns_in_pieces(dtype: ir.DataType, n: int) -> None:
    codes = random_codes(dtype, 5, n)
    buffer = CodeBuffer(5, n, dtype)
    for start in range(0, n, 4):
        part = slice(start, min(start + 4, n))
        buffer.put(part, codes[:, part])
    assert buffer.tensor().tobytes() == code_tensor(codes, dtype).tobytes()
