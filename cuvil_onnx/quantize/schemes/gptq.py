"""GPTQ: rounds one input channel after the other and lets the channels not rounded yet make up for the error.

Frantar et al., "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained Transformers", arXiv 2210.17323:
the channel order by decreasing activation (act-order), damping, and Cholesky factors as there. What differs:

- Scales are chosen before, for the groups of the original order, so that act-order needs no index of groups and the
  weight keeps its layout; by trying narrower ranges, each weight's squared error times its channel's mean square.
- Channels that calibration never saw are rounded to nearest instead of being set to 0.
- ``sweeps`` of coordinate descent over the finished codes follow, each of which can only lower the error at the output
  (as in QuantEase, arXiv 2309.01885).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any, ClassVar

import numpy as np

from cuvil_onnx.quantize.grid import Array, Grid, Quantized
from cuvil_onnx.quantize.scheme import Context, Layer, Scheme
from cuvil_onnx.quantize.schemes._objective import fit_scales, hessian, nearest, with_codes

BLOCK = 128
"""Channels whose errors are spread one by one; to later blocks they go as one product."""


class Gptq(Scheme):
    """See the module's text.

    Options: ``act_order``: channels with the largest activations first; ``damping``: added to the Hessian's diagonal,
    as a part of its mean; ``sweeps``: passes of coordinate descent; ``steps`` and ``narrowest``: the ranges that are
    tried (0 steps: the whole range only).
    """

    name = "gptq"
    summary = "GPTQ: rounding errors are made up for by the channels rounded later"
    calibrated = True
    defaults: ClassVar[Mapping[str, Any]] = {
        "act_order": True,
        "damping": 0.01,
        "sweeps": 2,
        "steps": 12,
        "narrowest": 0.7,
    }

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._solver: Solver | None = None

    def quantize(self, layer: Layer, grid: Grid, context: Context) -> Quantized:
        o = self.options
        self._solver = solver_for(layer, self._solver, context.xp, o["act_order"], o["damping"])
        return self._solver.solve(layer.weight, grid, steps=o["steps"], narrowest=o["narrowest"], sweeps=o["sweeps"])


class Solver:
    """What GPTQ needs of one input; products that read the same one, and pieces of one weight, share it.

    Args:
        moments: the mean of x^T x, float32 [K, K], without zeros on the diagonal.
        act_order: channels with the largest activations first.
        damping: see :func:`inverse_factor`.
    """

    def __init__(self, moments: Array, xp: ModuleType, act_order: bool, damping: float) -> None:
        self.statistics: object = None
        diagonal = xp.diagonal(moments)
        self._importance = diagonal
        self._order = xp.argsort(-diagonal, kind="stable") if act_order else xp.arange(len(moments))
        self._moments = moments[self._order][:, self._order]
        self._factor = inverse_factor(self._moments, damping, xp)
        self._damping, self._xp = damping, xp

    def solve(self, weight: Array, grid: Grid, *, steps: int, narrowest: float, sweeps: int) -> Quantized:
        """The codes of a weight, float32 [K, N]; options as of the scheme."""
        xp = self._xp
        scales, zeros = fit_scales(weight, self._importance, grid, xp, steps=steps, narrowest=narrowest)
        lines = _Lines(self._order, scales, zeros, grid, xp)
        codes = self._compensated(weight[self._order], lines, grid)
        if codes is None:  # weights near the end of float32
            return nearest(weight, scales, zeros, grid, xp)
        original = weight[self._order]
        for _ in range(sweeps):
            if not _descend(codes, original, self._moments, self._damping, lines, xp):
                break
        return with_codes(codes[xp.argsort(self._order, kind="stable")], scales, zeros)

    def _compensated(self, work: Array, lines: _Lines, grid: Grid) -> Array | None:
        """Codes of the reordered weight, which is overwritten; None when numbers get too large."""
        xp, factor, k = self._xp, self._factor, len(work)
        codes: Array = xp.empty(work.shape, xp.int8 if grid.symmetric else xp.uint8)
        for start in range(0, k, BLOCK):
            stop = min(start + BLOCK, k)
            errors = xp.empty((stop - start, work.shape[1]), xp.float32)
            for i in range(start, stop):
                codes[i], value = lines.round(i, work[i])
                errors[i - start] = (work[i] - value) / factor[i, i]
                work[i + 1 : stop] -= factor[i, i + 1 : stop, None] * errors[i - start]
            work[stop:] -= factor[start:stop, stop:].T @ errors
            if not bool(xp.isfinite(errors).all()):
                return None
        return codes


def solver_for(layer: Layer, last: Solver | None, xp: ModuleType, act_order: bool, damping: float) -> Solver:
    """The last solver, if it is of the same input, else a new one."""
    if last is not None and layer.statistics is not None and last.statistics is layer.statistics:
        return last
    made = Solver(hessian(layer, xp), xp, act_order, damping)
    made.statistics = layer.statistics
    return made


class _Lines:
    """The grid of each row of a weight whose rows were reordered."""

    def __init__(self, order: Array, scales: Array, zeros: Array | None, grid: Grid, xp: ModuleType) -> None:
        self._group = [int(g) for g in order // grid.rows(len(order))]
        self._scales, self._zeros, self._grid, self._xp = scales, zeros, grid, xp

    def round(self, row: int, values: Array) -> tuple[Array, Array]:
        """The nearest codes of a row [N], and the numbers that they stand for."""
        xp, group = self._xp, self._group[row]
        scale = self._scales[group]
        codes = xp.rint(values / scale)
        if self._zeros is None:
            codes = xp.clip(codes, self._grid.low, self._grid.high)
            return codes, codes * scale
        zero = self._zeros[group]
        codes = xp.clip(codes + zero, self._grid.low, self._grid.high)
        return codes, (codes - zero) * scale

    def values(self, row: int, codes: Array) -> Array:
        """The numbers that a row of codes stands for."""
        group = self._group[row]
        numbers = codes.astype(self._xp.float32)
        if self._zeros is not None:
            numbers -= self._zeros[group]
        return numbers * self._scales[group]  # type: ignore[no-any-return]


def _descend(codes: Array, weight: Array, moments: Array, damping: float, lines: _Lines, xp: ModuleType) -> bool:
    """One pass over all rows: each takes the codes that are best while the others stay. Whether any code changed."""
    k = weight.shape[0]
    diagonal = xp.diagonal(moments) + np.float32(damping) * xp.diagonal(moments).mean()
    error = xp.stack([lines.values(i, codes[i]) for i in range(k)]) - weight
    changed = False
    for start in range(0, k, BLOCK):
        stop = min(start + BLOCK, k)
        slope = moments[start:stop] @ error
        for i in range(start, stop):
            # The damped objective: that much of each weight's own squared error counts as well.
            gradient = slope[i - start] + (diagonal[i] - moments[i, i]) * error[i]
            new, value = lines.round(i, weight[i] + error[i] - gradient / diagonal[i])
            step = value - weight[i] - error[i]
            if bool((step != 0).any()):
                changed = True
                codes[i] = new
                error[i] += step
                slope += moments[start:stop, i, None] * step
    return changed


def inverse_factor(moments: Array, damping: float, xp: ModuleType) -> Array:
    """Upper triangular U with U^T U = (moments + damping)^-1, float32 [K, K].

    The factor of the reversed matrix is inverted, which never forms the inverse itself. Damping grows until the matrix
    is positive definite in float64; if it never is, errors are not spread at all.
    """
    k = moments.shape[0]
    wide = moments.astype(xp.float64)
    mean = float(xp.diagonal(wide).mean())
    places = xp.arange(k)
    for _ in range(8):
        damped = wide.copy()
        damped[places, places] += max(damping, 1e-6) * mean
        try:
            lower = xp.linalg.cholesky(damped[::-1, ::-1])
            if bool(xp.isfinite(lower).all()):
                upper = xp.linalg.inv(lower[::-1, ::-1])
                if bool(xp.isfinite(upper).all()):
                    return xp.triu(upper).astype(xp.float32)  # type: ignore[no-any-return]
        except np.linalg.LinAlgError:
            pass
        damping = max(damping, 1e-6) * 10
    return xp.eye(k, dtype=xp.float32)  # type: ignore[no-any-return]
