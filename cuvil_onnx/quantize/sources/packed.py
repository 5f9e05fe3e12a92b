"""Codes of 2, 4 or 8 bits in 32-bit words, as GPTQ and AWQ checkpoints hold them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from cuvil_onnx.errors import ModelLoadError
from cuvil_onnx.quantize.grid import SCALE_DTYPES, Array, Grid, Quantized

WORD = 32


def unpack(words: Array, bits: int, axis: int, order: Sequence[int] | None = None) -> Array:
    """uint8 codes of int32 words; `axis` (0 or 1) grows by the number of codes in a word.

    Args:
        order: which of the codes of a word its fields hold, from the lowest bits up; None: the first, the second, ...
    """
    unsigned = words.astype("<i4").view(np.uint32)
    count = WORD // bits
    shifts = np.arange(0, WORD, bits, dtype=np.uint32)
    if order is not None:
        shifts = shifts[np.argsort(order)]
    fields = (np.expand_dims(unsigned, axis + 1) >> np.expand_dims(shifts, 1 - axis)) & np.uint32((1 << bits) - 1)
    shape = list(words.shape)
    shape[axis] *= count
    return fields.astype(np.uint8).reshape(shape)


def add_to_each(words: Array, bits: int) -> Array:
    """int32 words with 1 added to every code, as one addition of the word: a code that was 15 carries into the next.

    Writers subtracted in the same way, so that a carry undoes a borrow.
    """
    ones = sum(1 << shift for shift in range(0, WORD, bits))
    return (words.astype("<i4").view(np.uint32) + np.uint32(ones)).view(np.int32)


def quantized(
    name: str, codes: Array, zero_points: Array, scales: Array, bits: int, group_size: int
) -> tuple[Quantized, Grid]:
    """Unsigned codes [K, N], zero points [groups, N] and scales as they are in the file.

    When every zero point is the middle code, the codes become signed and lose them.

    Raises:
        ModelLoadError: scales of a type that no activation has, or that are no numbers.
    """
    stored = ir.DataType.from_numpy(scales.dtype)
    if stored not in SCALE_DTYPES:
        raise ModelLoadError(f"layer {name!r}: the scales are {stored}; float32, float16 or bfloat16 is required")
    numbers = scales.astype(np.float32)
    if not np.isfinite(numbers).all():
        raise ModelLoadError(f"layer {name!r}: some scales are NaN or infinite")
    middle = 1 << (bits - 1)
    held = max(bits, 4)
    if (zero_points == middle).all():
        signed = (codes.astype(np.int16) - middle).astype(np.int8)
        return Quantized(signed, numbers), Grid(held, group_size, True, stored)
    return Quantized(codes, numbers, zero_points), Grid(held, group_size, False, stored)
