"""TopK: values and indices, exact, equal values in the order of their indices."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.gpu.single_op import MakeSession, check, ints, quick, sample

TYPES = [np.float32, np.float16, np.float64, np.int32, np.int64, np.int16, np.int8, np.uint8]
BOTH = ("y0", "y1")


def expected(x: np.ndarray, k: int, axis: int, largest: int) -> list[np.ndarray]:
    order = x.astype(np.float64)
    indices = np.take(np.argsort(-order if largest else order, axis=axis, kind="stable"), range(k), axis)
    return [np.take_along_axis(x, indices, axis), indices]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize(
    ("shape", "axis", "k"),
    [((3, 7), 1, 7), ((2, 2048), -1, 5), ((2, 5000), 1, 100), ((9000,), 0, 1024), ((2, 300, 3), 1, 4), ((5, 4), 0, 0)],
)
def test_topk(ep_session: MakeSession, dtype: type, largest: int, shape: tuple[int, ...], axis: int, k: int) -> None:
    x = sample(shape, dtype)  # integers repeat: ties are decided by the index
    attrs = {"axis": axis, "largest": largest}
    check(
        ep_session,
        "TopK",
        [x, ints(k)],
        attrs,
        opset=11,
        outputs=BOTH,
        constant=[1],
        expected=expected(x, k, axis, largest),
    )


def test_forms(ep_session: MakeSession) -> None:
    x = sample((3, 50))
    check(ep_session, "TopK", [x], {"k": 3}, opset=7, outputs=BOTH)
    check(ep_session, "TopK", [x, ints(3)], opset=10, outputs=BOTH)  # k not constant: the axis is known to be short
    check(ep_session, "TopK", [x, ints(3)], opset=24, outputs=BOTH, expected=expected(x, 3, 1, 1))


def test_zeros_are_equal_whatever_their_sign(ep_session: MakeSession) -> None:
    x = np.array([-0.0, 0.0, -1.0, 0.0, -0.0], np.float32)
    values, indices = check(ep_session, "TopK", [x, ints(4)], opset=11, outputs=BOTH, expected=expected(x, 4, 0, 1))
    assert indices.tolist() == [0, 1, 3, 4]
    np.testing.assert_array_equal(np.signbit(values), [True, False, False, True])


@given(st.data())
@quick
def test_shapes(ep_session: MakeSession, data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.sampled_from([1, 2, 3, 33, 130]), min_size=1, max_size=3))
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    k, largest = data.draw(st.integers(0, shape[axis])), data.draw(st.integers(0, 1))
    x = sample(shape, data.draw(st.sampled_from([np.float32, np.int32])))
    check(
        ep_session,
        "TopK",
        [x, ints(k)],
        {"axis": axis, "largest": largest},
        opset=11,
        outputs=BOTH,
        expected=expected(x, k, axis, largest),
    )
