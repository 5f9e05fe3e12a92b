"""GPTQ: errors are made up for where inputs are correlated, and only there."""

from __future__ import annotations

import numpy as np
import pytest

from cuvil_onnx.quantize.calibrate_statistics import Statistics
from cuvil_onnx.quantize.grid import Grid
from cuvil_onnx.quantize.scheme import Layer
from cuvil_onnx.quantize.schemes.gptq import inverse_factor
from tests.quantize.scheme_testing import GRIDS, activations, layer, output_noise, rounded, statistics, weight


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_correlated_inputs(grid: Grid) -> None:
    """The inputs have 37 strong directions of 300: most of an error can be moved where nothing reads it."""
    item = layer()
    (nearest,), (made,) = rounded("rtn", grid, item), rounded("gptq", grid, item)
    assert output_noise(item, made) < 0.25 * output_noise(item, nearest)


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("options", [{}, {"act_order": False}, {"sweeps": 0}], ids=str)
def test_independent_inputs_are_rounded_to_nearest(symmetric: bool, options: dict) -> None:
    """With the identity as Hessian there is nothing to gain; the ranges that are tried are those of RTN without."""
    channels = 96
    seen = Statistics(np.eye(channels, dtype=np.float32) * 7, np.ones(channels), np, 7)
    item = Layer("layer", weight(channels, 32), seen)
    grid = Grid(4, 32, symmetric)
    (nearest,), (made,) = rounded("rtn", grid, item), rounded("gptq", grid, item, steps=0, **options)
    np.testing.assert_array_equal(made, nearest)


def test_sweeps_only_lower_the_error() -> None:
    item = layer()
    noise = [output_noise(item, rounded("gptq", Grid(4, 64), item, sweeps=s)[0]) for s in (0, 1, 4)]
    assert noise[0] > noise[1] >= noise[2]


def test_pieces_of_a_weight_are_rounded_as_the_whole() -> None:
    item = layer(128, 40)
    (whole,) = rounded("gptq", Grid(4, 32), item)
    parts = [Layer("part", item.weight[:, p], item.statistics) for p in (slice(0, 16), slice(16, 40))]
    # Products of other widths are summed in another order; a code on the edge may fall to the other side.
    difference = np.concatenate(rounded("gptq", Grid(4, 32), *parts), axis=1) != whole
    assert difference.mean() < 0.01


def test_unseen_channels_keep_their_weights() -> None:
    x = activations(400, 64)
    x[:, 5] = 0
    item = Layer("layer", weight(64, 16), statistics(x))
    (made,) = rounded("gptq", Grid(4, 32), item)
    assert np.linalg.norm(made[5] - item.weight[5]) < 0.5 * np.linalg.norm(item.weight[5])


def test_the_factor_inverts_the_damped_moments() -> None:
    moments = statistics(activations(500, 40)).hessian()
    factor = inverse_factor(moments, 0.01, np).astype(np.float64)
    assert np.array_equal(factor, np.triu(factor))
    damped = moments + 0.01 * np.diagonal(moments).mean() * np.eye(40)
    # float32 entries of a matrix of condition below 1e4.
    np.testing.assert_allclose(factor.T @ factor @ damped, np.eye(40), atol=2e-3)


@pytest.mark.parametrize(
    "moments",
    [np.ones((8, 8)), np.zeros((8, 8)), np.diag([1.0, -5.0] * 4), np.full((8, 8), np.nan)],
    ids=["rank 1", "zero", "indefinite", "NaN"],
)
def test_singular_moments_give_a_finite_factor(moments: np.ndarray) -> None:
    factor = inverse_factor(moments.astype(np.float32), 0.0, np)
    assert np.isfinite(factor).all() and (np.diagonal(factor) > 0).all()
