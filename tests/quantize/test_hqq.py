"""HQQ: zero points and scales that leave most weights nearer, without data."""

from __future__ import annotations

import numpy as np
import pytest

from cuvil_onnx.quantize.grid import Grid, dequantize, grouped
from cuvil_onnx.quantize.scheme import Layer, make_scheme
from tests.quantize.scheme_testing import context, rounded, weight

P = 0.7


def measure(w: np.ndarray, made: np.ndarray, grid: Grid) -> np.ndarray:
    """[groups, N]: the sum of |error|^p, what HQQ minimises."""
    return (np.abs(grouped(made - w, grid, np)) ** P).sum(axis=1)


@pytest.mark.parametrize("grid", [Grid(4, 32), Grid(4, 64, True), Grid(4, -1), Grid(8, 32)], ids=str)
@pytest.mark.parametrize("float_zeros", [False, True])
def test_no_group_is_worse_than_its_range(grid: Grid, float_zeros: bool) -> None:
    item = Layer("layer", weight(160, 48))
    (start,) = rounded("hqq", grid, item, iterations=0, float_zeros=False)
    (made,) = rounded("hqq", grid, item, float_zeros=float_zeros)
    before, after = measure(item.weight, start, grid), measure(item.weight, made, grid)
    if float_zeros and not grid.symmetric:
        # Offsets are float32 sums: codes that were exact may be off by a rounding, far below a step.
        assert (after <= before + 1e-3 * before.max()).all()
    else:
        assert (after <= before * (1 + 1e-5)).all()
    assert after.sum() < 0.99 * before.sum() or grid.bits == 8


def test_zero_points_between_integers() -> None:
    """Weights on a grid whose zero lies between two codes: only float zero points can meet it."""
    random = np.random.default_rng(0)
    codes = random.integers(0, 16, (64, 8)).astype(np.float32)
    w = (codes - 7.5) * np.float32(0.1)
    w[0], w[1], w[32], w[33] = -0.75, 0.75, -0.75, 0.75
    item = Layer("layer", w)
    whole, free = rounded("hqq", Grid(4, 32), item)[0], rounded("hqq", Grid(4, 32), item, float_zeros=True)[0]
    assert np.abs(free - w).max() < 0.02 < np.abs(whole - w).max()


def test_float_zeros_are_offsets() -> None:
    grid = Grid(4, 32)
    made = make_scheme("hqq", {"float_zeros": True}).quantize(Layer("layer", weight(64, 8)), grid, context())
    assert made.zero_points is None and made.offsets is not None and made.offsets.shape == (2, 8)
    symmetric = make_scheme("hqq", {"float_zeros": True}).quantize(
        Layer("layer", weight(64, 8)), Grid(4, 32, True), context()
    )
    assert symmetric.offsets is None and symmetric.zero_points is None
    assert np.isfinite(dequantize(symmetric, Grid(4, 32, True), np)).all()
