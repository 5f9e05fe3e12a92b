"""Gather, GatherElements, GatherND, exact; and what an index out of range does."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.gpu.single_op import MOVED, MakeSession, check, ints, model, quick, sample


@pytest.mark.parametrize("dtype", MOVED)
@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_gather_types(ep_session: MakeSession, dtype: type, index: type) -> None:
    indices = np.array([[0, -1, 3], [2, 2, -5]], index)
    check(ep_session, "Gather", [sample((5, 6), dtype), indices])
    check(ep_session, "Gather", [sample((3, 5), dtype), indices], {"axis": 1})


@given(st.data())
@quick
def test_gather_shapes(ep_session: MakeSession, data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.sampled_from([1, 2, 3, 8, 33]), min_size=1, max_size=4))
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    index_shape = data.draw(st.lists(st.sampled_from([0, 1, 2, 5]), max_size=2))
    indices = np.random.default_rng(1).integers(-shape[axis], shape[axis], index_shape)
    x = sample(shape, data.draw(st.sampled_from([np.float32, np.float16, np.uint8])))
    check(ep_session, "Gather", [x, np.asarray(indices, np.int64)], {"axis": axis})


def test_gather_of_a_scalar_index(ep_session: MakeSession) -> None:
    check(ep_session, "Gather", [sample((4, 3)), np.array(2)])


def test_gather_out_of_range_gives_zero_and_the_next_run_fails(ep_session: MakeSession) -> None:
    x, bad, good = sample((4, 8)), ints(1, 4, -5), ints(1, 2, 3)
    session = ep_session(model("Gather", [x, bad]))
    (y,) = session.run(None, {"x0": x, "x1": bad})
    np.testing.assert_array_equal(y, np.stack([x[1], np.zeros(8, np.float32), np.zeros(8, np.float32)]))
    with pytest.raises(Exception, match="out of range"):
        session.run(None, {"x0": x, "x1": good})
    np.testing.assert_array_equal(session.run(None, {"x0": x, "x1": good})[0], x[1:])


@given(st.data())
@quick
def test_gather_elements(ep_session: MakeSession, data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.sampled_from([1, 2, 3, 8]), min_size=1, max_size=4))
    axis = data.draw(st.integers(0, len(shape) - 1))
    index_shape = [data.draw(st.integers(0, e + 2 if i == axis else e)) for i, e in enumerate(shape)]
    index = data.draw(st.sampled_from([np.int32, np.int64]))
    indices = np.random.default_rng(1).integers(-shape[axis], shape[axis], index_shape).astype(index)
    check(ep_session, "GatherElements", [sample(shape), indices], {"axis": axis})


@given(st.data())
@quick
def test_gather_nd(ep_session: MakeSession, data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.sampled_from([1, 2, 3, 8]), min_size=1, max_size=4))
    batch = data.draw(st.integers(0, len(shape) - 1))
    depth = data.draw(st.integers(1, len(shape) - batch))
    free = data.draw(st.lists(st.sampled_from([0, 1, 3]), max_size=2))
    limits = np.array(shape[batch : batch + depth])
    indices = np.random.default_rng(1).integers(-limits, limits, [*shape[:batch], *free, depth])
    dtype = data.draw(st.sampled_from([np.float32, np.int64, np.float16]))
    check(ep_session, "GatherND", [sample(shape, dtype), indices], {"batch_dims": batch})
