"""HQQ: zero points by half-quadratic splitting, without data.

Badri and Shaji, "Half-Quadratic Quantization of Large Machine Learning Models" (Mobius Labs, 2023). The error of
rounding is measured by |e|^p with p < 1, which lets a few weights be far off for the sake of the many. Two steps take
turns: the error's sparse part is what a shrinkage leaves of it, and the zero point of each group is the mean of what
the codes would need for the rest.

What differs: the scale is fitted along with the zero point (least squares); integer zero points are rounded at the end
and the scale is fitted to them again; ``float_zeros`` keeps them as offsets; and of each group the best of all
iterations is taken, its start included, by the measure above.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any, ClassVar

import numpy as np

from cuvil_onnx.errors import OptionError
from cuvil_onnx.quantize.grid import Array, Grid, Quantized, flat, grouped, min_max, representable
from cuvil_onnx.quantize.scheme import Context, Layer, Scheme


class Hqq(Scheme):
    """See the module's text.

    Options: ``p``: the exponent; ``beta``: the weight of the splitting at the start, relative to the scale;
    ``growth``: its factor an iteration; ``iterations``; ``float_zeros``: zero points that are no integers
    (asymmetric grids only).
    """

    name = "hqq"
    summary = "HQQ: zero points by half-quadratic splitting, no data needed"
    defaults: ClassVar[Mapping[str, Any]] = {
        "p": 0.7,
        "beta": 10.0,
        "growth": 1.05,
        "iterations": 20,
        "float_zeros": False,
    }

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        if not 0 < self.options["p"] <= 1:
            raise OptionError(f"scheme 'hqq': option 'p' must be above 0 and at most 1, got {self.options['p']}")

    def quantize(self, layer: Layer, grid: Grid, context: Context) -> Quantized:
        xp, o = context.xp, self.options
        blocks = grouped(layer.weight, grid, xp)
        scales, zeros = min_max(blocks, grid, xp)
        rows = layer.weight.shape[0]
        mask = grouped(xp.ones((rows, 1), xp.float32), grid, xp)  # the padding of a short group has no say
        free = bool(o["float_zeros"]) and not grid.symmetric
        best = _State(blocks, scales, zeros, mask, grid, o["p"], xp)
        current_scales, current_zeros = scales, zeros
        if free:
            current_scales, current_zeros = _free_range(blocks, mask, grid, xp)
            best.offer(current_scales, current_zeros)
        beta = float(o["beta"])
        for _ in range(o["iterations"]):
            current_scales, current_zeros = _step(
                blocks, current_scales, current_zeros, mask, grid, o["p"], beta, free, xp
            )
            beta *= float(o["growth"])
            if free or current_zeros is None:
                best.offer(current_scales, current_zeros)
            else:
                whole = xp.clip(xp.rint(current_zeros), grid.low, grid.high)
                best.offer(_fitted_scales(blocks, current_scales, whole, mask, grid, xp), whole)
        return best.result(rows, free)


class _State:
    """The best scales and zero points seen so far, group by group."""

    def __init__(
        self, blocks: Array, scales: Array, zeros: Array | None, mask: Array, grid: Grid, p: float, xp: ModuleType
    ) -> None:
        self._blocks, self._mask, self._grid, self._p, self._xp = blocks, mask, grid, p, xp
        self.scales, self.zeros = scales, zeros
        self._error = self._measure(scales, zeros)

    def offer(self, scales: Array, zeros: Array | None) -> None:
        xp = self._xp
        error = self._measure(scales, zeros)
        better = error < self._error  # false for NaN
        self._error = xp.where(better, error, self._error)
        self.scales = xp.where(better, scales, self.scales)
        if zeros is not None and self.zeros is not None:
            self.zeros = xp.where(better, zeros, self.zeros)

    def _measure(self, scales: Array, zeros: Array | None) -> Array:
        """[groups, N]: the sum of |error|^p relative to the scale of the weights in the group."""
        xp = self._xp
        error = xp.abs(self._blocks - _rounded(self._blocks, scales, zeros, self._grid, xp)) * self._mask
        return (error ** xp.float32(self._p)).sum(axis=1)  # type: ignore[no-any-return]

    def result(self, rows: int, free: bool) -> Quantized:
        xp, grid = self._xp, self._grid
        codes = _codes(self._blocks, self.scales, self.zeros, grid, xp)
        codes = flat(codes, rows).astype(xp.int8 if grid.symmetric else xp.uint8)
        if self.zeros is None:
            return Quantized(codes, self.scales)
        if not free:
            return Quantized(codes, self.scales, self.zeros.astype(codes.dtype))
        return Quantized(codes, self.scales, None, representable(-self.zeros * self.scales, grid, xp))


def _codes(blocks: Array, scales: Array, zeros: Array | None, grid: Grid, xp: ModuleType) -> Array:
    codes = blocks / scales[:, None, :]
    if zeros is not None:
        codes = codes + zeros[:, None, :]
    return xp.clip(xp.rint(codes), grid.low, grid.high)  # type: ignore[no-any-return]


def _rounded(blocks: Array, scales: Array, zeros: Array | None, grid: Grid, xp: ModuleType) -> Array:
    codes = _codes(blocks, scales, zeros, grid, xp)
    if zeros is not None:
        codes = codes - zeros[:, None, :]
    return codes * scales[:, None, :]


def _step(
    blocks: Array,
    scales: Array,
    zeros: Array | None,
    mask: Array,
    grid: Grid,
    p: float,
    beta: float,
    free: bool,
    xp: ModuleType,
) -> tuple[Array, Array | None]:
    """One round: the sparse part of the error, then scale and zero point for what remains."""
    codes = _codes(blocks, scales, zeros, grid, xp)
    numbers = codes if zeros is None else codes - zeros[:, None, :]
    unit = xp.abs(scales)[:, None, :]
    error = (blocks - numbers * scales[:, None, :]) / unit
    size = xp.abs(error)
    threshold = (p / beta) * xp.maximum(size, np.float32(1e-4)) ** np.float32(p - 1)
    target = blocks - xp.sign(error) * xp.maximum(size - threshold, 0) * unit
    if zeros is None:
        return _least_squares(target, codes, scales, mask, grid, xp), None
    count = mask.sum(axis=1)
    new = ((codes - target / scales[:, None, :]) * mask).sum(axis=1) / count
    if not free:
        new = xp.clip(new, grid.low, grid.high)
    return _least_squares(target, codes - new[:, None, :], scales, mask, grid, xp), new


def _free_range(blocks: Array, mask: Array, grid: Grid, xp: ModuleType) -> tuple[Array, Array]:
    """Scales and zero points that are no integers, from the smallest to the largest weight of each group."""
    inside = mask > 0
    low = xp.where(inside, blocks, np.inf).min(axis=1).astype(xp.float64)
    high = xp.where(inside, blocks, -np.inf).max(axis=1).astype(xp.float64)
    scales = (high - low) / (grid.high - grid.low)
    scales = representable(xp.where(scales == 0, xp.where(low == 0, 1.0, xp.abs(low)), scales), grid, xp)
    return scales, (-low / scales).astype(xp.float32)


def _fitted_scales(blocks: Array, scales: Array, zeros: Array, mask: Array, grid: Grid, xp: ModuleType) -> Array:
    """Scales fitted to the codes that given zero points lead to."""
    codes = _codes(blocks, scales, zeros, grid, xp)
    return _least_squares(blocks, codes - zeros[:, None, :], scales, mask, grid, xp)


def _least_squares(target: Array, numbers: Array, scales: Array, mask: Array, grid: Grid, xp: ModuleType) -> Array:
    """The scales that bring numbers * scale nearest to the target; the old ones where that tells nothing."""
    numbers = numbers * mask
    square = (numbers * numbers).sum(axis=1)
    fitted = (numbers * target).sum(axis=1) / xp.where(square == 0, 1.0, square)
    usable = (square > 0) & xp.isfinite(fitted) & (xp.sign(fitted) == xp.sign(scales))
    # Far from the range of the weights a fit is an accident of few codes.
    usable &= (xp.abs(fitted) < 2 * xp.abs(scales)) & (xp.abs(fitted) > xp.abs(scales) / 2)
    return representable(xp.where(usable, fitted, scales), grid, xp)
