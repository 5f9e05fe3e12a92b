"""What a rounded weight costs at the layer's output, and scales chosen by it; shared by calibrated schemes."""

from __future__ import annotations

from types import ModuleType

import numpy as np

from cuvil_onnx.quantize.grid import Array, Grid, Quantized, grouped, min_max, round_to_grid
from cuvil_onnx.quantize.scheme import Layer

TINY = 1e-30


def hessian(layer: Layer, xp: ModuleType) -> Array:
    """The mean of x^T x at the layer's input, float32 [K, K], finite; the identity without calibration.

    Channels that were 0 in all of the data get the mean of the others on the diagonal: their weights still matter for
    other data, and are rounded without regard to the rest.
    """
    k = layer.weight.shape[0]
    if layer.statistics is None:
        return xp.eye(k, dtype=xp.float32)  # type: ignore[no-any-return]
    moments = xp.nan_to_num(xp.asarray(layer.statistics.hessian(), dtype=xp.float32), posinf=0.0, neginf=0.0)
    diagonal = xp.diagonal(moments).copy()
    dead = diagonal <= TINY
    if not bool(dead.any()):
        return moments  # type: ignore[no-any-return]
    moments = moments.copy()
    moments[dead, :] = 0
    moments[:, dead] = 0
    alive = diagonal[~dead]
    places = xp.nonzero(dead)[0]
    moments[places, places] = alive.mean() if alive.size else 1.0
    return moments  # type: ignore[no-any-return]


def output_error(error: Array, moments: Array) -> float:
    """The mean squared norm of X @ error: trace(error^T H error), of a weight error [K, N] and H [K, K]."""
    return max(float((error * (moments @ error)).sum(dtype=np.float64)), 0.0)


def fit_scales(
    weight: Array, importance: Array | None, grid: Grid, xp: ModuleType, *, steps: int, narrowest: float
) -> tuple[Array, Array | None]:
    """Scales and zero points by trying narrower ranges: the least sum of importance * error^2 in each group.

    Args:
        weight: float32 [K, N].
        importance: float32 [K], not negative (the diagonal of the Hessian); None: all 1.
        steps: how many narrower ranges; 0 takes the whole one.
        narrowest: the last one, as a part of the range.

    Returns:
        As ``grid.min_max``.
    """
    blocks = grouped(weight, grid, xp)
    weights = None
    if importance is not None:
        weights = grouped(importance[:, None], grid, xp)  # [groups, rows, 1]
    scales, zeros = min_max(blocks, grid, xp)
    best = _weighted_error(blocks, scales, zeros, weights, grid, xp)
    parts = [1.0 - (1.0 - narrowest) * step / steps for step in range(1, steps + 1)] if steps else []
    trials = [(part, True) for part in parts]
    if grid.symmetric:
        trials += [(part, False) for part in (1.0, *parts)]
    for part, full in trials:
        other, other_zeros = min_max(blocks, grid, xp, shrink=part, full_range=full)
        error = _weighted_error(blocks, other, other_zeros, weights, grid, xp)
        better = error < best
        best = xp.where(better, error, best)
        scales = xp.where(better, other, scales)
        zeros = None if zeros is None or other_zeros is None else xp.where(better, other_zeros, zeros)
    return scales, zeros


def _weighted_error(
    blocks: Array, scales: Array, zeros: Array | None, weights: Array | None, grid: Grid, xp: ModuleType
) -> Array:
    """[groups, N]."""
    error = blocks / scales[:, None, :]
    xp.rint(error, out=error)
    shift = 0.0 if zeros is None else zeros[:, None, :]
    xp.clip(error, grid.low - shift, grid.high - shift, out=error)
    error *= scales[:, None, :]
    error -= blocks
    error *= error
    if weights is not None:
        error *= weights
    return error.sum(axis=1)  # type: ignore[no-any-return]


def nearest(weight: Array, scales: Array, zeros: Array | None, grid: Grid, xp: ModuleType) -> Quantized:
    """The weight rounded to nearest on given scales."""
    return with_codes(round_to_grid(weight, scales, zeros, grid, xp), scales, zeros)


def with_codes(codes: Array, scales: Array, zeros: Array | None) -> Quantized:
    """A :class:`Quantized` of integer codes and zero points in float32."""
    return Quantized(codes, scales, None if zeros is None else zeros.astype(codes.dtype))
