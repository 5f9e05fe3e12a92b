"""InstanceNormalization and GroupNormalization against NumPy in float64."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.gpu.single_op import MakeSession, check, quick, sample

Array = np.ndarray
EPSILON = 1e-5


def expected(x: Array, scale: Array, bias: Array, groups: int) -> Array:
    """Scale and bias are given for each channel."""
    flat = x.astype(np.float64).reshape(x.shape[0], groups, int(np.prod(x.shape[1:])) // groups)
    centred = flat - flat.mean(-1, keepdims=True)
    y = (centred / np.sqrt((centred * centred).mean(-1, keepdims=True) + np.float32(EPSILON))).reshape(x.shape)
    per_channel = (1, -1, *[1] * (x.ndim - 2))
    gain, shift = (a.astype(np.float64).reshape(per_channel) for a in (scale, bias))
    result: Array = (y * gain + shift).astype(x.dtype)
    return result


def tolerance(dtype: type, mean: float = 0) -> dict[str, float]:
    # float32: about 32 roundings of terms that reach 8 (6 deviations times a gain of 1.5), larger with a large mean.
    # float16: result and expectation are rounded (2 units of values up to 8).
    unit = {"float32": 2.0**-24, "float64": 2.0**-53, "float16": 2.0**-11}[np.dtype(dtype).name]
    inside = 32 * 8 * (2.0**-53 if dtype is np.float64 else 2.0**-24) * (1 + abs(mean))
    return {"rtol": 2.02 * unit, "atol": inside}


def instance(make: MakeSession, shape: tuple[int, ...], dtype: type = np.float32, mean: float = 0) -> None:
    x: Array = (sample(shape, np.float64) + mean).astype(dtype)
    scale, bias = sample(shape[1:2], dtype, 1), sample(shape[1:2], dtype, 2)
    y = expected(x, scale, bias, shape[1])
    attrs = {"epsilon": EPSILON}
    check(make, "InstanceNormalization", [x, scale, bias], attrs, expected=[y], **tolerance(dtype, mean))


def group(make: MakeSession, shape: tuple[int, ...], groups: int, opset: int = 21, dtype: type = np.float32) -> None:
    x, channels = sample(shape, dtype), shape[1]
    count = groups if opset < 21 else channels
    scale, bias = sample((count,), dtype, 1), sample((count,), dtype, 2)
    repeats = channels // count
    y = expected(x, scale.repeat(repeats), bias.repeat(repeats), groups)
    attrs = {"epsilon": EPSILON, "num_groups": groups}
    check(make, "GroupNormalization", [x, scale, bias], attrs, expected=[y], opset=opset, **tolerance(dtype))


# Rows of one value (variance 0), of a few, of a warp, of every block size, and beyond the registers of a block.
SHAPES = [
    (2, 3, 1, 2),
    (2, 3, 5, 7),
    (2, 3, 16, 16),
    (1, 5, 30, 33),
    (2, 4, 64, 64),
    (1, 3, 100, 81),
    (1, 2, 200, 176),
    (2, 2, 40001),
]


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64])
@pytest.mark.parametrize("shape", SHAPES)
def test_instance(ep_session: MakeSession, shape: tuple[int, ...], dtype: type) -> None:
    instance(ep_session, shape, dtype)


def test_large_mean_keeps_its_digits(ep_session: MakeSession) -> None:
    for shape in ((1, 2, 30, 30), (1, 2, 40000)):
        instance(ep_session, shape, mean=100)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64])
@pytest.mark.parametrize("opset", [18, 21])
@pytest.mark.parametrize(
    ("shape", "groups"),
    [((2, 6, 5, 7), 3), ((2, 8, 16, 16), 2), ((1, 32, 64, 64), 32), ((1, 12, 33, 100), 1), ((3, 4), 2)],
)
def test_group(ep_session: MakeSession, shape: tuple[int, ...], groups: int, opset: int, dtype: type) -> None:
    group(ep_session, shape, groups, opset, dtype)


@quick
@given(data=st.data())
def test_any_shape(ep_session: MakeSession, data: st.DataObject) -> None:
    groups, per_group = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 5))
    shape = (
        data.draw(st.integers(1, 3)),
        groups * per_group,
        *data.draw(st.lists(st.integers(1, 30), min_size=1, max_size=2)),
    )
    group(ep_session, shape, groups, data.draw(st.sampled_from([18, 21])))


def test_empty(ep_session: MakeSession) -> None:
    instance(ep_session, (0, 3, 4))
