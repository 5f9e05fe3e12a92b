"""AffineGrid, DeformConv, Det and the windows of signal processing against ONNX Runtime's CPU provider."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.gpu.single_op import Array, MakeSession, check, ints, quick, sample


@pytest.mark.parametrize("op", ["HannWindow", "HammingWindow", "BlackmanWindow"])
@pytest.mark.parametrize("periodic", [0, 1])
def test_windows(ep_session: MakeSession, periodic: int, op: str) -> None:
    attrs = {"periodic": periodic}
    for size in (0, 1, 2, 10, 400):
        # ONNX Runtime rounds the angle to float32, below 4 pi here: some 1e-6.
        check(ep_session, op, [np.array(size, np.int32)], attrs, atol=2e-6)
    check(ep_session, op, [np.array(9, np.int64)], attrs, atol=2e-6, constant=(0,))
    for kind, atol in ((10, 1e-3), (11, 2e-6)):  # float16, float64
        check(ep_session, op, [np.array(33, np.int64)], {"output_datatype": kind, "periodic": periodic}, atol=atol)


@pytest.mark.parametrize("align", [0, 1])
def test_affine_grid(ep_session: MakeSession, align: int) -> None:
    for dtype in (np.float32, np.float64):
        options: dict[str, Any] = {"opset": 20, "rtol": 1e-5, "atol": 1e-5}
        for size in ((2, 3, 5, 7), (1, 1, 1, 4), (1, 2, 70, 33)):
            check(
                ep_session,
                "AffineGrid",
                [sample((size[0], 2, 3), dtype), ints(*size)],
                {"align_corners": align},
                **options,
            )
        for size3 in ((2, 3, 5, 7, 4), (1, 1, 1, 1, 4)):
            theta = sample((size3[0], 3, 4), dtype)
            check(ep_session, "AffineGrid", [theta, ints(*size3)], {"align_corners": align}, **options)


def test_determinant(ep_session: MakeSession) -> None:
    for shape in ((3, 3), (2, 5, 1, 1), (4, 0, 0), (0, 2, 2), (3, 40, 40), (2, 2)):
        x = sample(shape)
        exact = np.linalg.det(x.astype(np.float64)).astype(np.float32)
        # Elimination in float32 of up to 40 rows: the errors grow with the condition number, below 1e3 here.
        check(ep_session, "Det", [x], expected=[np.asarray(exact)], rtol=2e-4, atol=1e-6)
    x = np.array([[[0, 1], [1, 0]], [[2, 4], [1, 2]], [[0, 0], [0, 0]], [[np.nan, 1], [2, 3]]], np.float32)
    check(ep_session, "Det", [x], expected=[np.array([-1, 0, 0, np.nan], np.float32)])
    x64 = sample((7, 6, 6), np.float64)
    check(ep_session, "Det", [x64], expected=[np.linalg.det(x64)], rtol=1e-10)


@quick
@given(data=st.data())
def test_deform_conv(ep_session: MakeSession, data: st.DataObject) -> None:
    draw = data.draw
    group, offset_group = draw(st.integers(1, 3)), draw(st.sampled_from([1, 2]))
    channels = group * offset_group * draw(st.integers(1, 2))
    kernel = [draw(st.integers(1, 3)) for _ in range(2)]
    strides, dilations = ([draw(st.integers(1, 2)) for _ in range(2)] for _ in range(2))
    pads = [draw(st.integers(0, 2)) for _ in range(4)]
    size = [draw(st.integers((k - 1) * d + 1, 9)) for k, d in zip(kernel, dilations, strict=True)]
    out = [(size[i] + pads[i] + pads[i + 2] - (kernel[i] - 1) * dilations[i] - 1) // strides[i] + 1 for i in range(2)]
    n, taps = draw(st.integers(1, 2)), kernel[0] * kernel[1] * offset_group
    inputs: list[Array | None] = [
        sample((n, channels, *size)),
        sample((2 * group, channels // group, *kernel), seed=1),
        2 * sample((n, 2 * taps, *out), seed=2),
        sample((2 * group,), seed=3) if draw(st.booleans()) else None,
        sample((n, taps, *out), seed=4) if draw(st.booleans()) else None,
    ]
    while inputs[-1] is None:
        inputs.pop()
    attrs = {"group": group, "offset_group": offset_group, "pads": pads, "strides": strides, "dilations": dilations}
    attrs["kernel_shape"] = kernel
    # Sums of at most 6 * 9 products.
    check(ep_session, "DeformConv", inputs, attrs, opset=19, rtol=1e-4, atol=1e-4)
