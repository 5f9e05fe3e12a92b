"""AWQ: scales the channels of a layer's input so that those with large activations are rounded more finely.

Lin et al., "AWQ: Activation-aware Weight Quantization for LLM Compression and Acceleration", arXiv 2306.00978. The
scale of a channel is magnitude^a / (the weights' own magnitude)^b, the exponents are tried on a grid, and layers that
read one tensor share it. Each trial rounds all weights of the group and measures the squared error at the products'
outputs over the calibration data, from the mean of x^T x, so that no activations are kept. After that ranges are
narrowed group by group where that lowers the error, and scales are fitted to the outputs.

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
from cuvil_onnx.quantize.schemes._descent import Lines, fit_all_scales
from cuvil_onnx.quantize.schemes._objective import fit_scales, hessian, nearest, output_error, with_codes
from cuvil_onnx.quantize.schemes.gptq import Solver, solver_for

ROUNDINGS = ("nearest", "gptq")
LEAST_GAIN = 0.02
"""What part of the error a scale has to save: where it cannot be folded away it costs a multiplication."""

MAX_RATIO = 1e4
"""Largest over smallest scale: beyond it float16 activations would not survive the division."""


SEARCH_COLUMNS = 256
"""Of a weight take part in the search."""


class Awq(Scheme):
    """See the module's text.

    Options: ``trials``: the finest division of the exponents from 0 to 1; ``rounding``: "nearest" as in the paper, or
    "gptq" on the scaled weights; ``steps`` and ``narrowest``: the ranges that are tried after the search;
    ``search_bits`` and ``search_group_size``: of the search, 0 for those of the result; ``damping``, ``follow`` and
    ``sweeps``: GPTQ's.
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
        "follow": 0.0,
        "sweeps": 4,
    }

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        if self.options["rounding"] not in ROUNDINGS:
            raise OptionError(
                f"scheme 'awq': option 'rounding' must be {' or '.join(ROUNDINGS)}, got {self.options['rounding']!r}"
            )
        if not 0 <= self.options["follow"] <= 1:
            raise OptionError(f"scheme 'awq': option 'follow' must be between 0 and 1, got {self.options['follow']}")
        if self.options["trials"] < 1:
            raise OptionError(f"scheme 'awq': option 'trials' must be positive, got {self.options['trials']}")
        self._solver: Solver | None = None

    @property
    def compares(self) -> bool:
        return self.options["rounding"] == "gptq" and bool(self.options["follow"] > 0)

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
        errors = _Errors([sampled(weight) for weight in weights], moments, grid, xp)
        plain = best = errors.of(None)
        found: tuple[int, bool] | None = None
        trials: int = o["trials"]
        stride = max(trials // 5, 1)
        candidates = [(i, both) for i in range(stride, trials + 1, stride) for both in (False, True)]
        while candidates:
            for i, both in candidates:
                scale = channel_scale(activation, weight_size, i / trials, 1.0 - i / trials if both else 0.0, xp)
                error = errors.of(scale)
                if error < best:
                    best, found = error, (i, both)
            # Around the best of a coarse grid a finer one: the error is smooth in the exponent.
            if found is None or stride == 1:
                break
            stride = -(-stride // 2)
            candidates = [(i, found[1]) for i in (found[0] - stride, found[0] + stride) if 0 < i <= trials]
        if found is None or best > (1.0 - LEAST_GAIN) * plain:
            return None
        exponent = found[0] / trials
        return channel_scale(activation, weight_size, exponent, 1.0 - exponent if found[1] else 0.0, xp)

    def quantize(self, layer: Layer, grid: Grid, context: Context) -> Quantized:
        xp, o = context.xp, self.options
        ranges = {"steps": o["steps"], "narrowest": o["narrowest"]}
        if o["rounding"] == "gptq":
            self._solver = solver_for(layer, self._solver, xp, True, o["damping"], o["follow"])
            return self._solver.solve(layer.weight, grid, sweeps=o["sweeps"], **ranges)
        moments = hessian(layer, xp)
        scales, zeros = fit_scales(layer.weight, xp.diagonal(moments), grid, xp, **ranges)
        made = nearest(layer.weight, scales, zeros, grid, xp)
        lines = Lines(xp.arange(len(layer.weight)), scales, zeros, grid, xp)
        error = lines.values(made.codes) - layer.weight
        if bool(xp.isfinite(error).all()):  # narrowed ranges shrink outputs, which other scales for these codes mend
            fit_all_scales(made.codes, error, moments, lines)
        return with_codes(made.codes, lines.scales, zeros)


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


def sampled(weight: Array) -> Array:
    """Some of the columns of a weight, evenly spread: enough to compare scales, which all columns share."""
    step = -(-weight.shape[1] // SEARCH_COLUMNS)
    return weight[:, :: max(step, 1)].copy()


class _Errors:
    """The errors at the outputs of some weights that are rounded to nearest with their rows scaled."""

    def __init__(self, weights: Sequence[Array], moments: Array, grid: Grid, xp: ModuleType) -> None:
        self._weights, self._moments, self._grid, self._xp = weights, moments, grid, xp

    def of(self, scale: Array | None) -> float:
        """Their sum for a scale a channel, [K]; infinite where the numbers get too large."""
        total = sum(self._one(weight, scale) for weight in self._weights)
        return total if np.isfinite(total) else float("inf")

    def _one(self, weight: Array, scale: Array | None) -> float:
        grid, xp = self._grid, self._xp
        scaled = weight if scale is None else weight * scale[:, None]
        scales, zeros = min_max(grouped(scaled, grid, xp), grid, xp)
        rounded = dequantize(nearest(scaled, scales, zeros, grid, xp), grid, xp)
        if scale is not None:
            rounded = rounded / scale[:, None]
        return output_error(rounded - weight, self._moments)
