"""Rounding by signed gradients: lower errors at the output, never higher ones than before the first step."""

from __future__ import annotations

import numpy as np
import pytest

from cuvil_onnx.quantize.calibrate_statistics import Statistics
from cuvil_onnx.quantize.grid import Grid
from cuvil_onnx.quantize.scheme import Layer
from tests.quantize.scheme_testing import layer, output_noise, rounded, weight


@pytest.mark.parametrize("grid", [Grid(4, 32), Grid(4, 128, True), Grid(4, -1)], ids=str)
@pytest.mark.parametrize("tune_scales", [True, False])
def test_steps_lower_the_error(grid: Grid, tune_scales: bool) -> None:
    item = layer()
    start, made = (
        output_noise(item, rounded("autoround", grid, item, iterations=i, tune_scales=tune_scales)[0]) for i in (0, 60)
    )
    assert made < 0.75 * start


def test_no_column_gets_worse() -> None:
    """Steps far too large, which overshoot: the best codes seen are taken, column by column."""
    item = layer(96, 24)
    start, made = (rounded("autoround", Grid(4, 32), item, iterations=i, rate=5.0)[0] for i in (0, 8))
    for column in range(24):
        part = Layer("part", item.weight[:, column : column + 1], item.statistics)
        before, after = (output_noise(part, w[:, column : column + 1]) for w in (start, made))
        assert after <= before * (1 + 1e-4)


def test_independent_inputs_stay_rounded_to_nearest() -> None:
    seen = Statistics(np.eye(64, dtype=np.float32), np.ones(64), np, 1)
    item = Layer("layer", weight(64, 16), seen)
    options = {"tune_scales": False, "steps": 0}
    (nearest,) = rounded("autoround", Grid(4, 32), item, iterations=0, **options)
    (made,) = rounded("autoround", Grid(4, 32), item, iterations=30, **options)
    np.testing.assert_array_equal(made, nearest)
