"""Codes as ONNX stores them: two of 4 bits in a byte, the earlier one in the low half, across rows."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from cuvil_onnx.quantize.grid import Array


def pack4(codes: Array) -> Array:
    """uint8 [ceil(n / 2)]: the low 4 bits of each element, in order; an odd last one with 0 beside it."""
    flat = np.ascontiguousarray(codes).reshape(-1).view(np.uint8) & 0xF
    if flat.size % 2:
        flat = np.concatenate([flat, np.zeros(1, np.uint8)])
    packed: Array = flat[0::2] | (flat[1::2] << 4)
    return packed


def unpack4(packed: Array, count: int, *, signed: bool) -> Array:
    """int8 (signed) or uint8 [count]: the inverse of :func:`pack4`."""
    flat = np.empty(2 * packed.size, np.uint8)
    flat[0::2], flat[1::2] = packed & 0xF, packed >> 4
    flat = flat[:count]
    return ((flat ^ 8) - 8).view(np.int8) if signed else flat


def code_tensor(codes: Array, dtype: ir.DataType) -> ir.TensorProtocol:
    """Codes of any shape, int8 or uint8 one an element, as a tensor of ``dtype`` (4 or 8 bits)."""
    if dtype.bitwidth == 8:
        return ir.Tensor(np.ascontiguousarray(codes), dtype=dtype)
    return ir.PackedTensor(pack4(codes), dtype, shape=ir.Shape(codes.shape))


def codes_of(tensor: ir.TensorProtocol) -> Array:
    """int8 or uint8, one an element: the inverse of :func:`code_tensor`."""
    signed = tensor.dtype in (ir.DataType.INT4, ir.DataType.INT8)
    shape = tuple(int(d) for d in tensor.shape.numpy())
    if tensor.dtype.bitwidth == 8:
        return np.asarray(tensor.numpy()).view(np.int8 if signed else np.uint8)
    return unpack4(np.frombuffer(tensor.tobytes(), np.uint8), tensor.size, signed=signed).reshape(shape)


class CodeBuffer:
    """Codes [K, N] that arrive some columns at a time; of 4 bits they are packed at once where N is even."""

    def __init__(self, k: int, n: int, dtype: ir.DataType) -> None:
        self._shape, self._dtype = (k, n), dtype
        self._packs = dtype.bitwidth == 4 and n % 2 == 0
        self._signed = dtype in (ir.DataType.INT4, ir.DataType.INT8)
        self._data = np.zeros((k, n // 2 if self._packs else n), np.uint8)

    def put(self, columns: slice, codes: Array) -> None:
        """Codes [K, n] of some columns, the first of which is an even one."""
        if not self._packs:
            self._data[:, columns] = codes.view(np.uint8)
            return
        half = slice(columns.start // 2, -(-columns.stop // 2))
        self._data[:, half] = pack4(codes).reshape(codes.shape[0], -1)

    def tensor(self) -> ir.TensorProtocol:
        """All codes."""
        if self._packs:
            return ir.PackedTensor(self._data.reshape(-1), self._dtype, shape=ir.Shape(self._shape))
        return code_tensor(self._data.view(np.int8) if self._signed else self._data, self._dtype)
