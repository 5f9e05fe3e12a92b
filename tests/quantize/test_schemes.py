"""What holds for every scheme: grids of any shape, nothing random, never NaN."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from cuvil_onnx.errors import OptionError
from cuvil_onnx.quantize.grid import Grid
from cuvil_onnx.quantize.scheme import Layer, make_scheme
from tests.quantize.scheme_testing import bad_layers, context, layer, output_noise, rounded, statistics

SCHEMES = [
    ("rtn", {}),
    ("rtn", {"clip": True}),
    ("hqq", {}),
    ("hqq", {"float_zeros": True}),
    ("gptq", {}),
    ("gptq", {"act_order": False, "sweeps": 0, "steps": 0}),
    ("awq", {}),
    ("awq", {"rounding": "gptq"}),
    ("autoround", {"iterations": 20}),
    ("joint", {"awq": {"q_group_size": 64}, "group": {"group_size": 32}}),
]
IDS = [f"{name}-{'-'.join(map(str, options))}" for name, options in SCHEMES]


@pytest.mark.parametrize(("scheme", "options"), SCHEMES, ids=IDS)
@pytest.mark.parametrize("symmetric", [True, False])
def test_bad_weights_and_statistics_never_give_nan(scheme: str, options: dict, symmetric: bool) -> None:
    for kind in (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16):
        for item in bad_layers():
            if item.name == "huge" and kind == ir.DataType.FLOAT16:
                continue  # the driver refuses weights beyond float16
            (w,) = rounded(scheme, Grid(4, 32, symmetric, kind), item, **options)
            assert w.shape == item.weight.shape and np.isfinite(w).all(), (item.name, kind)


@pytest.mark.parametrize(("scheme", "options"), SCHEMES, ids=IDS)
def test_tails_of_k_and_whole_columns(scheme: str, options: dict) -> None:
    for k, group in ((31, 16), (33, 32), (130, 128), (45, -1), (7, 64)):
        for symmetric in (True, False):
            item = layer(k, 9)
            (w,) = rounded(scheme, Grid(4, group, symmetric), item, **options)
            # 4 bits of a group's range with heavy tails: steps of half a deviation, noise below a tenth of the energy.
            assert np.linalg.norm(w - item.weight) < 0.35 * np.linalg.norm(item.weight)


@pytest.mark.parametrize(("scheme", "options"), SCHEMES, ids=IDS)
def test_equal_runs_give_equal_weights(scheme: str, options: dict) -> None:
    item = layer(160, 24)
    (one,), (two,) = (rounded(scheme, Grid(4, 32), item, **options) for _ in range(2))
    np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize(("scheme", "options"), SCHEMES, ids=IDS)
def test_scales_are_numbers_of_their_type(scheme: str, options: dict) -> None:
    item = layer(96, 16)
    for kind in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16):
        made = make_scheme(scheme, options).quantize(item, Grid(4, 32, False, kind), context())
        dtype = np.float16 if kind == ir.DataType.FLOAT16 else ml_dtypes.bfloat16
        for numbers in (made.scales, made.offsets):
            assert numbers is None or np.array_equal(numbers.astype(dtype).astype(np.float32), numbers)


@pytest.mark.parametrize(("scheme", "options"), [s for s in SCHEMES if s[0] not in ("hqq", "rtn")], ids=str)
@pytest.mark.parametrize("grid", [Grid(4, 32), Grid(4, 128, True), Grid(4, -1)], ids=str)
def test_calibration_lowers_the_error_at_the_output(scheme: str, options: dict, grid: Grid) -> None:
    item = layer()
    (nearest,) = rounded("rtn", grid, item)
    (better,) = rounded(scheme, grid, item, **options)
    assert output_noise(item, better) < 0.85 * output_noise(item, nearest)


@pytest.mark.parametrize("scheme", ["gptq", "autoround", "awq"])
def test_a_layer_without_statistics_is_rounded_by_its_weights_alone(scheme: str) -> None:
    item = Layer("unseen", layer(64, 8).weight)
    (w,) = rounded(scheme, Grid(4, 32), item)
    assert np.linalg.norm(w - item.weight) < 0.2 * np.linalg.norm(item.weight)


@pytest.mark.parametrize(
    ("scheme", "options", "message"),
    [
        ("awq", {"rounding": "up"}, "nearest or gptq"),
        ("awq", {"trials": 0}, "must be positive"),
        ("hqq", {"p": 0}, "above 0 and at most 1"),
        ("autoround", {"iterations": -1}, "must not be negative"),
        ("gptq", {"order": 1}, "no option 'order'"),
        ("joint", {"awq": {"q_group_size": 100}, "group": {"group_size": 32}}, "32 does not divide q_group_size=100"),
        ("joint", {"awq": {"q_group_size": 128}, "group": {"group_size": -1}}, "does not divide"),
        ("joint", {"awq": {"n_bits": 9}}, "n_bits=9"),
        ("joint", {"awq": {"trails": 3}}, "no option 'trails'"),
        ("joint", {"group": {"bits": 4}}, "no 'bits'"),
        ("joint", {"awq": 4}, "must be a dict"),
    ],
)
def test_options_are_checked(scheme: str, options: dict, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        make_scheme(scheme, options)


def test_statistics_of_a_scaled_input() -> None:
    x = np.random.default_rng(0).standard_normal((50, 6)).astype(np.float32)
    scale = np.array([1, 2, 4, 0.5, 1, 8], np.float32)
    scaled, direct = statistics(x).scaled(scale), statistics(x / scale)
    np.testing.assert_allclose(scaled.hessian(), direct.hessian(), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(scaled.mean_magnitude(), direct.mean_magnitude(), rtol=1e-6)
