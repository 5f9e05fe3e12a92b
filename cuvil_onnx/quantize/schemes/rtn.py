"""Round to nearest: scales from the range of each group, without any data.

Symmetric groups take the better of two scales (the mean squared error decides): the one that gives the outermost weight
the outermost code on its side of zero, of which there is one more below than above, and the one that clips nothing.
With ``clip`` ranges are also tried narrower, which loses the outermost weights and serves the many others. What has
the least squared error is too short, though: its product with the weight is below that of the weight with itself, by
1 to 3 percent at 4 bits. Errors of rounding go in all directions, while this one shrinks every output. Scales of
narrowed groups are therefore made longer by what is lacking.

Narrowed ranges can make a model worse all the same, although its weights are nearer: SmolLM2 (g128, float 30.9) has a
perplexity of 39.9 without, 45.0 with them, and 46.1 without the longer scales. Which of the outermost weights a model
depends on is not to be seen without data; schemes with calibration weigh them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any, ClassVar

from cuvil_onnx.quantize.grid import Array, Grid, Quantized, grouped, min_max, representable, round_to_grid
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
        if self.options["clip"]:
            whole = xp.stack([xp.abs(found) for found, _ in candidates[: 2 if grid.symmetric else 1]]).max(axis=0)
            scales = _full_length(blocks, codes, scales, zero_points, whole, grid, xp)
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


def _full_length(
    blocks: Array, codes: Array, scales: Array, zero_points: Array | None, whole: Array, grid: Grid, xp: ModuleType
) -> Array:
    """Scales with which w . w' is w . w in each group; those that are not below ``whole``, the widest, stay.

    The result never exceeds ``whole``, so that the outermost codes stand for finite numbers as they did with that.
    """
    numbers = grouped(codes, grid, xp).astype(xp.float32)
    if zero_points is not None:
        numbers -= zero_points[:, None, :]
    numbers *= scales[:, None, :]
    # Relative to the group's largest weight: squares of huge or tiny ones are no numbers.
    size = xp.abs(blocks).max(axis=1)
    size = xp.where(size == 0, 1.0, size).astype(xp.float32)
    blocks, numbers = blocks / size[:, None, :], numbers / size[:, None, :]
    along = (blocks * numbers).sum(axis=1)
    factor = (blocks * blocks).sum(axis=1) / xp.where(along > 0, along, 1.0)
    magnitude = xp.abs(scales)
    usable = (along > 0) & (factor > 1) & (magnitude < whole)
    longer = xp.where(usable, xp.minimum(magnitude * factor, whole), magnitude)
    return representable(xp.where(scales < 0, -longer, longer), grid, xp)


def squared_error(blocks: Array, scales: Array, zero_points: Array | None, grid: Grid, xp: ModuleType) -> Array:
    """[groups, N]: the sum over a group of the squared distances to the nearest numbers of the grid."""
    codes = xp.rint(blocks / scales[:, None, :])
    zeros = 0.0 if zero_points is None else zero_points[:, None, :]
    codes = xp.clip(codes, grid.low - zeros, grid.high - zeros)
    codes *= scales[:, None, :]
    codes -= blocks
    return (codes**2).sum(axis=1)  # type: ignore[no-any-return]
