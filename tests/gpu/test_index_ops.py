"""ScatterElements, ScatterND, ArgMax, ArgMin, OneHot, Trilu, CumSum."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.gpu.single_op import MOVED, MakeSession, check, ints, model, quick, sample


@given(st.data())
@quick
def test_scatter_elements(ep_session: MakeSession, data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.sampled_from([1, 2, 3, 8]), min_size=1, max_size=4))
    axis = data.draw(st.integers(0, len(shape) - 1))
    size = [data.draw(st.integers(0, e)) for e in shape]
    # Distinct places along the axis: of several updates to one place, which stays is open.
    order = np.argsort(
        np.random.default_rng(1).random([shape[axis] if i == axis else e for i, e in enumerate(size)]), axis
    )
    index = data.draw(st.sampled_from([np.int32, np.int64]))
    indices = np.take(order, np.arange(size[axis]), axis).astype(index)
    indices = np.where(np.arange(indices.size).reshape(indices.shape) % 2, indices - shape[axis], indices).astype(index)
    dtype = data.draw(st.sampled_from([np.float32, np.float16, np.int64, np.uint8]))
    opset = data.draw(st.sampled_from([11, 13, 16, 18]))
    check(
        ep_session,
        "ScatterElements",
        [sample(shape, dtype), indices, sample(size, dtype, 2)],
        {"axis": axis},
        opset=opset,
    )


def test_scatter_of_opset_9(ep_session: MakeSession) -> None:
    check(ep_session, "Scatter", [sample((3, 3)), np.array([[1, 0, 2]]), sample((1, 3), seed=1)], opset=9)


@pytest.mark.parametrize("dtype", MOVED)
def test_scatter_nd(ep_session: MakeSession, dtype: type) -> None:
    x = sample((4, 5, 6), dtype)
    check(ep_session, "ScatterND", [x, np.array([[1], [-1]]), sample((2, 5, 6), dtype, 1)], opset=13)
    check(ep_session, "ScatterND", [x, np.array([[[0, 1], [3, -2]]]), sample((1, 2, 6), dtype, 1)], opset=16)
    check(ep_session, "ScatterND", [x, np.array([[0, 1, 2]]), sample((1,), dtype, 1)], opset=11)
    check(ep_session, "ScatterND", [x, np.zeros((0, 2), np.int64), sample((0, 6), dtype, 1)], opset=11)


def test_scatter_out_of_range_writes_nothing_and_the_next_run_fails(ep_session: MakeSession) -> None:
    x, bad, u = sample((4,)), np.array([[1], [4]]), sample((2,), seed=1)
    session = ep_session(model("ScatterND", [x, bad, u]))
    (y,) = session.run(None, {"x0": x, "x1": bad, "x2": u})
    np.testing.assert_array_equal(y, [x[0], u[0], x[2], x[3]])
    with pytest.raises(Exception, match="out of range"):
        session.run(None, {"x0": x, "x1": np.array([[1], [2]]), "x2": u})


ARG_TYPES = [np.float32, np.float16, np.float64, np.int32, np.int64, np.int8, np.uint8]


@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("dtype", ARG_TYPES)
@pytest.mark.parametrize("shape", [(5, 7), (3, 2000), (4, 100, 6)])
def test_arg(ep_session: MakeSession, op: str, dtype: type, shape: tuple[int, ...]) -> None:
    x = sample(shape, dtype)
    pick = np.argmax if op == "ArgMax" else np.argmin
    for last in (0, 1):
        found = pick(np.flip(x, 1), 1) if last else pick(x, 1)
        expected = np.expand_dims(shape[1] - 1 - found if last else found, 1)
        attrs = {"axis": 1, "select_last_index": last}
        check(ep_session, op, [x], attrs, opset=13, expected=[expected])
    check(ep_session, op, [x], {"axis": -1, "keepdims": 0}, opset=11, expected=[pick(x, -1)])
    check(ep_session, op, [x], {"axis": 0}, opset=7, expected=[pick(x, 0)[None]])


def test_arg_takes_the_first_nan(ep_session: MakeSession) -> None:
    x = sample((3, 1500))
    x[0, 700] = x[0, 900] = x[1, 0] = x[2, 1499] = np.nan
    for op in ("ArgMax", "ArgMin"):
        check(ep_session, op, [x], {"axis": 1, "keepdims": 0}, opset=13, expected=[np.array([700, 0, 1499])])


@pytest.mark.parametrize("axis", [-1, 0, 1])
@pytest.mark.parametrize("index", [np.int32, np.int64, np.float32])
def test_one_hot(ep_session: MakeSession, axis: int, index: type) -> None:
    indices = np.array([[0, -1, 5], [9, -9, 2]], index)
    for dtype in (np.float32, np.int64):
        check(
            ep_session,
            "OneHot",
            [indices, np.array(6, np.int64), np.array([2, 5], dtype)],
            {"axis": axis},
            opset=11,
            expected=[
                np.where(
                    np.moveaxis((indices % 6 == np.arange(6)[:, None, None]) & (np.abs(indices + 0.5) < 6), 0, axis),
                    5,
                    2,
                ).astype(dtype)
            ],
        )


@pytest.mark.parametrize("dtype", MOVED)
@pytest.mark.parametrize("k", [None, 0, 1, -2, 100, -(2**62)])
def test_trilu(ep_session: MakeSession, dtype: type, k: int | None) -> None:
    for upper in (0, 1):
        for shape in ((2, 5, 7), (4, 3), (3, 0, 2)):
            x = sample(shape, dtype)
            shift = int(np.clip(k or 0, -50, 50))
            expected = np.triu(x, shift) if upper else np.tril(x, shift)
            given_k = None if k is None else np.array(k, np.int64)
            check(ep_session, "Trilu", [x, given_k], {"upper": upper}, opset=14, expected=[expected])


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.int64])
@pytest.mark.parametrize(("shape", "axis"), [((5,), 0), ((3, 700), 1), ((3, 256), -1), ((4, 40, 5), 1), ((2, 0), 1)])
def test_cumsum(ep_session: MakeSession, dtype: type, shape: tuple[int, ...], axis: int) -> None:
    x = sample(shape, dtype)
    for exclusive in (0, 1):
        for reverse in (0, 1):
            # 700 float32 terms of magnitude 1: sums near 30 with an error of a few 1e-5.
            check(
                ep_session,
                "CumSum",
                [x, np.array(axis, np.int64)],
                {"exclusive": exclusive, "reverse": reverse},
                opset=14,
                rtol=1e-5,
                atol=1e-4 if dtype is np.float32 else 1e-12,
            )


def test_cumsum_of_halves(ep_session: MakeSession) -> None:
    x = sample((3, 100), np.float16)
    expected = np.cumsum(x.astype(np.float64), 1).astype(np.float16)
    check(ep_session, "CumSum", [x, ints(1).reshape(())], opset=14, rtol=1e-3, atol=1e-3, expected=[expected])
