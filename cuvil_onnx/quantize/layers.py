"""Quantizes one weight: reads it in pieces, asks the scheme, measures what that did."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import os
from types import ModuleType
from typing import Any

import numpy as np

from cuvil_onnx.quantize.grid import WORK_BYTES, Array, Grid, Quantized, column_chunks, dequantize
from cuvil_onnx.quantize.pack import CodeBuffer, code_tensor, codes_of
from cuvil_onnx.quantize.scheme import Context, InputStatistics, Layer, Scheme
from cuvil_onnx.quantize.store import Stored
from cuvil_onnx.quantize.summary import decibels
from cuvil_onnx.quantize.weight import Reader, Repairs, Weight, opened

MAX_THREADS = 16


@dataclasses.dataclass
class Errors:
    """Sums of squares over a weight: of its elements, of the differences, and of products over calibration data."""

    signal: float = 0.0
    noise: float = 0.0
    output_signal: float = 0.0
    output_noise: float = 0.0

    def add(self, other: Errors) -> None:
        """Adds those of further columns."""
        self.signal += other.signal
        self.noise += other.noise
        self.output_signal += other.output_signal
        self.output_noise += other.output_noise

    @property
    def relative(self) -> float:
        """|W' - W| / |W|; 0 for a weight of zeros."""
        return float(np.sqrt(self.noise / self.signal)) if self.signal > 0 else 0.0

    @property
    def weight_snr(self) -> float | None:
        """In decibels."""
        return decibels(self.signal, self.noise)

    @property
    def output_snr(self) -> float | None:
        """In decibels; None without calibration data."""
        return decibels(self.output_signal, self.output_noise)


class Scaled:
    """Statistics of an input that was divided by a scale a channel."""

    def __init__(self, inner: InputStatistics, scale: Array) -> None:
        self._inner, self._scale = inner, scale
        self.rows, self.skipped = inner.rows, inner.skipped

    def mean_magnitude(self) -> Array:
        """See InputStatistics."""
        magnitude: Array = self._inner.mean_magnitude() / self._scale
        return magnitude

    def hessian(self) -> Array:
        """See InputStatistics."""
        moments: Array = self._inner.hessian() / (self._scale[:, None] * self._scale[None, :])
        return moments

    def drift(self) -> Array | None:
        """See InputStatistics."""
        drift = self._inner.drift()
        return None if drift is None else drift / (self._scale[:, None] * self._scale[None, :])


def context_for(name: str, seed: int, xp: ModuleType) -> Context:
    """The context of a layer: its random numbers depend on nothing else."""
    return Context(xp, np.random.default_rng([seed, *name.encode()]))


def quantize_weight(
    weight: Weight,
    scheme: Scheme,
    grid: Grid,
    context: Context,
    *,
    name: str,
    statistics: InputStatistics | None = None,
    input_scale: Array | None = None,
) -> tuple[Stored, Errors, Repairs]:
    """The weight on the grid, what that costs, and which of its elements were no numbers."""
    errors = Errors()
    if input_scale is not None and statistics is not None:
        statistics = Scaled(statistics, input_scale)
    layer = Layer(name, np.empty((0, 0), np.float32), statistics)
    with opened(weight) as reader:
        if len(weight.shape) == 3:
            parts = [
                _matrix(reader, weight, scheme, grid, context, layer, None, errors, e) for e in range(weight.shape[0])
            ]
            stored = _stack(parts, grid)
        else:
            stored = _matrix(reader, weight, scheme, grid, context, layer, input_scale, errors, None)
        return stored, errors, reader.repairs


