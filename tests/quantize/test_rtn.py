"""Narrower ranges: nearer weights, and outputs that are no smaller for it."""

from __future__ import annotations

import numpy as np
import pytest

from cuvil_onnx.quantize.grid import Grid
from cuvil_onnx.quantize.scheme import Layer
from tests.quantize.scheme_testing import layer, rounded, weight


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("group", [32, 128, -1])
def test_clipping_does_not_shrink(group: int, symmetric: bool) -> None:
    """The part of the rounded weight along the weight; least squares alone leave less than 0.995 of it."""
    item = layer(256, 64)
    grid = Grid(4, group, symmetric)
    (plain,), (clipped,) = rounded("rtn", grid, item), rounded("rtn", grid, item, clip=True)

    def along(w: np.ndarray) -> float:
        return float((w * item.weight).sum() / (item.weight**2).sum())

    # Where the widest range ends the growth a little is missing.
    assert 0.995 < along(clipped) < 1.003
    assert np.linalg.norm(clipped - item.weight) < np.linalg.norm(plain - item.weight)


def test_one_outlier() -> None:
    """Steps of 0.2 hold all weights, 0, 1 and 3: nothing is narrowed or made longer."""
    w = np.float32([1] * 15 + [0] * 16 + [3])[:, None]
    (made,) = rounded("rtn", Grid(4, 32), Layer("layer", w), clip=True)
    np.testing.assert_allclose(made, w, rtol=1e-6)


@pytest.mark.parametrize("size", [1e-38, 1e-20, 1.0, 1e20, 1e37])
def test_weights_of_any_size(size: float) -> None:
    w = weight(64, 8)
    (small,), (made,) = (
        rounded("rtn", Grid(4, 32), Layer("layer", (w * np.float32(s)).astype(np.float32)), clip=True)
        for s in (1.0, size)
    )
    assert np.isfinite(made).all()
    if size > 1e-30:  # below, scales are subnormal, and squares of 1e20 exceed float32: other ranges are taken
        assert np.linalg.norm(made / np.float32(size) - small) < 0.2 * np.linalg.norm(small)
