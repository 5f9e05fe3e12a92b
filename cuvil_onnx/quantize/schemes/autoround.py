"""Rounding decided by signed gradients, after AutoRound.

Cheng et al., "Optimize Weight Rounding via Signed Gradient Descent for the Quantization of LLMs", arXiv 2309.05516: a
shift of each weight before it is rounded, within half a step either way, and a factor of each group's scale are moved
by the sign of the gradient of the output error, in steps that shrink to zero; rounding passes gradients through.

The paper runs a whole block of the model forwards and backwards. Here the error is that of one layer's output, whose
gradient 2 H (W' - W) needs only the mean H of x^T x. The best codes seen are taken, those of the start included.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from cuvil_onnx.errors import OptionError
from cuvil_onnx.quantize.grid import Array, Grid, Quantized, flat, grouped, representable
from cuvil_onnx.quantize.scheme import Context, Layer, Scheme
from cuvil_onnx.quantize.schemes._objective import fit_scales, hessian, with_codes

SHRINK, GROW = 0.8, 1.1
"""Bounds of the factor of a scale."""


class Autoround(Scheme):
    """See the module's text.

    Options: ``iterations``; ``rate``: the first step, 0 for 2 / iterations (which lets a weight cross its whole range);
    ``tune_scales``: whether scales move too; ``steps`` and ``narrowest``: the ranges tried for the first scales.
    """

    name = "autoround"
    summary = "rounding by signed gradient descent on each layer's output error, after AutoRound"
    calibrated: ClassVar[bool] = True
    defaults: ClassVar[Mapping[str, Any]] = {
        "iterations": 100,
        "rate": 0.0,
        "tune_scales": True,
        "steps": 12,
        "narrowest": 0.7,
    }

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for key in ("iterations", "rate"):
            if self.options[key] < 0:
                raise OptionError(f"scheme 'autoround': option {key!r} must not be negative, got {self.options[key]}")

    def quantize(self, layer: Layer, grid: Grid, context: Context) -> Quantized:
        xp, o = context.xp, self.options
        k = layer.weight.shape[0]
        moments = hessian(layer, xp)
        scales, zeros = fit_scales(
            layer.weight, xp.diagonal(moments), grid, xp, steps=o["steps"], narrowest=o["narrowest"]
        )
        blocks = grouped(layer.weight, grid, xp)
        shift = xp.zeros_like(blocks)
        factor = xp.ones_like(scales)
        lowest = grid.low - (0 if zeros is None else zeros[:, None, :])
        best_error = xp.full(layer.weight.shape[1], np.inf, xp.float32)
        best_codes = xp.zeros(blocks.shape, xp.float32)
        best_scales = scales
        rate = o["rate"] or 2.0 / max(o["iterations"], 1)
        for step in range(o["iterations"] + 1):
            used = representable(scales * factor, grid, xp)
            numbers = blocks / used[:, None, :]
            numbers += shift
            codes = xp.clip(xp.rint(numbers), lowest, lowest + (grid.high - grid.low))
            error = flat(codes * used[:, None, :], k) - layer.weight
            gradient = moments @ error
            column_error = (gradient * error).sum(axis=0)
            better = column_error < best_error  # columns do not depend on each other; false for NaN
            best_error = xp.where(better, column_error, best_error)
            best_codes = xp.where(better, codes, best_codes)
            best_scales = xp.where(better, used, best_scales)
            if step == o["iterations"]:
                break
            size = np.float32(rate * (1.0 - step / o["iterations"]))
            slope = grouped(gradient, grid, xp)
            inside = codes == xp.rint(numbers)
            if o["tune_scales"]:
                # d(codes * s)/ds with codes = w / s + shift + (a constant): codes - w / s; codes at an end stay.
                through = codes - xp.where(inside, blocks / used[:, None, :], 0)
                factor -= size * np.float32(0.1) * xp.sign((slope * through).sum(axis=1) * used)
                xp.clip(factor, SHRINK, GROW, out=factor)
            shift -= size * xp.sign(slope * used[:, None, :]) * inside
            xp.clip(shift, -0.5, 0.5, out=shift)
        return _result(best_codes, best_scales, zeros, k, grid, xp)


def _result(numbers: Array, scales: Array, zeros: Array | None, k: int, grid: Grid, xp: Any) -> Quantized:
    """Codes from the numbers relative to the zero point."""
    codes = numbers if zeros is None else numbers + zeros[:, None, :]
    codes = flat(codes, k).astype(xp.int8 if grid.symmetric else xp.uint8)
    return with_codes(codes, scales, zeros)
