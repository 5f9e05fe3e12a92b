"""Mixed precision: sensitive layers get more bits, within the budget."""

from __future__ import annotations

import numpy as np
import pytest

import cuvil_onnx
from cuvil_onnx.errors import OptionError
from cuvil_onnx.quantize.mixed import Sensitivity, choose_bits, spend
from tests.quantize.quantize_testing import graph, rows, weight

LAYERS = [
    Sensitivity("calm", {4: 1e-3, 8: 1e-6, 16: 0.0}, {4: 100, 8: 200, 16: 400}),
    Sensitivity("wild", {4: 1e-1, 8: 1e-4, 16: 0.0}, {4: 100, 8: 200, 16: 400}),
    Sensitivity("huge", {4: 2e-1, 8: 1e-4, 16: 0.0}, {4: 9000, 8: 18000, 16: 36000}),
]


def test_bytes_go_where_they_remove_most_noise() -> None:
    assert spend(LAYERS, budget_bytes=9200).bits == {"calm": 4, "wild": 4, "huge": 4}
    assert spend(LAYERS, budget_bytes=9300).bits == {"calm": 4, "wild": 8, "huge": 4}
    choice = spend(LAYERS, budget_bytes=9400)
    assert choice.bits == {"calm": 8, "wild": 8, "huge": 4} and choice.size == 9400
    assert spend(LAYERS, budget_bytes=10**6).noise == 0.0


def test_noise_limit_is_met_with_few_bytes() -> None:
    choice = spend(LAYERS, max_noise=0.08)
    assert choice.bits == {"calm": 4, "wild": 8, "huge": 4} and choice.noise <= 3 * 0.08
    assert spend(LAYERS, max_noise=1.0).bits == {"calm": 4, "wild": 4, "huge": 4}
    assert spend(LAYERS, max_noise=0.0).noise == pytest.approx(0.0, abs=1e-12)


def test_impossible_budgets_are_refused() -> None:
    with pytest.raises(OptionError, match="9200 bytes, the budget is 9000"):
        spend(LAYERS, budget_bytes=9000)
    with pytest.raises(OptionError, match="either budget_bytes or max_noise"):
        choose_bits(None)
    with pytest.raises(OptionError, match="names of their own"):
        spend([LAYERS[0], LAYERS[0]], max_noise=0.1)


def test_a_model_with_one_sensitive_layer() -> None:
    """b's inputs are large where its weights are small, so that rounding to a group's range hurts it most."""
    a, b = weight(128, 128, seed=1), weight(128, 128, seed=2)
    b[::2] *= 0.01
    spread = np.where(np.arange(128) % 2 == 0, 30.0, 0.1).astype(np.float32)
    model = graph(
        "(float[M,128] x) => (float[M,128] y, float[M,128] z) { y = MatMul(x, a) s = Mul(x, g) z = MatMul(s, b) }",
        a=a,
        b=b,
        g=spread,
    )
    feeds = [{"x": rows(32, 128, seed=i)} for i in range(3)]
    four = cuvil_onnx.quantize(model, "rtn", calibration=feeds).report.quantization
    assert four is not None
    budget = sum(layer.bytes_after for layer in four.layers) + 128 * 128 // 2 + 1024
    choice = choose_bits(model, budget_bytes=budget, calibration=feeds)
    (upgraded,) = [name for name, bits in choice.bits.items() if bits != 4]
    result = cuvil_onnx.quantize(model, "rtn", overrides=choice.overrides, calibration=feeds)
    report = result.report.quantization
    assert report is not None
    assert {layer.name: layer.bits for layer in report.layers} == choice.bits
    worst = min(four.layers, key=lambda layer: layer.output_snr_db or 0.0)
    assert upgraded == worst.name and upgraded in choice.table()
    assert sum(layer.bytes_after for layer in report.layers) <= budget
