"""AWQ: scales the channels of a layer's input so that those with large activations are rounded more finely.

Lin et al., "AWQ: Activation-aware Weight Quantization for LLM Compression and Acceleration", arXiv 2306.00978. The
scale of a channel is magnitude^a / (the weights' own magnitude)^b, the exponents are tried on a grid, and layers that
read one tensor share it. Each trial rounds all weights of the group and measures the squared error at the products'
outputs over the calibration data, from the mean of x^T x, so that no activations are kept. After that ranges are
narrowed group by group where that lowers the error.

The joint configuration of a scale search and another grid (``joint.py``) searches on its own bits and group size.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any, ClassVar

import numpy as np

from cuvil_onnx.errors import OptionError
from cuvil_onnx.quantize.grid import Array, Grid, Quantized, dequantize, grouped, min_max
from cuvil_onnx.quantize.scheme import Context, Layer, Scheme
from cuvil_onnx.quantize.schemes._objective import fit_scales, hessian, nearest, output_error
from cuvil_onnx.quantize.schemes.gptq import compensated

ROUNDINGS = ("nearest", "gptq")
LEAST_GAIN = 0.02
"""What part of the error a scale has to save: where it cannot be folded away it costs a multiplication."""

MAX_RATIO = 1e4
"""Largest over smallest scale: beyond it float16 activations would not survive the division."""


class Awq(Scheme):
    """See the module's text.

    Options: ``trials``: exponents between 0 and 1 that are tried; ``rounding``: "nearest" as in the paper, or "gptq" on
    the scaled weights; ``steps`` and ``narrowest``: the ranges that are tried after the search; ``search_bits`` and
    ``search_group_size``: of the search, 0 for those of the result; ``damping``: GPTQ's.
    """

    name = "awq"
    summary = "AWQ: channels with large activations are rounded more finely; rounding=gptq combines both"
    calibrated: ClassVar[bool] = True
    defaults: ClassVar[Mapping[str, Any]] = {
        "trials": 20,
        "rounding": "nearest",
        "steps": 10,
        "narrowest": 0.7,
        "search_bits": 0,
        "search_group_size": 0,
        "damping": 0.01,
    }

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        if self.options["rounding"] not in ROUNDINGS:
            raise OptionError(
                f"scheme 'awq': option 'rounding' must be {' or '.join(ROUNDINGS)}, got {self.options['rounding']!r}"
            )
        if self.options["trials"] < 1:
            raise OptionError(f"scheme 'awq': option 'trials' must be positive, got {self.options['trials']}")

    def input_scale(self, layers: Sequence[Layer], grid: Grid, context: Context) -> Array | None:
        xp = context.xp
        statistics = layers[0].statistics
        if statistics is None or not statistics.rows:
            return None
        o = self.options
        bits, group = o["search_bits"] or grid.bits, o["search_group_size"] or grid.group_size
        grid = dataclasses.replace(grid, bits=bits, group_size=group)
        moments = hessian(layers[0], xp)
        activation = xp.asarray(statistics.mean_magnitude(), dtype=xp.float32)
        weights = [layer.weight for layer in layers]
        weight_size = _weight_magnitude(weights, grid, xp)
        plain = best = sum(_error(weight, None, moments, grid, xp) for weight in weights)
        found: Array | None = None
        for trial in range(1, o["trials"] + 1):
            exponent = trial / o["trials"]
            for weight_exponent in (0.0, 1.0 - exponent):
                if weight_exponent == 0.0 and trial == 1 and o["trials"] > 4:
                    continue  # nearly no scale: the error is nearly the plain one
                scale = channel_scale(activation, weight_size, exponent, weight_exponent, xp)
                error = sum(_error(weight, scale, moments, grid, xp) for weight in weights)
                if error < best:
                    best, found = error, scale
                if weight_exponent == 0.0 and exponent == 1.0:
                    break
        return found if best < (1.0 - LEAST_GAIN) * plain else None

    def quantize(self, layer: Layer, grid: Grid, context: Context) -> Quantized:
        xp, o = context.xp, self.options
        moments = hessian(layer, xp)
        importance = xp.diagonal(moments)
        scales, zeros = fit_scales(layer.weight, importance, grid, xp, steps=o["steps"], narrowest=o["narrowest"])
        if o["rounding"] == "gptq":
            return compensated(layer.weight, moments, scales, zeros, grid, xp, damping=o["damping"])
        return nearest(layer.weight, scales, zeros, grid, xp)


def channel_scale(
    activation: Array, weight_size: Array, exponent: float, weight_exponent: float, xp: ModuleType
) -> Array:
    """activation^exponent / weight_size^weight_exponent, float32 [K], around 1 and within ``MAX_RATIO``.

    Channels without activations or weights get the scale of the smallest ones that have some.
    """
    logs = exponent * _logs(activation, xp) - weight_exponent * _logs(weight_size, xp)
    logs = logs - (logs.max() + logs.min()) / 2
    limit = np.log(MAX_RATIO) / 2
    return xp.exp(xp.clip(logs, -limit, limit)).astype(xp.float32)  # type: ignore[no-any-return]


def _logs(numbers: Array, xp: ModuleType) -> Array:
    """Logarithms in float64; those of zeros are the smallest of the others (0 when there are none)."""
    positive = numbers > 0
    if not bool(positive.any()):
        return xp.zeros(numbers.shape, xp.float64)  # type: ignore[no-any-return]
    floor = numbers[positive].min()
    return xp.log(xp.maximum(numbers, floor).astype(xp.float64))  # type: ignore[no-any-return]


def _weight_magnitude(weights: Sequence[Array], grid: Grid, xp: ModuleType) -> Array:
    """float32 [K]: the mean over the columns of |w| / (the largest |w| of its group)."""
    total, columns = 0.0, 0
    for weight in weights:
        blocks = xp.abs(grouped(weight, grid, xp))
        largest = blocks.max(axis=1, keepdims=True)
        part = blocks / xp.where(largest == 0, 1.0, largest)
        total = total + part.sum(axis=2).reshape(-1)[: weight.shape[0]]
        columns += weight.shape[1]
    return total / max(columns, 1)  # type: ignore[return-value]


def _error(weight: Array, scale: Array | None, moments: Array, grid: Grid, xp: ModuleType) -> float:
    """The error at the output of a weight rounded to nearest with its rows scaled."""
    scaled = weight if scale is None else weight * scale[:, None]
    scales, zeros = min_max(grouped(scaled, grid, xp), grid, xp)
    rounded = dequantize(nearest(scaled, scales, zeros, grid, xp), grid, xp)
    if scale is not None:
        rounded = rounded / scale[:, None]
    error = output_error(rounded - weight, moments)
    return error if np.isfinite(error) else float("inf")
