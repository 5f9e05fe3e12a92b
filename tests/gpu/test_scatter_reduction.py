"""ScatterElements and ScatterND that add, multiply, or keep the larger or smaller value."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.gpu.single_op import MakeSession, check, model, quick, sample

NUMBERS = [np.float32, np.float64, np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64]
REDUCTIONS = ["add", "mul", "max", "min"]
COMBINE = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def expected_nd(x: np.ndarray, indices: np.ndarray, updates: np.ndarray, reduction: str) -> np.ndarray:
    """One update after the other, rounded to the element type each time."""
    y = x.copy()
    for at in np.ndindex(indices.shape[:-1]):
        place = tuple(indices[at])
        y[place] = COMBINE[reduction](y[place], updates[at])
    return y


def expected_elements(x: np.ndarray, indices: np.ndarray, updates: np.ndarray, reduction: str, axis: int) -> np.ndarray:
    places = np.stack(np.indices(indices.shape), -1)
    places[..., axis] = indices
    return expected_nd(x, places, updates, reduction)


@given(st.data())
@quick
def test_elements(ep_session: MakeSession, data: st.DataObject) -> None:
    # Indices repeat, so most places are updated several times; the order of float updates is kept: exact.
    shape = data.draw(st.lists(st.sampled_from([1, 2, 3, 8]), min_size=1, max_size=4))
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    at = axis % len(shape)
    size = [data.draw(st.integers(0, 2 * e if i == at else e)) for i, e in enumerate(shape)]
    index = data.draw(st.sampled_from([np.int32, np.int64]))
    indices = np.random.default_rng(1).integers(-shape[at], shape[at], size).astype(index)
    dtype = data.draw(st.sampled_from([*NUMBERS, np.float16]))
    reduction = data.draw(st.sampled_from(REDUCTIONS))
    x, updates = sample(shape, dtype), sample(size, dtype, 2)
    check(
        ep_session,
        "ScatterElements",
        [x, indices, updates],
        {"axis": axis, "reduction": reduction},
        opset=18 if reduction in ("max", "min") else data.draw(st.sampled_from([16, 18])),
        expected=[expected_elements(x, indices, updates, reduction, at)],
    )


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("dtype", [*NUMBERS, np.float16])
def test_nd(ep_session: MakeSession, reduction: str, dtype: type) -> None:
    opset = 18 if reduction in ("max", "min") else 16
    x = sample((4, 5, 6), dtype)
    for indices, size in (
        (np.array([[1], [-1], [1], [3]]), (4, 5, 6)),
        (np.array([[[0, 1], [3, -2]], [[0, 1], [0, 1]]]), (2, 2, 6)),
        (np.array([[0, 1, 2], [0, 1, 2], [-4, 1, 2], [3, 3, 3]]), (4,)),
        (np.zeros((0, 2), np.int64), (0, 6)),
    ):
        updates = sample(size, dtype, 1)
        found = expected_nd(x, indices, updates, reduction)
        check(ep_session, "ScatterND", [x, indices, updates], {"reduction": reduction}, opset=opset, expected=[found])


@pytest.mark.parametrize("reduction", ["add", "max"])
def test_the_same_as_onnx_runtime(ep_session: MakeSession, reduction: str) -> None:
    attrs = {"reduction": reduction}
    indices = np.array([[0, 2, 2, 1, 0], [1, 1, 1, 1, 1]])
    check(
        ep_session, "ScatterElements", [sample((2, 3)), indices, sample((2, 5), seed=1)], {"axis": 1, **attrs}, opset=18
    )
    check(ep_session, "ScatterND", [sample((4, 2)), np.array([[1], [1], [3]]), sample((3, 2), seed=1)], attrs, opset=18)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64, np.int8, np.int16, np.int32, np.uint64])
def test_many_updates_of_few_places(ep_session: MakeSession, dtype: type) -> None:
    # 3000 updates of 7 places, beyond what is added in order: small integers, so that every order gives the same sum
    # (at most 430 * 9 in magnitude for a place; integers of 8 bits wrap round, and float16 holds them up to 2048).
    indices = np.arange(3000) % 7
    updates = (sample((3000,), np.int32, 3) % (3 if dtype is np.float16 else 10)).astype(dtype)
    x = sample((7,), np.int32).astype(dtype)
    for reduction in ("add", "max", "min"):
        y = x.copy()
        with np.errstate(over="ignore"):
            COMBINE[reduction].at(y, indices, updates)
        attrs = {"reduction": reduction}
        check(ep_session, "ScatterND", [x, indices[:, None], updates], attrs, opset=18, expected=[y])
        check(ep_session, "ScatterElements", [x, indices, updates], attrs, opset=18, expected=[y])


def test_bfloat16(ep_session: MakeSession) -> None:
    x, indices = np.array([1, 2, 3, 4], np.float32), np.array([0, 0, 3])
    updates = np.array([0.5, 256, -1], np.float32)
    attrs = {"reduction": "add"}
    # 1.5 + 256 is 257.5, which bfloat16 (8 bits) rounds to 258.
    expected = [np.array([258, 2, 3, 3], np.float32)]
    check(ep_session, "ScatterElements", [x, indices, updates], attrs, opset=18, bfloat16=True, expected=expected)


def test_max_keeps_a_nan(ep_session: MakeSession) -> None:
    x, indices = np.array([1, np.nan, 3], np.float32), np.array([0, 1, 2])
    updates = np.array([np.nan, 1, 5], np.float32)
    expected = [np.array([np.nan, np.nan, 5], np.float32)]
    check(ep_session, "ScatterElements", [x, indices, updates], {"reduction": "max"}, opset=18, expected=expected)


def test_out_of_range_changes_nothing_and_the_next_run_fails(ep_session: MakeSession) -> None:
    x, bad, u = sample((4,)), np.array([[1], [4]]), sample((2,), seed=1)
    session = ep_session(model("ScatterND", [x, bad, u], {"reduction": "add"}, opset=18))
    (y,) = session.run(None, {"x0": x, "x1": bad, "x2": u})
    np.testing.assert_array_equal(y, [x[0], x[1] + u[0], x[2], x[3]])
    with pytest.raises(Exception, match="out of range"):
        session.run(None, {"x0": x, "x1": np.array([[1], [2]]), "x2": u})


def test_booleans_are_refused(ep_session: MakeSession) -> None:
    x = np.zeros(3, np.bool_)
    with pytest.raises(Exception, match=r"(?i)fallback|not.*assigned|explicitly"):
        ep_session(model("ScatterElements", [x, np.array([0]), x[:1]], {"reduction": "max"}, opset=18))
