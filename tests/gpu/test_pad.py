"""Pad in its four modes and three forms, exact."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.gpu.single_op import MOVED, MakeSession, check, ints, quick, sample


@pytest.mark.parametrize("dtype", [d for d in MOVED if d is not np.int16])
def test_types(ep_session: MakeSession, dtype: type) -> None:
    x, pads = sample((2, 3, 4), dtype), ints(0, 1, 2, 1, 0, 3)
    check(ep_session, "Pad", [x, pads, np.array(1, dtype)], opset=13)
    check(ep_session, "Pad", [x, pads], {"mode": "edge"}, opset=13)


@given(st.data())
@quick
def test_shapes(ep_session: MakeSession, data: st.DataObject) -> None:
    mode = data.draw(st.sampled_from(["constant", "reflect", "edge", "wrap"]))
    shape = data.draw(st.lists(st.sampled_from([2, 3, 4, 8, 16]), min_size=1, max_size=4))
    before, after = ([data.draw(st.sampled_from([0, 0, 1, -1, 2])) for _ in shape] for _ in range(2))
    for i, extent in enumerate(shape):
        kept = extent + min(before[i], 0) + min(after[i], 0)
        if mode != "constant" and max(before[i], after[i]) >= kept:  # beyond what the modes are defined for
            before[i] = after[i] = 0
    x = sample(shape, data.draw(st.sampled_from([np.float32, np.float64, np.int32])))
    key = tuple(slice(max(-b, 0), e - max(-a, 0)) for b, a, e in zip(before, after, shape, strict=True))
    width = [(max(b, 0), max(a, 0)) for b, a in zip(before, after, strict=True)]
    constant = {"constant_values": 7} if mode == "constant" else {}
    expected = np.pad(x[key], width, mode=mode, **constant)
    value = np.array(7, x.dtype) if mode == "constant" else None
    check(ep_session, "Pad", [x, ints(*before, *after), value], {"mode": mode}, opset=19, expected=[expected])


def test_attributes_before_opset_11(ep_session: MakeSession) -> None:
    pads = [0, 1, 0, 0, 2, 0]
    for dtype in (np.float32, np.float64):
        check(ep_session, "Pad", [sample((2, 3, 4), dtype)], {"pads": pads, "value": 1.5}, opset=7)
    check(ep_session, "Pad", [sample((2, 3, 4))], {"pads": pads, "mode": "reflect"}, opset=10)
    x = sample((2, 3, 4), np.float16)
    expected = np.pad(x, [(0, 0), (1, 2), (0, 0)], constant_values=1.5)
    check(ep_session, "Pad", [x], {"pads": pads, "value": 1.5}, opset=7, expected=[expected])


def test_axes(ep_session: MakeSession) -> None:
    check(ep_session, "Pad", [sample((2, 3, 4)), ints(1, 2, 0, 1), None, ints(-1, 0)], opset=18)


def test_empty(ep_session: MakeSession) -> None:
    x, pads = np.zeros((0, 3), np.float32), ints(1, 0, 1, 1)
    check(ep_session, "Pad", [x, pads, np.array(2, np.float32)], opset=13, expected=[np.full((2, 4), 2, np.float32)])
    with pytest.raises(Exception, match="nothing to fill"):
        check(ep_session, "Pad", [x, pads], {"mode": "edge"}, opset=13, expected=[])
