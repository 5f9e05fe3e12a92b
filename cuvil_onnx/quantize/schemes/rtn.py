"""Round to nearest: scales from the range of each group, without any data.

Symmetric groups take the better of two scales (the mean squared error decides): the one that gives the outermost weight
the outermost code on its side of zero, of which there is one more below than above, and the one that clips nothing.
With ``clip`` ranges are also tried narrower, which loses the outermost weights and serves the many others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any, ClassVar

from cuvil_onnx.quantize.grid import Array, Grid, Quantized, grouped, min_max, round_to_grid
from cuvil_onnx.quantize.scheme import Context, Layer, Scheme


class Rtn(Scheme):
    """See the module's text.

    Options: ``clip``: search narrower ranges; ``steps``: how many of them; ``narrowest``: the last one, as a part of
    the range.
    """

    name = "rtn"
    summary = "round to nearest; clip=1 narrows each group's range to the least squared error"
    defaults: ClassVar[Mapping[str, Any]] = {"clip": False, "steps": 20, "narrowest": 0.6}

    def quantize(self, layer: Layer, grid: Grid, context: Context) -> Quantized:
        xp = context.xp
        blocks = grouped(layer.weight, grid, xp)
        candidates = list(self._candidates(blocks, grid, xp))
        scales, zero_points = candidates[0]
        if len(candidates) > 1:
            best = squared_error(blocks, scales, zero_points, grid, xp)
            for other_scales, other_zeros in candidates[1:]:
                error = squared_error(blocks, other_scales, other_zeros, grid, xp)
                better = error < best
                best = xp.where(better, error, best)
                scales = xp.where(better, other_scales, scales)
                zero_points = None if other_zeros is None else xp.where(better, other_zeros, zero_points)
        codes = round_to_grid(layer.weight, scales, zero_points, grid, xp)
        return Quantized(codes, scales, None if zero_points is None else zero_points.astype(codes.dtype))

    def _candidates(self, blocks: Array, grid: Grid, xp: ModuleType) -> Iterator[tuple[Array, Array | None]]:
        yield min_max(blocks, grid, xp)
        if grid.symmetric:
            yield min_max(blocks, grid, xp, full_range=False)
        if not self.options["clip"]:
            return
        steps, narrowest = self.options["steps"], self.options["narrowest"]
        for step in range(1, steps + 1):
            yield min_max(blocks, grid, xp, shrink=1.0 - (1.0 - narrowest) * step / steps)


def squared_error(blocks: Array, scales: Array, zero_points: Array | None, grid: Grid, xp: ModuleType) -> Array:
    """[groups, N]: the sum over a group of the squared distances to the nearest numbers of the grid."""
    codes = xp.rint(blocks / scales[:, None, :])
    zeros = 0.0 if zero_points is None else zero_points[:, None, :]
    codes = xp.clip(codes, grid.low - zeros, grid.high - zeros)
    codes *= scales[:, None, :]
    codes -= blocks
    return (codes**2).sum(axis=1)  # type: ignore[no-any-return]
