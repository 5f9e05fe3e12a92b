"""Transpose, DepthToSpace, SpaceToDepth, exact."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuvil_onnx.passes.limits import newest_opset_and_ir
from tests.gpu.single_op import MOVED, MakeSession, check, quick, sample


@pytest.mark.parametrize("dtype", MOVED)
@pytest.mark.parametrize(
    ("shape", "perm"),
    [
        ((64, 128), (1, 0)),  # whole tiles
        ((65, 127), (1, 0)),  # nothing aligned
        ((72, 200), (1, 0)),  # vectors, but no whole tiles
        ((200, 9), (1, 0)),
        ((16, 1040), (1, 0)),  # few rows, few columns: flat and tall tiles, with and without vectors
        ((1040, 16), (1, 0)),
        ((3, 24, 1001), (0, 2, 1)),
        ((2, 1001, 9), (0, 2, 1)),
        ((2, 64, 14, 14), (0, 2, 3, 1)),
        ((2, 14, 14, 64), (0, 3, 1, 2)),
        ((2, 3, 15, 17), (0, 2, 3, 1)),
        ((1, 257, 7, 7), (0, 2, 3, 1)),
        ((2, 12, 33, 16), (0, 2, 1, 3)),
        ((2, 12, 33, 64), (0, 2, 3, 1)),
        ((3, 20, 5, 24), (3, 1, 2, 0)),
        ((2, 3, 4, 5, 6, 2), (5, 0, 4, 1, 3, 2)),
        ((2, 1, 3, 1, 2, 2, 2, 3), (7, 1, 5, 3, 0, 6, 2, 4)),
        ((4, 0, 3), (2, 1, 0)),
        ((1, 7, 1), (2, 0, 1)),
    ],
)
def test_transpose(ep_session: MakeSession, dtype: type, shape: tuple[int, ...], perm: tuple[int, ...]) -> None:
    check(ep_session, "Transpose", [sample(shape, dtype)], {"perm": perm})


@given(st.data())
@quick
def test_transpose_shapes(ep_session: MakeSession, data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.sampled_from([1, 2, 3, 8, 16, 31, 40, 64]), min_size=1, max_size=4))
    dtype = data.draw(st.sampled_from([np.float32, np.float16, np.uint8, np.int64]))
    check(ep_session, "Transpose", [sample(shape, dtype)], {"perm": data.draw(st.permutations(range(len(shape))))})


def test_transpose_default_reverses(ep_session: MakeSession) -> None:
    check(ep_session, "Transpose", [sample((2, 3, 4))])
    check(ep_session, "Transpose", [sample(())])


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_depth_to_space(ep_session: MakeSession, mode: str, dtype: type) -> None:
    x = sample((2, 12, 5, 7), dtype)
    b = 2
    parts = x.reshape((2, b, b, 3, 5, 7) if mode == "DCR" else (2, 3, b, b, 5, 7))
    y = parts.transpose((0, 3, 4, 1, 5, 2) if mode == "DCR" else (0, 1, 4, 2, 5, 3)).reshape(2, 3, 10, 14)
    check(ep_session, "DepthToSpace", [x], {"blocksize": b, "mode": mode}, opset=13, expected=[y])


def test_space_to_depth(ep_session: MakeSession) -> None:
    check(ep_session, "SpaceToDepth", [sample((2, 3, 6, 8))], {"blocksize": 2}, opset=13)
    check(ep_session, "DepthToSpace", [sample((1, 8, 3, 3))], {"blocksize": 2}, opset=7)


@pytest.mark.skipif(newest_opset_and_ir()[0] < 28, reason="this ONNX Runtime knows no opset 28")
@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_space_to_depth_mode(ep_session: MakeSession, mode: str) -> None:
    x = sample((2, 3, 6, 8))
    y = x.reshape(2, 3, 3, 2, 4, 2).transpose((0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4))
    attrs = {"blocksize": 2, "mode": mode}
    check(ep_session, "SpaceToDepth", [x], attrs, opset=28, expected=[y.reshape(2, 12, 3, 4)])
