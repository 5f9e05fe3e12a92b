"""The tensor types of GGUF, decoded to codes, scales and offsets: weight = code * scale + offset, group by group.

A type is a struct in blocks of 32 elements, or of 256 in groups of 16 or 32 whose scales are small integers times the
block's float16 scale: such a product has at most 19 significant bits, so float32 scales lose nothing.
Layouts: ggml's ggml-common.h.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from cuvil_onnx.errors import ModelLoadError
from cuvil_onnx.quantize.grid import Array, Grid, Quantized
from cuvil_onnx.quantize.sources.gguf_file import BLOCKS, GgufTensor
from cuvil_onnx.quantize.sources.source import SourceWeight, dequantized

# Of blocks, uint8 [..., bytes of a block]: codes [..., elements], scales and offsets [..., groups] (None: 0).
_Parts = tuple[Array, Array, Array | None]


def decode(tensor: GgufTensor) -> SourceWeight:
    """A quantized matrix of the file, [N, K] there, as [K, N].

    Raises:
        ModelLoadError: the type cannot be read, the tensor is no matrix, or a scale is NaN or infinite.
    """
    if tensor.data is None or tensor.kind not in _DECODERS or len(tensor.shape) != 2:
        known = ", ".join(_DECODERS)
        raise ModelLoadError(
            f"tensor {tensor.name!r} is {tensor.kind} of shape {list(tensor.shape)}; a matrix of {known} is required"
        )
    bits, group, symmetric, split = _DECODERS[tensor.kind]
    n = tensor.shape[0]
    blocks = tensor.data.reshape(n, -1, BLOCKS[tensor.kind][1])
    codes, scales, offsets = split(blocks)
    for name, numbers in (("scales", scales), ("offsets", offsets)):
        if numbers is not None and not np.isfinite(numbers).all():
            raise ModelLoadError(f"tensor {tensor.name!r}: some {name} are NaN or infinite")

    def columns(rows: Array | None) -> Array | None:
        return None if rows is None else np.ascontiguousarray(rows.reshape(n, -1).T)

    exact = ir.DataType.FLOAT16 if tensor.kind[-1] != "K" else ir.DataType.FLOAT
    by_column = columns(codes), columns(scales), columns(offsets)
    assert by_column[0] is not None and by_column[1] is not None
    quantized = Quantized(by_column[0], by_column[1], offsets=by_column[2])
    return SourceWeight(quantized, Grid(bits, group, symmetric, exact))


def floats(tensor: GgufTensor) -> Array:
    """A tensor in the shape it has in the file: float32 of F32, BF16 and quantized types, float16 of F16."""
    if tensor.data is not None and tensor.kind in ("F32", "F16"):
        return tensor.data.view("<f4" if tensor.kind == "F32" else "<f2").reshape(tensor.shape)
    if tensor.data is not None and tensor.kind == "BF16":
        return (tensor.data.view("<u2").astype(np.uint32) << 16).view(np.float32).reshape(tensor.shape)
    return np.ascontiguousarray(dequantized(decode(tensor)).T)


def is_quantized(tensor: GgufTensor) -> bool:
    """Whether ``decode`` can read it."""
    return tensor.kind in _DECODERS and len(tensor.shape) == 2


def _half(blocks: Array, start: int) -> Array:
    """The float16 number at a byte of each block, as float32 [..., 1]."""
    number = np.ascontiguousarray(blocks[..., start : start + 2]).view("<f2")
    return number.astype(np.float32)


def _nibbles(packed: Array) -> Array:
    """[..., 2 * bytes]: all low halves, then all high ones."""
    return np.concatenate([packed & 15, packed >> 4], axis=-1)


def _fifth_bits(blocks: Array, start: int) -> Array:
    """[..., 32] of 0 or 16: one bit an element from four bytes."""
    bits = np.unpackbits(blocks[..., start : start + 4], axis=-1, bitorder="little")
    return bits << 4


def _q4_0(blocks: Array) -> _Parts:
    return _nibbles(blocks[..., 2:]).astype(np.int8) - np.int8(8), _half(blocks, 0), None


def _q4_1(blocks: Array) -> _Parts:
    return _nibbles(blocks[..., 4:]), _half(blocks, 0), _half(blocks, 2)


def _q5_0(blocks: Array) -> _Parts:
    codes = _nibbles(blocks[..., 6:]) | _fifth_bits(blocks, 2)
    return codes.astype(np.int8) - np.int8(16), _half(blocks, 0), None


def _q5_1(blocks: Array) -> _Parts:
    return _nibbles(blocks[..., 8:]) | _fifth_bits(blocks, 4), _half(blocks, 0), _half(blocks, 2)


def _q8_0(blocks: Array) -> _Parts:
    return np.ascontiguousarray(blocks[..., 2:]).view(np.int8), _half(blocks, 0), None


def _six_bit_scales(packed: Array) -> tuple[Array, Array]:
    """Eight scales and eight minima of 6 bits each, [..., 8], from 12 bytes.

    The first four of each are the low six bits of bytes 0-3 and 4-7; of the other four, the low four bits are the
    halves of bytes 8-11 and the high two are what the first four left over.
    """
    low, middle, high = packed[..., 0:4], packed[..., 4:8], packed[..., 8:12]
    scales = np.concatenate([low & 63, (high & 15) | (low >> 6 << 4)], axis=-1)
    minima = np.concatenate([middle & 63, (high >> 4) | (middle >> 6 << 4)], axis=-1)
    return scales.astype(np.float32), minima.astype(np.float32)


def _pairs(packed: Array) -> Array:
    """[..., 8, 32] of 128 bytes: each 32 of them hold a group in their low halves and the next one in their high."""
    chunks = packed.reshape(*packed.shape[:-1], 4, 1, 32)
    both = np.concatenate([chunks & 15, chunks >> 4], axis=-2)
    return both.reshape(*packed.shape[:-1], 8, 32)


def _k_parts(blocks: Array, codes: Array) -> _Parts:
    scales, minima = _six_bit_scales(blocks[..., 4:16])
    return codes, _half(blocks, 0) * scales, -(_half(blocks, 2) * minima)


def _q4_k(blocks: Array) -> _Parts:
    return _k_parts(blocks, _pairs(blocks[..., 16:]))


def _q5_k(blocks: Array) -> _Parts:
    fifth = blocks[..., None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None] & 1
    return _k_parts(blocks, _pairs(blocks[..., 48:]) | fifth << 4)


def _q6_k(blocks: Array) -> _Parts:
    """Two halves of 128 elements; the quarters of a half share bytes: low four bits in `low`, high two in `high`."""
    low = blocks[..., :128].reshape(*blocks.shape[:-1], 2, 2, 32)
    high = blocks[..., 128:192].reshape(*blocks.shape[:-1], 2, 1, 32)
    nibbles = np.concatenate([low & 15, low >> 4], axis=-2)
    top = high >> np.arange(0, 8, 2, dtype=np.uint8)[:, None] & 3
    codes = (nibbles | top << 4).astype(np.int8) - np.int8(32)
    scales = np.ascontiguousarray(blocks[..., 192:208]).view(np.int8).astype(np.float32)
    return codes, _half(blocks, 208) * scales, None


# Bits of the codes as they are stored here, group size, whether codes are signed, and the decoder.
_DECODERS: dict[str, tuple[int, int, bool, Callable[[Array], _Parts]]] = {
    "Q4_0": (4, 32, True, _q4_0),
    "Q4_1": (4, 32, False, _q4_1),
    "Q5_0": (8, 32, True, _q5_0),
    "Q5_1": (8, 32, False, _q5_1),
    "Q8_0": (8, 32, True, _q8_0),
    "Q4_K": (4, 32, False, _q4_k),
    "Q5_K": (8, 32, False, _q5_k),
    "Q6_K": (8, 16, True, _q6_k),
}
