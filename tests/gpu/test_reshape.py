"""Reshape, Flatten, Squeeze, Unsqueeze, Identity, Dropout, Shape, Size: values pass unchanged."""

from __future__ import annotations

import numpy as np
import pytest

from tests.gpu.single_op import MOVED, MakeSession, check, ints, sample


@pytest.mark.parametrize("dtype", MOVED)
def test_reshape_types(ep_session: MakeSession, dtype: type) -> None:
    check(ep_session, "Reshape", [sample((2, 3, 4), dtype), ints(0, -1)])


@pytest.mark.parametrize("opset", [7, 13, 14, 19, 21])
def test_reshape_opsets(ep_session: MakeSession, opset: int) -> None:
    check(ep_session, "Reshape", [sample((2, 3, 4)), ints(4, 0, -1)], opset=opset)
    check(ep_session, "Reshape", [sample((2, 3, 4)), ints(24)], opset=opset, constant=[1])


def test_reshape_corners(ep_session: MakeSession) -> None:
    check(ep_session, "Reshape", [sample((0, 3)), ints(3, 0)], {"allowzero": 1})
    check(ep_session, "Reshape", [sample((0, 3)), ints(0, 5, 0)], {"allowzero": 1})
    check(ep_session, "Reshape", [sample((1,)), np.zeros(0, np.int64)])
    check(ep_session, "Reshape", [sample(()), ints(1, 1)])


def test_reshape_error_names_the_node(ep_session: MakeSession) -> None:
    with pytest.raises(Exception, match=r"node.*holds 6 elements"):
        check(ep_session, "Reshape", [sample((2, 3)), ints(7)], expected=[])


@pytest.mark.parametrize("axis", [0, 1, 3, -1])
def test_flatten(ep_session: MakeSession, axis: int) -> None:
    check(ep_session, "Flatten", [sample((2, 3, 4))], {"axis": axis}, opset=11)
    check(ep_session, "Flatten", [sample((2, 3, 4), np.float16)], opset=9)


def test_squeeze_and_unsqueeze_attributes_and_inputs(ep_session: MakeSession) -> None:
    x = sample((1, 3, 1, 2))
    check(ep_session, "Squeeze", [x], {"axes": [0, 2]}, opset=7)
    check(ep_session, "Squeeze", [x], {"axes": [-2]}, opset=11)
    check(ep_session, "Squeeze", [x], opset=11)
    check(ep_session, "Squeeze", [x, ints(0, -2)], opset=13)
    check(ep_session, "Squeeze", [x], opset=13)
    check(ep_session, "Unsqueeze", [x], {"axes": [0, 3]}, opset=7)
    check(ep_session, "Unsqueeze", [x], {"axes": [-1]}, opset=11)
    check(ep_session, "Unsqueeze", [x, ints(-1, 0)], opset=13)
    check(ep_session, "Unsqueeze", [sample(()), ints(0)], opset=13)


@pytest.mark.parametrize("dtype", MOVED)
def test_identity(ep_session: MakeSession, dtype: type) -> None:
    check(ep_session, "Identity", [sample((3, 5), dtype)])
    check(ep_session, "Identity", [sample((0, 5), dtype)])


def test_dropout(ep_session: MakeSession) -> None:
    x = sample((3, 5))
    check(ep_session, "Dropout", [x], {"ratio": 0.4}, opset=7)
    check(ep_session, "Dropout", [x], outputs=("y0", "y1"), opset=10)
    check(ep_session, "Dropout", [x, np.float32(0.3)[None].reshape(())], outputs=("y0", "y1"), opset=13)
    check(ep_session, "Dropout", [x, None, np.zeros((), bool)], opset=13, constant=[2])


@pytest.mark.parametrize("attrs", [{}, {"start": 1}, {"end": -1}, {"start": -9, "end": 9}, {"start": 2, "end": 1}])
def test_shape(ep_session: MakeSession, attrs: dict[str, int]) -> None:
    check(ep_session, "Shape", [sample((2, 0, 4))], attrs, opset=15)
    check(ep_session, "Shape", [sample(())], opset=13)


def test_size(ep_session: MakeSession) -> None:
    check(ep_session, "Size", [sample((2, 3, 4), np.float16)])
    check(ep_session, "Size", [sample((2, 0, 4))])
    check(ep_session, "Size", [sample(())])
