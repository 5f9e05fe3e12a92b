"""NonZero, Compress and NonMaxSuppression, whose outputs are as large as the data says; exactly as on the CPU."""

from __future__ import annotations

import numpy as np
import pytest

from tests.gpu.single_op import MakeSession, check, ints, sample

# One element, a few, and more than one tile of CUB's selection.
SHAPES = [(1,), (7,), (3, 5), (2, 1, 4, 3), (40000,), (130, 257), (0, 3), (3, 0)]
TYPES = [np.float32, np.float64, np.int64, np.int32, np.int8, np.uint8, np.bool_]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_non_zero(ep_session: MakeSession, shape: tuple[int, ...], dtype: type) -> None:
    x = sample(shape, dtype)
    x[np.random.default_rng(1).random(shape) < 0.5] = 0
    check(ep_session, "NonZero", [x], expected=[np.array(np.nonzero(x))])


def test_non_zero_of_special_values(ep_session: MakeSession) -> None:
    x = np.array([0.0, -0.0, np.nan, np.inf, -1e-45, 2], np.float32)
    check(ep_session, "NonZero", [x], expected=[np.array([[2, 3, 4, 5]])])
    half = np.array([0.0, -0.0, np.nan, 6e-8, -1], np.float16)  # ONNX Runtime's CPU provider takes no float16
    check(ep_session, "NonZero", [half], expected=[np.array([[2, 3, 4]])])


@pytest.mark.parametrize("value", [0, 1])
def test_non_zero_of_all_or_nothing(ep_session: MakeSession, value: int) -> None:
    check(ep_session, "NonZero", [np.full((70, 300), value, np.float32)])


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int64, np.int8])
@pytest.mark.parametrize("shape", [(5,), (3, 4), (2, 3, 5), (300, 130), (0, 4), (4, 0)])
def test_compress(ep_session: MakeSession, shape: tuple[int, ...], dtype: type) -> None:
    x = sample(shape, dtype)
    rng = np.random.default_rng(2)
    for axis in [None, *range(-len(shape), len(shape))]:
        extent = x.size if axis is None else shape[axis]
        for length in {extent, max(0, extent - 2)}:
            condition = rng.random(length) < 0.5
            check(ep_session, "Compress", [x, condition], {} if axis is None else {"axis": axis}, opset=11)


def boxes(batch: int, n: int, *, centered: bool) -> np.ndarray:
    rng = np.random.default_rng(n)
    corner, size = rng.random((batch, n, 2)) * 8, rng.random((batch, n, 2)) * 4
    second = size if centered else corner + size * rng.choice([-1, 1], (batch, n, 2))
    return np.concatenate([corner, second], axis=2).astype(np.float32)


# Fewer boxes than threads of a block, about as many, and several a thread.
@pytest.mark.parametrize("n", [1, 2, 33, 511, 513, 3000])
@pytest.mark.parametrize("centered", [False, True])
def test_non_max_suppression(ep_session: MakeSession, n: int, centered: bool) -> None:
    rng = np.random.default_rng(0)
    batch, classes = 2, 3
    scores = rng.integers(-5, 60, (batch, classes, n)).astype(np.float32) / 50  # many equal ones
    given = [boxes(batch, n, centered=centered), scores]
    for most in (0, 1, 20, n + 5):
        for overlap in (0.0, 0.5, 1.0):
            for least in (None, 0.3, 2.0):
                limits = [ints(most), np.array([overlap], np.float32)]
                limits += [] if least is None else [np.array([least], np.float32)]
                attributes = {"center_point_box": int(centered)}
                check(ep_session, "NonMaxSuppression", [*given, *limits], attributes, opset=11)


def test_non_max_suppression_without_limits(ep_session: MakeSession) -> None:
    given = [boxes(1, 9, centered=False), sample((1, 2, 9))]
    check(ep_session, "NonMaxSuppression", given, opset=11)
    check(ep_session, "NonMaxSuppression", [*given, ints(4)], opset=11)
    check(ep_session, "NonMaxSuppression", [*given, ints(4)], opset=11, constant=[2])
