"""Weights that are no numbers, vanish, or are huge: the result is always finite, and the report says what happened."""

from __future__ import annotations

import numpy as np
import pytest

import cuvil_onnx
from tests.quantize.quantize_testing import product, rows, run, weight, weights_of

BOTH = pytest.mark.parametrize("symmetric", [True, False])
SCHEMES = pytest.mark.parametrize("scheme", ["rtn", "rtn:clip=1"])


@BOTH
@SCHEMES
def test_nan_and_infinity_become_numbers_and_are_reported(symmetric: bool, scheme: str) -> None:
    w = weight(96, 64)
    w[3, 5], w[40, 6], w[41, 6], w[:, 7] = np.nan, np.inf, -np.inf, np.nan
    with np.errstate(invalid="ignore"):
        result = cuvil_onnx.quantize(product(w), scheme, group_size=32, symmetric=symmetric, verify=False)
    (rounded,) = weights_of(result.model)
    assert np.isfinite(rounded).all() and (rounded[:, 7] == 0).all()
    untouched = np.delete(rounded, [5, 6, 7], 1) - np.delete(w, [5, 6, 7], 1)
    assert np.abs(untouched).max() < 0.1
    largest = np.abs(w[np.isfinite(w[:, 6]), 6]).max()
    np.testing.assert_allclose(rounded[40:42, 6], [largest, -largest], rtol=0.2)
    (warning,) = result.report.quantization.warnings  # type: ignore[union-attr]
    assert "97 NaN became 0" in warning and "2 infinities" in warning and "'y'" not in warning
    assert np.isfinite(run(result.model, x=rows(3, 96))[0]).all()


@BOTH
@SCHEMES
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_zero_and_constant_groups(symmetric: bool, scheme: str, dtype: type) -> None:
    w = weight(64, 64, dtype=dtype)
    w[:32, 1], w[:, 2], w[32:, 3], w[:, 4], w[0, 5] = 0, 0, 0.75, -0.5, 0
    result = cuvil_onnx.quantize(product(w), scheme, group_size=32, symmetric=symmetric, verify=True)
    (rounded,) = weights_of(result.model)
    assert (rounded[:32, 1] == 0).all() and (rounded[:, 2] == 0).all() and rounded[0, 5] == 0
    # The extreme of a group with one sign is on the grid but for the scale's rounding (2^-11 for float16).
    np.testing.assert_allclose(rounded[32:, 3], 0.75, rtol=1e-3)
    np.testing.assert_allclose(rounded[:, 4], -0.5, rtol=1e-3)


@BOTH
@SCHEMES
def test_scales_that_underflow_float16(symmetric: bool, scheme: str) -> None:
    numbers = weight(64, 64).astype(np.float64) * 10
    numbers[:, 1] *= 6e-8
    numbers[:, 2] *= 1e-7
    numbers[:, 3] *= 1e-4
    w = numbers.astype(np.float16)
    result = cuvil_onnx.quantize(product(w), scheme, group_size=32, symmetric=symmetric, verify=True)
    (rounded,) = weights_of(result.model)
    # float16 itself is a grid of steps of 6e-8 there.
    assert np.abs(rounded[:, 1:3] - w[:, 1:3].astype(np.float64)).max() <= 6e-8
    error = np.linalg.norm(rounded[:, 3] - w[:, 3].astype(np.float64)) / np.linalg.norm(w[:, 3].astype(np.float64))
    assert error < 0.15
    assert np.isfinite(run(result.model, x=rows(3, 64, dtype=np.float16))[0]).all()


@BOTH
@SCHEMES
@pytest.mark.parametrize("size", [1e-40, 1e-30, 1e30, 3e38])
def test_the_ends_of_float32(symmetric: bool, scheme: str, size: float) -> None:
    w = np.clip(weight(64, 64) * 10, -1, 1).astype(np.float64) * size
    w = w.astype(np.float32)
    result = cuvil_onnx.quantize(product(w), scheme, group_size=32, symmetric=symmetric, verify=False)
    (rounded,) = weights_of(result.model)
    single = rounded.astype(np.float32)
    assert np.isfinite(single).all()
    if size > 1e-35:  # below, scales are at the end of float32
        assert np.linalg.norm((rounded - w) / size) < 0.15 * np.linalg.norm(w / size)
    x = np.zeros((2, 64), np.float32)
    x[0, 3] = 1
    assert np.isfinite(run(result.model, x=x)[0]).all()


def test_weights_beyond_float16_stay_in_a_model_that_becomes_half() -> None:
    w = weight(64, 96)
    w[5, 6] = 1e6
    result = cuvil_onnx.optimize(product(w), quantize="rtn", precision="fp16")
    report = result.report.quantization
    assert report is not None and "beyond float16" in report.skipped[0].reason and not report.layers
    assert np.isfinite(run(result.model, x=rows(2, 64))[0]).all()
