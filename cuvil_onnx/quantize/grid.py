"""The numbers that a quantized weight can take, and rounding to them.

Everything here works on arrays of ``xp``, numpy or cupy, and on whole weights [K, N]: groups lie along K, the last one
possibly shorter. Padding such a group with zeros changes nothing, since zero is on every grid.
"""

from __future__ import annotations

import dataclasses
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx_ir as ir

Array = npt.NDArray[Any]

GROUP_SIZES = (16, 32, 64, 128, 256)
"""Those that ONNX Runtime fuses; -1 stands for whole columns."""

SCALE_DTYPES = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)

CACHE_BYTES = 1 << 21
"""Work on pieces of this size stays in a core's cache."""

WORK_BYTES = 1 << 26
"""Pieces of this size are worth a matrix product or a loop over rows, on a GPU a call."""


@dataclasses.dataclass(frozen=True)
class Grid:
    """What a quantized weight looks like.

    Symmetric codes are signed and have no zero point; asymmetric ones are unsigned and have an integer zero point a
    group. Scales are numbers of ``scale_dtype``, and schemes must round codes to the scales after that conversion.

    Attributes:
        bits: 4 or 8.
        group_size: rows that share a scale; -1: all of them.
        symmetric: see above.
        scale_dtype: the element type of the scales in the model, that of the activations.
    """

    bits: int = 4
    group_size: int = 128
    symmetric: bool = False
    scale_dtype: ir.DataType = ir.DataType.FLOAT

    @property
    def low(self) -> int:
        """The smallest code."""
        return -(1 << (self.bits - 1)) if self.symmetric else 0

    @property
    def high(self) -> int:
        """The largest code."""
        return self.low + (1 << self.bits) - 1

    @property
    def code_dtype(self) -> ir.DataType:
        """The element type of the codes in the model."""
        signed, unsigned = {4: (ir.DataType.INT4, ir.DataType.UINT4), 8: (ir.DataType.INT8, ir.DataType.UINT8)}[
            self.bits
        ]
        return signed if self.symmetric else unsigned

    def rows(self, k: int) -> int:
        """Rows of a full group of a weight with ``k`` rows."""
        return max(k, 1) if self.group_size < 0 else self.group_size

    def groups(self, k: int) -> int:
        """How many groups ``k`` rows have."""
        return -(-k // self.rows(k))


@dataclasses.dataclass
class Quantized:
    """A quantized weight; weight = (codes - zero_points) * scales + offsets, group by group.

    Attributes:
        codes: int8 (symmetric) or uint8 [K, N], one code an element, within the grid.
        scales: float32 [groups, N], each a finite number of the grid's ``scale_dtype``.
        zero_points: as ``codes`` [groups, N]; None: 0.
        offsets: float32 [groups, N] of ``scale_dtype``, for sources with float zero points; None: 0.
    """

    codes: Array
    scales: Array
    zero_points: Array | None = None
    offsets: Array | None = None


def grouped(weight: Array, grid: Grid, xp: ModuleType) -> Array:
    """[groups, rows, N], padded with zeros; a view where no padding is needed."""
    k, n = weight.shape
    rows, groups = grid.rows(k), grid.groups(k)
    if rows * groups != k:
        weight = xp.concatenate([weight, xp.zeros((rows * groups - k, n), weight.dtype)])
    return weight.reshape(groups, rows, n)


def flat(blocks: Array, k: int) -> Array:
    """The inverse of :func:`grouped`."""
    return blocks.reshape(-1, blocks.shape[-1])[:k]


def representable(scales: Array, grid: Grid, xp: ModuleType) -> Array:
    """float32 scales rounded to the grid's ``scale_dtype``; none of them becomes 0 or infinite.

    The smallest subnormal number stands in for what would become 0: zero scales make weights vanish that other numbers
    of the type could hold, and 1 / 0 makes NaN.
    """
    kind = grid.scale_dtype
    if kind == ir.DataType.FLOAT:
        tiny, largest = np.finfo(np.float32).tiny, np.finfo(np.float32).max
        rounded = scales.astype(xp.float32)
    else:
        info = ml_dtypes.finfo(kind.numpy())  # type: ignore[no-untyped-call]
        # bfloat16 has float32's exponents: its subnormal numbers are flushed on some devices.
        tiny = info.smallest_subnormal if kind == ir.DataType.FLOAT16 else info.tiny
        largest = info.max
        rounded = _to(xp.clip(scales, -float(largest), float(largest)), kind, xp)
    magnitude = xp.clip(xp.abs(rounded), np.float32(tiny), np.float32(largest))
    return xp.where(scales < 0, -magnitude, magnitude).astype(xp.float32)  # type: ignore[no-any-return]


def round_to_grid(weight: Array, scales: Array, zero_points: Array | None, grid: Grid, xp: ModuleType) -> Array:
    """The nearest codes, int8 or uint8 [K, N], of a float32 weight [K, N] for given scales and zero points."""
    blocks = grouped(weight, grid, xp)
    codes = xp.rint(blocks / scales[:, None, :])
    if zero_points is not None:
        codes += zero_points[:, None, :]
    codes = xp.clip(codes, grid.low, grid.high)
    return flat(codes, weight.shape[0]).astype(xp.int8 if grid.symmetric else xp.uint8)


def dequantize(quantized: Quantized, grid: Grid, xp: ModuleType) -> Array:
    """The float32 weight [K, N] that the model computes with."""
    blocks = grouped(quantized.codes, grid, xp).astype(xp.float32)
    if quantized.zero_points is not None:
        blocks -= quantized.zero_points[:, None, :]
    blocks *= quantized.scales[:, None, :]
    if quantized.offsets is not None:
        blocks += quantized.offsets[:, None, :]
    return flat(blocks, quantized.codes.shape[0])


def min_max(
    blocks: Array, grid: Grid, xp: ModuleType, *, shrink: Array | float = 1.0, full_range: bool = True
) -> tuple[Array, Array | None]:
    """Scales and zero points that cover the range of each group, made ``shrink`` times as wide.

    Args:
        blocks: float32 [groups, rows, N], finite.
        grid: what to round to.
        xp: numpy or cupy.
        shrink: clips the outermost weights when below 1; broadcasts to [groups, N].
        full_range: symmetric only: the weight of the largest magnitude gets the code -2^(bits-1), whatever its sign
            (the scale takes that sign), instead of the largest magnitude the code 2^(bits-1) - 1: finer by 1/7 at 4
            bits, and clips what lies at the other end.

    Returns:
        float32 scales [groups, N], representable and never 0 (1 for a group of zeros), and integer zero points in
        float32, None when symmetric.
    """
    # In float64: the width of a range of float32 numbers may exceed float32.
    low = xp.minimum(blocks.min(axis=1), 0).astype(xp.float64) * shrink
    high = xp.maximum(blocks.max(axis=1), 0).astype(xp.float64) * shrink
    info = ml_dtypes.finfo(grid.scale_dtype.numpy())  # type: ignore[no-untyped-call]
    largest = float(info.max)
    if grid.symmetric:
        if full_range:
            extreme = xp.where(high > -low, high, low)
            scales = extreme / grid.low
        else:
            scales = xp.maximum(high, -low) / grid.high
        scales = xp.where(scales == 0, 1.0, xp.clip(scales, -largest / -grid.low, largest / -grid.low))
        return representable(scales, grid, xp), None
    scales = (high - low) / grid.high
    scales = xp.where(scales == 0, 1.0, xp.minimum(scales, largest))
    scales = representable(scales, grid, xp)
    zero_points = xp.clip(xp.rint(-low / scales), grid.low, grid.high)
    # The outermost codes must not stand for infinity: (15 - 7) * s may exceed the type where 7.5 s did not. Rounding
    # the scale adds half of an epsilon.
    reach = xp.maximum(grid.high - zero_points, zero_points)
    limit = largest * (1 - float(info.eps)) / xp.maximum(reach, 1)
    scales = representable(xp.minimum(scales, limit), grid, xp)
    return scales, zero_points.astype(xp.float32)


def column_chunks(k: int, n: int, nbytes: int = CACHE_BYTES) -> list[slice]:
    """Columns in pieces of ``nbytes`` in float32, each beginning at an even one."""
    width = max(2, nbytes // (4 * max(k, 1)) // 2 * 2)
    return [slice(start, min(start + width, n)) for start in range(0, n, width)]


def _to(numbers: Array, kind: ir.DataType, xp: ModuleType) -> Array:
    """Numbers rounded to a 16-bit type, as float32."""
    if kind == ir.DataType.FLOAT16:
        return numbers.astype(xp.float16).astype(xp.float32)
    # bfloat16 by its bits, which both array modules have: round to nearest even at bit 16.
    bits = numbers.astype(xp.float32).view(xp.uint32)
    bits = (bits + xp.uint32(0x7FFF) + ((bits >> xp.uint32(16)) & xp.uint32(1))) & xp.uint32(0xFFFF0000)
    return bits.view(xp.float32)  # type: ignore[no-any-return]
