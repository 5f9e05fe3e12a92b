"""GPTQ: errors are made up for where inputs are correlated, and only there."""

from __future__ import annotations

import numpy as np
import pytest

from cuvil_onnx.quantize.calibrate_statistics import Statistics
from cuvil_onnx.quantize.grid import Grid, round_to_grid
from cuvil_onnx.quantize.scheme import Layer
from cuvil_onnx.quantize.schemes._descent import Lines, fit_all_scales, refine
from cuvil_onnx.quantize.schemes._objective import fit_scales
from cuvil_onnx.quantize.schemes.gptq import inverse_factor
from tests.quantize.scheme_testing import GRIDS, activations, layer, output_noise, rounded, statistics, weight


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_correlated_inputs(grid: Grid) -> None:
    """The inputs have 37 strong directions of 300: most of an error can be moved where nothing reads it."""
    item = layer()
    (nearest,), (made,) = rounded("rtn", grid, item), rounded("gptq", grid, item)
    assert output_noise(item, made) < 0.25 * output_noise(item, nearest)


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("options", [{}, {"act_order": False}], ids=str)
def test_independent_inputs_are_rounded_to_nearest(symmetric: bool, options: dict) -> None:
    """With the identity as Hessian there is nothing to gain; the ranges that are tried are those of RTN without."""
    channels = 96
    seen = Statistics(np.eye(channels, dtype=np.float32) * 7, np.ones(channels), np, 7)
    item = Layer("layer", weight(channels, 32), seen)
    grid = Grid(4, 32, symmetric)
    (nearest,), (made,) = rounded("rtn", grid, item), rounded("gptq", grid, item, steps=0, sweeps=0, **options)
    np.testing.assert_array_equal(made, nearest)


def test_sweeps_only_lower_the_error() -> None:
    item = layer()
    noise = [output_noise(item, rounded("gptq", Grid(4, 64), item, sweeps=s)[0]) for s in (0, 1, 4)]
    assert noise[0] > noise[1] >= noise[2]


def test_pieces_of_a_weight_are_rounded_as_the_whole() -> None:
    item = layer(128, 40)
    (whole,) = rounded("gptq", Grid(4, 32), item)
    parts = [Layer("part", item.weight[:, p], item.statistics) for p in (slice(0, 16), slice(16, 40))]
    # Products of other widths are summed in another order; a code on the edge may fall to the other side, and scales
    # that are fitted differ in their last bits.
    joined = np.concatenate(rounded("gptq", Grid(4, 32), *parts), axis=1)
    assert (~np.isclose(joined, whole, rtol=1e-4)).mean() < 0.01


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


def test_scales_are_the_least_squares_of_the_outputs() -> None:
    """One group, codes that stay: s = (q^T H w) / (q^T H q)."""
    random = np.random.default_rng(1)
    moments = statistics(activations(500, 24)).hessian().astype(np.float32)
    codes = random.integers(-7, 8, (24, 3)).astype(np.int8)
    target = (codes * np.float32([0.1, 0.3, -0.2]) + 0.02 * random.standard_normal((24, 3))).astype(np.float32)
    lines = Lines(np.arange(24), np.float32([[0.12, 0.25, -0.2]]), None, Grid(4, -1, True), np)
    fit_all_scales(codes, lines.values(codes) - target, moments, lines)
    q, h, w = codes.astype(np.float64), moments.astype(np.float64), target.astype(np.float64)
    want = np.einsum("kn,kl,ln->n", q, h, w) / np.einsum("kn,kl,ln->n", q, h, q)
    np.testing.assert_allclose(lines.scales[0], want, rtol=1e-4)


def test_codes_of_two_channels_are_the_best_ones() -> None:
    """Two inputs that are almost one: 0.4 + 0.4 of a step is one step together, and nearest would give none."""
    moments = np.float32([[1.0, 0.99], [0.99, 1.0]])
    target = np.float32([[0.4], [0.4]])
    codes = np.zeros((2, 1), np.int8)
    lines = Lines(np.arange(2), np.float32([[1.0]]), None, Grid(4, -1, True), np)
    refine(codes, target, moments, lines, 4)
    assert sorted(codes[:, 0]) == [0, 1]
    np.testing.assert_allclose(lines.scales[0], 0.796, rtol=1e-5)  # (q^T H w) / (q^T H q) = 0.4 * 1.99 / 1


@pytest.mark.parametrize("group", [16, -1])
def test_refinement_never_raises_the_error(group: int) -> None:
    item = layer(96, 24)
    moments = item.statistics.hessian()
    scales, zeros = fit_scales(item.weight, None, Grid(4, group), np, steps=0, narrowest=1.0)
    lines = Lines(np.arange(96), scales, zeros, Grid(4, group), np)
    codes = round_to_grid(item.weight, scales, zeros, Grid(4, group), np)
    last = np.full(24, np.inf)
    for _ in range(4):
        error = (lines.values(codes) - item.weight).astype(np.float64)
        cost = np.einsum("kn,kl,ln->n", error, moments.astype(np.float64), error)
        assert (cost <= last * (1 + 1e-4)).all()  # float32 sums
        last = cost
        refine(codes, item.weight, moments, lines, 1)


def test_following_undoes_what_earlier_layers_did() -> None:
    """The input arrives as x0 M; the weight M^-1 W restores the output, which 8 bits come close to."""
    k = 32
    random = np.random.default_rng(3)
    x0 = random.standard_normal((4000, k)).astype(np.float32)
    mix = (np.eye(k) + 0.1 * random.standard_normal((k, k)) / np.sqrt(k)).astype(np.float32)
    seen = Statistics.empty(k)
    seen.add(x0 @ mix, x0)
    item = Layer("layer", weight(k, 16), seen)
    noise = []
    for follow in (0.0, 0.5, 1.0):
        (made,) = rounded("gptq", Grid(8, -1, True), item, follow=follow, damping=1e-6)
        noise.append(float(np.square(x0 @ (mix @ made - item.weight)).sum() / np.square(x0 @ item.weight).sum()))
    assert noise[1] == pytest.approx(noise[0] / 4, rel=0.1), "half of the way, a quarter of the energy"
    assert noise[2] < 0.01 * noise[0]


def test_without_drift_there_is_nothing_to_follow() -> None:
    item = layer(64, 16)
    np.testing.assert_array_equal(
        rounded("gptq", Grid(4, 32), item, follow=1.0), rounded("gptq", Grid(4, 32), item, follow=0.0)
    )
