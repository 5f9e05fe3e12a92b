"""Coordinate descent on the error at a layer's output: code by code (as QuantEase, arXiv 2309.01885), scale by scale.

The error of a weight W' is the sum over the columns of (W' - W)^T H (W' - W). Along one code, or one group's scale,
that is a parabola whose lowest point is known; no step is taken that does not go down.
"""

from __future__ import annotations

from types import ModuleType

from cuvil_onnx.quantize.grid import Array, Grid, representable

BLOCK = 32
"""Channels whose errors are spread one by one; to the others they go as one product."""

FURTHEST = 2.0
"""A scale becomes at most so many times as large or small: what is fitted to few codes may be anything."""


class Lines:
    """The grid of each row of a weight whose rows were reordered.

    Args:
        order: integers [K]: the rows' places in the weight.
        scales: float32 [groups, N]; replaced by :func:`refine`.
        zeros: float32 [groups, N]; None: symmetric.
    """

    def __init__(self, order: Array, scales: Array, zeros: Array | None, grid: Grid, xp: ModuleType) -> None:
        self.scales, self.zeros, self.grid, self.xp = scales, zeros, grid, xp
        self.groups = order // grid.rows(len(order))
        self._group = [int(g) for g in self.groups]

    def round(self, row: int, values: Array) -> tuple[Array, Array]:
        """The nearest codes of a row [N], and the numbers that they stand for."""
        xp, group = self.xp, self._group[row]
        scale = self.scales[group]
        codes = xp.rint(values / scale)
        if self.zeros is None:
            codes = xp.clip(codes, self.grid.low, self.grid.high)
            return codes, codes * scale
        zero = self.zeros[group]
        codes = xp.clip(codes + zero, self.grid.low, self.grid.high)
        return codes, (codes - zero) * scale

    def values(self, codes: Array) -> Array:
        """The numbers, float32 [K, N], that all codes stand for."""
        numbers = codes.astype(self.xp.float32)
        if self.zeros is not None:
            numbers -= self.zeros[self.groups]
        numbers *= self.scales[self.groups]
        return numbers


def refine(codes: Array, weight: Array, moments: Array, lines: Lines, sweeps: int) -> None:
    """Changes codes and ``lines.scales``: ``sweeps`` times all scales, then all codes.

    Args:
        codes: integers [K, N].
        weight: what they shall stand for, float32 [K, N].
        moments: H, float32 [K, K].
        lines: the grids of these rows.
    """
    for _ in range(sweeps):
        error = lines.values(codes) - weight
        fit_all_scales(codes, error, moments, lines)
        if not _codes(codes, weight, error, moments, lines):
            break


def fit_all_scales(codes: Array, error: Array, moments: Array, lines: Lines) -> None:
    """One group after the other: the best scale while codes and other scales stay; ``error`` follows."""
    xp = lines.xp
    scales = lines.scales.copy()
    for group in range(len(scales)):
        rows = xp.nonzero(lines.groups == group)[0]
        numbers = codes[rows].astype(xp.float32)
        if lines.zeros is not None:
            numbers -= lines.zeros[group]
        strip = moments[rows]
        slope = (numbers * (strip @ error)).sum(axis=0)
        curve = (numbers * (strip[:, rows] @ numbers)).sum(axis=0)
        old = scales[group]
        new = representable(old - slope / xp.where(curve > 0, curve, 1.0), lines.grid, xp)
        step = new - old
        ratio = new / old
        good = (ratio > 1 / FURTHEST) & (ratio < FURTHEST) & (step * (2 * slope + step * curve) < 0)
        scales[group] = xp.where(good, new, old)
        error[rows] += numbers * xp.where(good, step, 0.0)
    lines.scales = scales


def _codes(codes: Array, weight: Array, error: Array, moments: Array, lines: Lines) -> bool:
    """One row after the other: the best codes while the others stay. Whether any code changed."""
    xp, k = lines.xp, len(weight)
    diagonal = xp.diagonal(moments)
    changed = False
    for start in range(0, k, BLOCK):
        stop = min(start + BLOCK, k)
        slope = moments[start:stop] @ error
        for i in range(start, stop):
            new, value = lines.round(i, weight[i] + error[i] - slope[i - start] / diagonal[i])
            step = value - weight[i] - error[i]
            if bool((step != 0).any()):
                changed = changed or bool((new != codes[i]).any())
                codes[i] = new
                error[i] += step
                slope[i - start + 1 :] += moments[i + 1 : stop, i, None] * step
    return changed
