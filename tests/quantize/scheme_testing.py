"""What the tests of schemes share: a layer whose input channels are correlated, and what a scheme makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cuvil_onnx.quantize.calibrate_statistics import Statistics
from cuvil_onnx.quantize.grid import Array, Grid, dequantize
from cuvil_onnx.quantize.layers import Scaled
from cuvil_onnx.quantize.scheme import Context, Layer, make_scheme

GRIDS = [Grid(4, 32, False), Grid(4, 128, True), Grid(4, -1, False), Grid(8, 32, True)]


def context(seed: int = 0) -> Context:
    return Context(np, np.random.default_rng(seed))


def activations(rows: int, channels: int, seed: int = 0) -> Array:
    """Rows near a space of few dimensions, with channels of very different sizes, as in language models."""
    random = np.random.default_rng([seed, channels])
    few = max(channels // 8, 1)
    mix = random.standard_normal((few, channels)).astype(np.float32)
    x = random.standard_normal((rows, few)).astype(np.float32) @ mix / np.float32(np.sqrt(few))
    x += 0.3 * random.standard_normal((rows, channels)).astype(np.float32)
    return x * np.exp(0.7 * random.standard_normal(channels)).astype(np.float32)


def weight(k: int, n: int, seed: int = 0) -> Array:
    """With heavy tails, as trained ones."""
    return (np.random.default_rng([seed, k, n]).standard_t(4, (k, n)) * 0.05).astype(np.float32)


def statistics(x: Array) -> Statistics:
    found = Statistics.empty(x.shape[-1])
    found.add(x)
    return found


def layer(k: int = 300, n: int = 64, seed: int = 0) -> Layer:
    return Layer("layer", weight(k, n, seed), statistics(activations(2000, k, seed)))


def rounded(scheme: str, grid: Grid, *layers: Layer, seed: int = 0, **options: Any) -> list[Array]:
    """The weights [K, N] that the codes stand for, input scales undone."""
    made = make_scheme(scheme, options)
    found = []
    with np.errstate(over="ignore", invalid="ignore"):  # as the driver: comparisons bear what gets too large
        scale = made.input_scale(layers, grid, context(seed))
    for item in layers:
        w, seen = item.weight, item.statistics
        if scale is not None:
            w, seen = w * scale[:, None], None if seen is None else Scaled(seen, scale)
        with np.errstate(over="ignore", invalid="ignore"):
            quantized = made.quantize(Layer(item.name, w, seen), grid, context(seed))
        for codes in (quantized.codes, quantized.zero_points):
            assert codes is None or (codes.min() >= grid.low and codes.max() <= grid.high)
        assert np.isfinite(quantized.scales).all() and (quantized.scales != 0).all()
        numbers = dequantize(quantized, grid, np)
        found.append(numbers if scale is None else numbers / scale[:, None])
    return found


def output_noise(item: Layer, w: Array) -> float:
    """The energy of x @ (w - W) over that of x @ W."""
    assert item.statistics is not None
    moments = item.statistics.hessian().astype(np.float64)

    def energy(m: Array) -> float:
        return float(np.einsum("kn,kl,ln->", m, moments, m.astype(np.float64), optimize=True))

    return energy(w.astype(np.float64) - item.weight) / energy(item.weight)


def bad_layers() -> Sequence[Layer]:
    """Finite weights and statistics at the edges: each must give finite weights."""
    x, w = activations(500, 70), weight(70, 5)
    zeros, column, huge, tiny = w.copy(), w.copy(), w * np.float32(1e36), w * np.float32(1e-38)
    zeros[:32] = 0
    column[:, 2] = 0
    dead, same, few = x.copy(), np.repeat(x[:, :1], 70, axis=1), x[:3]
    dead[:, 10:20] = 0
    nothing = Statistics.empty(70)
    wild = x.copy()
    wild[0, 0], wild[1, 1], wild[2, 2] = np.nan, np.inf, 3e38
    return [
        Layer("zero groups", zeros, statistics(x)),
        Layer("zero column", column, statistics(x)),
        Layer("huge", huge, statistics(x)),
        Layer("tiny", tiny, statistics(x)),
        Layer("all zero", np.zeros_like(w), statistics(x)),
        Layer("dead channels", w, statistics(dead)),
        Layer("no activations", w, statistics(np.zeros_like(x))),
        Layer("one direction", w, statistics(same)),
        Layer("fewer rows than channels", w, statistics(few)),
        Layer("nothing seen", w, nothing),
        Layer("NaN and Inf", w, statistics(wild)),
        Layer("huge activations", w, statistics(x * np.float32(1e14))),
        Layer("tiny activations", w, statistics(x * np.float32(1e-22))),
        Layer("one row", w[:1], statistics(x[:, :1])),
    ]
