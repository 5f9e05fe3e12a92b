"""Resize and Upsample in every mode against ONNX Runtime's CPU provider."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.gpu.single_op import MakeSession, check, ints, quick, sample

COORDINATES = ["half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric"]
ROUNDING = ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]
NO_FLOATS = np.zeros(0, np.float32)


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.parametrize("rounding", ROUNDING)
@pytest.mark.parametrize("scales", [(1, 1, 2, 2), (1, 1, 0.5, 0.65), (1, 1, 1.7, 0.3), (1, 2, 1, 3)])
def test_nearest(ep_session: MakeSession, coordinates: str, rounding: str, scales: tuple[float, ...]) -> None:
    attrs = {"mode": "nearest", "coordinate_transformation_mode": coordinates, "nearest_mode": rounding}
    opset = 19 if coordinates == "half_pixel_symmetric" else 13
    check(ep_session, "Resize", [sample((2, 4, 5, 7)), NO_FLOATS, floats(*scales)], attrs, opset=opset)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.uint8, np.int8, np.int32, np.int64, np.bool_])
def test_nearest_types(ep_session: MakeSession, dtype: type) -> None:
    x = sample((1, 2, 3, 8), dtype)
    # Twice as large with these modes is each element twice, along either axis.
    expected = x.repeat(2, 1).repeat(2, 2)
    attrs = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    check(ep_session, "Resize", [x, NO_FLOATS, floats(1, 2, 2, 1)], attrs, opset=13, expected=[expected])


@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("sizes", [(2, 3, 10, 14), (2, 3, 3, 4), (2, 3, 1, 9), (2, 3, 5, 20)])
def test_interpolation(ep_session: MakeSession, coordinates: str, mode: str, sizes: tuple[int, ...]) -> None:
    attrs = {"mode": mode, "coordinate_transformation_mode": coordinates}
    opset = 19 if coordinates == "half_pixel_symmetric" else 13
    inputs = [sample((2, 3, 5, 7)), NO_FLOATS, None, ints(*sizes)]
    # Weighted sums of at most 16 values of magnitude 1 with weights of magnitude 1, in another order.
    check(ep_session, "Resize", inputs, attrs, opset=opset, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_crop_and_resize(ep_session: MakeSession, mode: str) -> None:
    attrs = {"mode": mode, "coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 9.0}
    x, roi = sample((1, 1, 6, 8)), floats(0, 0, 0.2, -0.3, 1, 1, 0.8, 1.2)
    inputs = [x, roi, None, ints(1, 1, 5, 9)]
    check(ep_session, "Resize", inputs, attrs, opset=13, rtol=1e-5, atol=1e-5)


def test_cubic_attributes(ep_session: MakeSession) -> None:
    attrs = {"mode": "cubic", "exclude_outside": 1, "cubic_coeff_a": -0.5}
    inputs = [sample((1, 2, 5, 6)), NO_FLOATS, floats(1, 1, 1.5, 2.5)]
    check(ep_session, "Resize", inputs, attrs, opset=11, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.uint8, np.int8, np.int32])
def test_linear_types(ep_session: MakeSession, dtype: type) -> None:
    x = sample((1, 2, 5, 6), dtype)
    attrs = {"mode": "linear", "coordinate_transformation_mode": "asymmetric"}
    if np.dtype(dtype).kind == "f":
        exact = check(
            ep_session,
            "Resize",
            [x.astype(np.float32), NO_FLOATS, floats(1, 1, 2, 2)],
            attrs,
            opset=13,
            rtol=1e-5,
            atol=1e-6,
        )
        rtol, atol = (1e-3, 1e-3) if dtype is np.float16 else (1e-6, 1e-6)
        expected = [exact[0].astype(dtype)]
        check(
            ep_session,
            "Resize",
            [x, NO_FLOATS, floats(1, 1, 2, 2)],
            attrs,
            opset=13,
            rtol=rtol,
            atol=atol,
            expected=expected,
        )
    else:
        check(
            ep_session,
            "Resize",
            [x, NO_FLOATS, floats(1, 1, 2, 2)],
            attrs,
            opset=13,
            atol=1 if dtype is not np.int32 else 0,
        )


def test_three_dimensions(ep_session: MakeSession) -> None:
    inputs = [sample((1, 2, 3, 4, 5)), NO_FLOATS, floats(1, 1, 2, 1.5, 0.7)]
    check(ep_session, "Resize", inputs, {"mode": "linear"}, opset=13, rtol=1e-5, atol=1e-5)
    check(ep_session, "Resize", inputs, {"mode": "nearest"}, opset=13)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("scales", [(1, 1, 2, 3), (1, 1, 0.5, 0.4), (1, 1, 1, 1)])
def test_older_forms(ep_session: MakeSession, mode: str, scales: tuple[float, ...]) -> None:
    x = sample((2, 3, 5, 7))
    tolerance = {"rtol": 1e-5, "atol": 1e-5} if mode == "linear" else {}
    check(ep_session, "Resize", [x, floats(*scales)], {"mode": mode}, opset=10, **tolerance)
    if min(scales) >= 1:
        check(ep_session, "Upsample", [x, floats(*scales)], {"mode": mode}, opset=9, constant=[1], **tolerance)
        check(ep_session, "Upsample", [x], {"mode": mode, "scales": [float(s) for s in scales]}, opset=7, **tolerance)


@pytest.mark.parametrize("policy", ["stretch", "not_larger", "not_smaller"])
def test_axes_and_aspect(ep_session: MakeSession, policy: str) -> None:
    attrs = {"mode": "nearest", "axes": [3, 2], "keep_aspect_ratio_policy": policy}
    check(ep_session, "Resize", [sample((1, 2, 6, 9)), None, None, ints(5, 8)], attrs, opset=18)
    check(ep_session, "Resize", [sample((1, 2, 6, 9)), None, floats(0.5, 2)], {"axes": [-1, 2]}, opset=19)


@given(st.data())
@quick
def test_shapes(ep_session: MakeSession, data: st.DataObject) -> None:
    extents = [data.draw(st.integers(1, 9)) for _ in range(2)]
    sizes = [data.draw(st.integers(1, 20)) for _ in range(2)]
    attrs = {
        "mode": data.draw(st.sampled_from(["nearest", "linear"])),
        "coordinate_transformation_mode": data.draw(st.sampled_from(COORDINATES)),
        "nearest_mode": data.draw(st.sampled_from(ROUNDING)),
    }
    inputs = [sample((2, 3, *extents)), NO_FLOATS, None, ints(2, 3, *sizes)]
    check(ep_session, "Resize", inputs, attrs, opset=19, rtol=1e-5, atol=1e-5)


def test_empty(ep_session: MakeSession) -> None:
    x = np.zeros((1, 2, 0, 3), np.float32)
    check(
        ep_session,
        "Resize",
        [x, NO_FLOATS, floats(1, 1, 2, 2)],
        opset=13,
        expected=[np.zeros((1, 4, 0, 6), np.float32)[:, :2]],
    )
