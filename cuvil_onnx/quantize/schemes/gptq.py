"""GPTQ: rounds one input channel after the other and lets the channels not rounded yet make up for the error.

Frantar et al., "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained Transformers", arXiv 2210.17323:
the channel order by decreasing activation (act-order), damping, and Cholesky factors as there. What differs:

- Scales are chosen before, for the groups of the original order, so that act-order needs no index of groups and the
  weight keeps its layout; by trying narrower ranges, each weight's squared error times what GPTQ then pays for it.
- With ``follow`` the goal is not the product of this input, which rounded layers before changed, but the product that
  the unquantized model has: as far as the input x tells its x0, the weight W + (x^T x)^-1 x^T (x0 - x) W gives it (Li
  et al., "GPTAQ", arXiv 2504.02692, spread these terms channel by channel). ``follow`` is how far to go there: what
  the calibration data says of x0 holds for other data in part, and with few tokens a channel too little (see the docs).
- Channels that calibration never saw are rounded to nearest instead of being set to 0.
- ``sweeps`` of coordinate descent over scales and codes follow (``_descent.py``), which only lower the error.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any, ClassVar

import numpy as np

from cuvil_onnx.errors import OptionError
from cuvil_onnx.quantize.grid import Array, Grid, Quantized
from cuvil_onnx.quantize.scheme import Context, Layer, Scheme
from cuvil_onnx.quantize.schemes._descent import BLOCK, Lines, refine
from cuvil_onnx.quantize.schemes._objective import fit_scales, hessian, nearest, with_codes


class Gptq(Scheme):
    """See the module's text.

    Options: ``act_order``: channels with the largest activations first; ``damping``: added to the Hessian's diagonal,
    as a part of its mean; ``follow``: see above, 0 to 1, above 0 also runs the unquantized model; ``sweeps``: passes of
    coordinate descent; ``steps`` and ``narrowest``: the ranges that are tried (0 steps: the whole range only).
    """

    name = "gptq"
    summary = "GPTQ: rounding errors are made up for by the channels rounded later"
    calibrated = True
    defaults: ClassVar[Mapping[str, Any]] = {
        "act_order": True,
        "damping": 0.01,
        "follow": 0.0,
        "sweeps": 4,
        "steps": 12,
        "narrowest": 0.7,
    }

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        if not 0 <= self.options["follow"] <= 1:
            raise OptionError(f"scheme 'gptq': option 'follow' must be between 0 and 1, got {self.options['follow']}")
        self._solver: Solver | None = None

    @property
    def compares(self) -> bool:
        return bool(self.options["follow"] > 0)

    def quantize(self, layer: Layer, grid: Grid, context: Context) -> Quantized:
        o = self.options
        self._solver = solver_for(layer, self._solver, context.xp, o["act_order"], o["damping"], o["follow"])
        return self._solver.solve(layer.weight, grid, steps=o["steps"], narrowest=o["narrowest"], sweeps=o["sweeps"])


class Solver:
    """What GPTQ needs of one input; products that read the same one, and pieces of one weight, share it.

    Args:
        moments: the mean of x^T x, float32 [K, K], without zeros on the diagonal.
        act_order: channels with the largest activations first.
        damping: see :func:`inverse_factor`.
        drift: the mean of x^T (x0 - x), float32 [K, K], where x0 is the input that the unquantized model has; None: 0.
    """

    def __init__(
        self, moments: Array, xp: ModuleType, act_order: bool, damping: float, drift: Array | None = None
    ) -> None:
        self.statistics: object = None
        diagonal = xp.diagonal(moments)
        self._order = xp.argsort(-diagonal, kind="stable") if act_order else xp.arange(len(moments))
        self._back = xp.argsort(self._order, kind="stable")
        self._factor = inverse_factor(moments[self._order][:, self._order], damping, xp)
        # The square of an error that the channels rounded later make up for costs this much.
        self._importance = (1.0 / xp.diagonal(self._factor) ** 2)[self._back]
        self._moments = moments[self._order][:, self._order]
        places = xp.arange(len(moments))
        # Each weight's own squared error counts a little as well, as in the factor.
        self._moments[places, places] += np.float32(damping) * diagonal.mean()
        self._drift = None if drift is None else drift[self._order][:, self._order]
        self._xp = xp

    def solve(self, weight: Array, grid: Grid, *, steps: int, narrowest: float, sweeps: int) -> Quantized:
        """The codes of a weight, float32 [K, N]; options as of the scheme."""
        xp = self._xp
        weight = self._following(weight)
        scales, zeros = fit_scales(weight, self._importance, grid, xp, steps=steps, narrowest=narrowest)
        lines = Lines(self._order, scales, zeros, grid, xp)
        codes = self._compensated(weight[self._order], lines, grid)
        if codes is None:  # weights near the end of float32
            return nearest(weight, scales, zeros, grid, xp)
        refine(codes, weight[self._order], self._moments, lines, sweeps)
        return with_codes(codes[self._back], lines.scales, zeros)

    def _following(self, weight: Array) -> Array:
        """The weight that gives on x what is nearest to the given one's product on x0."""
        if self._drift is None:
            return weight
        change = self._factor.T @ (self._factor @ (self._drift @ weight[self._order]))
        target = weight + change[self._back]
        return target if bool(self._xp.isfinite(target).all()) else weight

    def _compensated(self, work: Array, lines: Lines, grid: Grid) -> Array | None:
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


def solver_for(
    layer: Layer, last: Solver | None, xp: ModuleType, act_order: bool, damping: float, follow: float
) -> Solver:
    """The last solver, if it is of the same input, else a new one."""
    if last is not None and layer.statistics is not None and last.statistics is layer.statistics:
        return last
    drift = None if layer.statistics is None or not follow else layer.statistics.drift()
    drift = None if drift is None else xp.nan_to_num(xp.asarray(drift) * np.float32(follow), posinf=0.0, neginf=0.0)
    made = Solver(hessian(layer, xp), xp, act_order, damping, drift)
    made.statistics = layer.statistics
    return made


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
