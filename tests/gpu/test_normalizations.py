"""Hardmax, LpNormalization and MeanVarianceNormalization against NumPy in float64."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.gpu.bounds import ROUNDING, in_bfloat16
from tests.gpu.single_op import MakeSession, check, quick, sample

Array = np.ndarray
FLOATS = [np.float32, np.float16, np.float64]
# Rows of one value, of a few, of a warp, of every block size, beyond the registers of a block; columns few and many.
SHAPES: list[tuple[tuple[int, ...], int]] = [
    ((5, 1), -1),
    ((3, 7), -1),
    ((3, 256), 1),
    ((2, 1000), -1),
    ((2, 5000), -1),
    ((2, 33001), -1),
    ((2, 5, 3, 3), 1),
    ((2, 70, 9), 1),
    ((100, 40), 0),
    ((6,), 0),
]


def one_hot_of_first_maximum(x: Array, axis: int) -> Array:
    first = np.expand_dims(x.argmax(axis), axis)
    place = np.arange(x.shape[axis]).reshape([-1 if a == axis % x.ndim else 1 for a in range(x.ndim)])
    return (place == first).astype(x.dtype)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("shape", "axis"), SHAPES, ids=str)
def test_hardmax(ep_session: MakeSession, shape: tuple[int, ...], axis: int, dtype: type) -> None:
    x = sample(shape, dtype).round(1).astype(dtype)  # equal maxima: the first one counts
    check(ep_session, "Hardmax", [x], {"axis": axis}, opset=13, expected=[one_hot_of_first_maximum(x, axis)])


def test_hardmax_of_a_flattened_input(ep_session: MakeSession) -> None:
    x = sample((2, 3, 4, 5)).astype(np.float32)
    for opset in (1, 11):
        for axis in (0, 1, 2, 3):
            matrix = x.reshape(int(np.prod(x.shape[:axis])), -1)
            expected = one_hot_of_first_maximum(matrix, 1).reshape(x.shape)
            check(ep_session, "Hardmax", [x], {"axis": axis}, opset=max(opset, 7), expected=[expected])
    check(ep_session, "Hardmax", [x], {"axis": 4}, opset=7, expected=[np.ones_like(x)])
    check(ep_session, "Hardmax", [x], opset=11)  # the default axis is 1 here, -1 from opset 13 on
    check(ep_session, "Hardmax", [x], opset=13)


def test_hardmax_bfloat16_and_empty(ep_session: MakeSession) -> None:
    x = in_bfloat16(sample((3, 9)))
    check(ep_session, "Hardmax", [x], expected=[one_hot_of_first_maximum(x, 1)], opset=13, bfloat16=True)
    for shape in ((0, 3), (2, 0)):
        check(ep_session, "Hardmax", [sample(shape)], expected=[sample(shape)], opset=13)


def lp_norm(make: MakeSession, x: Array, axis: int, p: int, opset: int = 1, bfloat16: bool = False) -> None:
    wide = x.astype(np.float64)
    norm = np.abs(wide).sum(axis, keepdims=True) if p == 1 else np.sqrt((wide * wide).sum(axis, keepdims=True))
    expected = np.divide(wide, norm, out=np.zeros_like(wide), where=norm != 0).astype(x.dtype)
    kind = "bfloat16" if bfloat16 else x.dtype.name
    # A sum of n positive terms in float32, by threads of at most n / 32 + 32 terms each; then a root, a division and
    # one rounding to the type.
    inside = (x.shape[axis] / 32 + 40) * ROUNDING["float64" if kind == "float64" else "float32"]
    tolerance = {"rtol": inside + 2 * ROUNDING[kind], "atol": 2.0**-24 if kind == "float16" else 0.0}
    attrs = {"axis": axis, "p": p}
    check(make, "LpNormalization", [x], attrs, opset=max(opset, 7), expected=[expected], bfloat16=bfloat16, **tolerance)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize(("shape", "axis"), SHAPES, ids=str)
def test_lp_normalization(ep_session: MakeSession, shape: tuple[int, ...], axis: int, p: int, dtype: type) -> None:
    lp_norm(ep_session, sample(shape, dtype), axis, p)
    lp_norm(ep_session, sample(shape, dtype), axis, p, opset=22)


def test_lp_normalization_of_zeros_bfloat16_and_empty(ep_session: MakeSession) -> None:
    x = sample((4, 6))
    x[1] = 0
    x[:, 2] = 0
    for axis in (0, 1):
        for p in (1, 2):
            lp_norm(ep_session, x, axis, p)
            lp_norm(ep_session, in_bfloat16(x), axis, p, opset=22, bfloat16=True)
    for shape in ((0, 3), (2, 0)):
        check(ep_session, "LpNormalization", [sample(shape)], expected=[sample(shape)])


def mean_variance(
    make: MakeSession, x: Array, axes: list[int] | None, opset: int = 13, bfloat16: bool = False, mean: float = 0
) -> None:
    wide, over = x.astype(np.float64), tuple(axes if axes is not None else [0, 2, 3])
    centred = wide - wide.mean(over, keepdims=True)
    expected = centred / (np.sqrt((centred * centred).mean(over, keepdims=True)) + 1e-9)
    kind = "bfloat16" if bfloat16 else x.dtype.name
    # About 64 roundings in float32 of numbers of the size of the mean or the largest deviation (6), against a standard
    # deviation near 1; the result, below 8, is rounded once.
    inside = 64 * 8 * (1 + abs(mean)) * ROUNDING["float64" if kind == "float64" else "float32"]
    attrs = {} if axes is None else {"axes": axes}
    tolerance = {"rtol": 2.02 * ROUNDING[kind], "atol": inside}
    y = [expected.astype(x.dtype)]
    check(make, "MeanVarianceNormalization", [x], attrs, opset=opset, expected=y, bfloat16=bfloat16, **tolerance)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("opset", [9, 13])
@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((1, 3, 5, 5), None),
        ((3, 4, 5, 7), None),
        ((2, 3, 64, 64), None),
        ((2, 2, 200, 176), None),
        ((3, 4, 5, 7), [0, 1, 2, 3]),
        ((3, 4, 5, 7), [2, 3]),
        ((3, 4, 5, 7), [-1]),
        ((3, 4, 5, 7), [1]),
        ((3, 4, 5, 7), [0]),
        ((3, 4, 5, 7), [0, 1, 2]),
        ((3, 4, 5, 7), [1, 3]),
        ((2, 40001), [1]),
    ],
    ids=str,
)
def test_mean_variance(
    ep_session: MakeSession, shape: tuple[int, ...], axes: list[int] | None, opset: int, dtype: type
) -> None:
    mean_variance(ep_session, sample(shape, dtype), axes, opset)


def test_mean_variance_keeps_the_digits_of_a_large_mean(ep_session: MakeSession) -> None:
    for shape in ((1, 2, 30, 30), (4, 2, 30, 30), (1, 2, 100, 400)):
        x: Array = (sample(shape, np.float64) + 100).astype(np.float32)
        mean_variance(ep_session, x, None, mean=100)


def test_mean_variance_of_equal_values_bfloat16_and_empty(ep_session: MakeSession) -> None:
    mean_variance(ep_session, np.full((2, 3, 4, 4), 0.5, np.float32), None)
    mean_variance(ep_session, in_bfloat16(sample((2, 3, 6, 6))), None, bfloat16=True)
    x = sample((2, 0, 3, 3))
    check(ep_session, "MeanVarianceNormalization", [x], expected=[x], opset=13)


@quick
@given(data=st.data())
def test_mean_variance_of_any_axes(ep_session: MakeSession, data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 20), min_size=1, max_size=4))
    axes = data.draw(st.lists(st.integers(0, len(shape) - 1), min_size=1, unique=True))
    # Whole numbers: two of them are equal or far apart, so that no small group has a deviation near the rounding of its
    # mean, which no float32 arithmetic could divide by.
    mean_variance(ep_session, sample(shape, np.int32).astype(np.float32), axes, mean=9)
