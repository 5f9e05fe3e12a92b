"""Unique against NumPy and ONNX Runtime's CPU provider."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.gpu.single_op import Array, MakeSession, check, quick, sample

OUTPUTS = ("y0", "y1", "y2", "y3")


def expected(x: Array, axis: int | None, ordered: bool) -> list[Array]:
    """By NumPy, whose groups are sorted, renumbered by their first places where they are not wanted so."""
    values, first, inverse, counts = np.unique(x, True, True, True, axis=axis, equal_nan=True)
    inverse = inverse.reshape(-1)
    if not ordered:
        order = np.argsort(first)
        rank = np.argsort(order)
        values = np.take(values, order, 0 if axis is None else axis)
        first, counts, inverse = first[order], counts[order], rank[inverse]
    # NumPy may give another of equal values: 0 and -0. The op gives the first.
    values = np.take(x.reshape(-1) if axis is None else x, first, 0 if axis is None else axis)
    return [values, *(a.astype(np.int64) for a in (first, inverse, counts))]


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64, np.int64, np.int32, np.int8, np.uint8])
@pytest.mark.parametrize("ordered", [0, 1])
def test_types(ep_session: MakeSession, ordered: int, dtype: type) -> None:
    x = sample((7, 30), np.int8).astype(dtype) if np.dtype(dtype).kind != "u" else sample((7, 30), dtype)
    options = {"opset": 11, "outputs": OUTPUTS}
    check(ep_session, "Unique", [x], {"sorted": ordered}, expected=expected(x, None, bool(ordered)), **options)


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
@pytest.mark.parametrize("ordered", [0, 1])
def test_as_onnx_runtime(ep_session: MakeSession, ordered: int, axis: int | None) -> None:
    attrs = {"sorted": ordered} | ({} if axis is None else {"axis": axis})
    for shape in ((3, 4, 5), (1, 1, 1), (9, 2, 1), (0, 2, 3)):
        x = (sample(shape, np.int64, seed=3) % 2).astype(np.float32)
        check(ep_session, "Unique", [x], attrs, opset=11, outputs=OUTPUTS)
        check(ep_session, "Unique", [x], attrs, opset=11)
        check(ep_session, "Unique", [x], attrs, opset=11, outputs=("y0", "", "y2"))


def test_nan_and_zeros(ep_session: MakeSession) -> None:
    x = np.array([2, np.nan, -0.0, np.inf, 0.0, -np.inf, np.nan, -3, 2], np.float32)
    for ordered in (0, 1):
        wanted = expected(x, None, bool(ordered))
        check(ep_session, "Unique", [x], {"sorted": ordered}, expected=wanted, opset=11, outputs=OUTPUTS)


@quick
@given(data=st.data())
def test_any_shape(ep_session: MakeSession, data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=3))
    axis = data.draw(st.none() | st.integers(0, len(shape) - 1))
    ordered = data.draw(st.booleans())
    x = np.random.default_rng(len(shape)).integers(0, data.draw(st.integers(1, 90)), shape) - 3
    x = x.astype(data.draw(st.sampled_from([np.float32, np.int64])))
    attrs = {"sorted": int(ordered)} | ({} if axis is None else {"axis": axis})
    check(ep_session, "Unique", [x], attrs, expected=expected(x, axis, ordered), opset=11, outputs=OUTPUTS)