def _matrix(
    reader: Reader,
    weight: Weight,
    scheme: Scheme,
    grid: Grid,
    context: Context,
    layer: Layer,
    input_scale: Array | None,
    errors: Errors,
    expert: int | None,
) -> Stored:
    k, n = weight.shape[-2:]
    xp = context.xp
    codes = CodeBuffer(k, n, grid.code_dtype)
    scales = np.empty((grid.groups(k), n), np.float32)
    zeros: Array | None = None
    offsets: Array | None = None

    def quantize(part: slice) -> tuple[Quantized, Errors]:
        numbers = reader.columns(part, expert)
        if input_scale is not None:
            numbers *= input_scale[:, None]
        given = xp.asarray(numbers)
        with np.errstate(over="ignore", invalid="ignore"):  # squares of huge weights, which comparisons bear
            made = scheme.quantize(dataclasses.replace(layer, weight=given), grid, context)
        made = _checked(made, grid, k, part.stop - part.start, layer.name, xp)
        return made, _measured(made, numbers, grid, layer.statistics)

    parts, workers = _pieces(k, n, scheme, layer, xp)
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        for part, (made, costs) in zip(parts, pool.map(quantize, parts), strict=True):
            codes.put(part, made.codes)
            scales[:, part] = made.scales
            if made.zero_points is not None:
                zeros = np.empty(scales.shape, made.zero_points.dtype) if zeros is None else zeros
                zeros[:, part] = made.zero_points
            if made.offsets is not None:
                offsets = np.empty(scales.shape, np.float32) if offsets is None else offsets
                offsets[:, part] = made.offsets
            errors.add(costs)
    return Stored(grid, codes.tensor(), scales, zeros, offsets, input_scale)


def _pieces(k: int, n: int, scheme: Scheme, layer: Layer, xp: ModuleType) -> tuple[list[slice], int]:
    """The columns to quantize at a time, and how many threads do so; schemes without data hold no state."""
    if not scheme.columnwise:
        return [slice(0, n)], 1
    if layer.statistics is not None or xp is not np:
        return column_chunks(k, n, WORK_BYTES), 1
    parts = column_chunks(k, n)
    return parts, max(1, min(len(parts), MAX_THREADS, os.cpu_count() or 1))


def _measured(made: Quantized, numbers: Array, grid: Grid, statistics: InputStatistics | None) -> Errors:
    difference = dequantize(made, grid, np)
    difference -= numbers
    errors = Errors(_squares(numbers), _squares(difference))
    if statistics is not None:
        moments = _host(statistics.hessian())
        errors.output_signal, errors.output_noise = _energy(numbers, moments), _energy(difference, moments)
    return errors


def _squares(array: Array) -> float:
    flat = array.reshape(-1)
    if not flat.size or float(np.abs(flat).max()) < 1e15:
        return float(np.dot(flat, flat))
    return float(np.square(flat.astype(np.float64)).sum())


def _energy(matrix: Array, moments: Array) -> float:
    """The mean squared norm of x @ matrix."""
    return max(0.0, float(np.einsum("kn,kn->", matrix, moments @ matrix, dtype=np.float64)))


def _checked(made: Quantized, grid: Grid, k: int, n: int, name: str, xp: ModuleType) -> Quantized:
    """The result as numpy arrays; a scheme that breaks its contract is a defect.

    Raises:
        RuntimeError: shapes, codes outside of the grid, or numbers that are none.
    """
    zeros = None if made.zero_points is None else _host(made.zero_points)
    offsets = None if made.offsets is None else _host(made.offsets)
    host = Quantized(_host(made.codes), _host(made.scales), zeros, offsets)
    expected = (grid.groups(k), n)
    kind = np.int8 if grid.symmetric else np.uint8
    for array, shape in ((host.codes, (k, n)), (host.scales, expected), (zeros, expected), (offsets, expected)):
        if array is not None and array.shape != shape:
            raise RuntimeError(f"{name}: the scheme gave an array of shape {array.shape}, {shape} is required")
    for array in (host.codes, zeros):
        if array is not None and (array.dtype != kind or array.min() < grid.low or array.max() > grid.high):
            raise RuntimeError(f"{name}: the scheme gave {array.dtype} codes outside of {grid.low}..{grid.high}")
    if not np.isfinite(host.scales).all() or (offsets is not None and not np.isfinite(offsets).all()):
        raise RuntimeError(f"{name}: the scheme gave scales that are not finite")
    return host


def _host(array: Any) -> Array:
    found: Array = array.get() if hasattr(array, "get") else np.asarray(array)
    return found


def _stack(parts: list[Stored], grid: Grid) -> Stored:
    codes = code_tensor(np.stack([codes_of(p.codes) for p in parts]), grid.code_dtype)
    zeros = [p.zero_points for p in parts if p.zero_points is not None]
    return Stored(grid, codes, np.stack([p.scales for p in parts]), np.stack(zeros) if zeros else None)
