"""GridSample and RoiAlign against ONNX Runtime's CPU provider on the same values in float32 or float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.gpu.bounds import ROUNDING, in_bfloat16
from tests.gpu.single_op import MakeSession, check, model, quick, reference, sample

Array = np.ndarray
FLOATS = [np.float32, np.float16, np.float64]
PADDINGS = ["zeros", "border", "reflection"]
OLD = {"nearest": "nearest", "linear": "bilinear", "cubic": "bicubic"}


def coordinates(shape: tuple[int, ...], seed: int = 3) -> Array:
    """Mostly inside [-1, 1], some outside, at multiples of 1/64, which every type holds and no sum rounds."""
    rng = np.random.default_rng(seed)
    grid: Array = (rng.integers(-90, 91, shape) / 64).astype(np.float32)
    grid.reshape(-1)[:: max(grid.size // 5, 1)] = 2.5
    return grid


def grid_sample(
    make: MakeSession, x: Array, grid: Array, attrs: dict[str, Any], opset: int = 20, bfloat16: bool = False
) -> None:
    wide = np.float64 if x.dtype == np.float64 else np.float32
    given_attrs = {**attrs, "mode": OLD[attrs["mode"]]} if opset < 20 else attrs
    # The reference is always asked in opset 20: the same operator.
    feeds = {"x0": x.astype(wide), "x1": grid.astype(wide)}
    (y,) = reference(model("GridSample", list(feeds.values()), attrs, opset=20), feeds)
    kind = "bfloat16" if bfloat16 else x.dtype.name
    # Coordinates are exact but for a division by a size (error below 2**-21 pixels of up to 16), then up to 16 products
    # of weights below 1.2 and values below 5; the result is rounded once.
    unit = ROUNDING["float64" if kind == "float64" else "float32"]
    tolerance = {"rtol": 2 * ROUNDING[kind], "atol": 16 * 5 * 16 * unit}
    check(
        make,
        "GridSample",
        [x, grid],
        given_attrs,
        opset=opset,
        expected=[y.astype(x.dtype)],
        bfloat16=bfloat16,
        **tolerance,
    )


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("align", [0, 1])
@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_grid_sample(ep_session: MakeSession, mode: str, padding: str, align: int, dtype: type) -> None:
    attrs = {"mode": mode, "padding_mode": padding, "align_corners": align}
    # Sizes of 8 and 4, where pixels lie at multiples of 1/2 of a power of two: ties of nearest are exact.
    x, grid = sample((2, 3, 8, 4), dtype), coordinates((2, 5, 7, 2)).astype(dtype)
    for opset in (16, 20, 22):
        grid_sample(ep_session, x, grid, attrs, opset)
    grid_sample(ep_session, sample((1, 2, 7, 9), dtype), coordinates((1, 6, 3, 2)).astype(dtype), attrs)
    if mode != "cubic":
        grid_sample(ep_session, sample((2, 2, 4, 3, 8), dtype), coordinates((2, 3, 2, 4, 3)).astype(dtype), attrs)


def test_grid_sample_of_single_pixels(ep_session: MakeSession) -> None:
    # Reflection at the centres of one pixel is undefined in ONNX Runtime: here it is that pixel.
    for mode in ("nearest", "linear", "cubic"):
        for padding in PADDINGS:
            attrs = {"mode": mode, "padding_mode": padding, "align_corners": 0}
            grid_sample(ep_session, sample((1, 2, 1, 1)), coordinates((1, 3, 3, 2)), attrs)


def test_grid_sample_types(ep_session: MakeSession) -> None:
    attrs = {"mode": "linear", "padding_mode": "border", "align_corners": 1}
    x, grid = sample((1, 3, 5, 6), np.float16), coordinates((1, 4, 4, 2))
    grid_sample(ep_session, x, grid, attrs)  # a float32 grid for float16 values
    grid_sample(ep_session, in_bfloat16(x), grid, attrs, opset=22, bfloat16=True)


def test_grid_sample_of_many_channels(ep_session: MakeSession) -> None:
    attrs = {"mode": "linear", "padding_mode": "zeros", "align_corners": 0}
    grid_sample(ep_session, sample((1, 67, 16, 16)), coordinates((1, 64, 64, 2)), attrs)


def test_grid_sample_far_away_and_empty(ep_session: MakeSession) -> None:
    """Positions far outside, infinite or no numbers read nothing outside the image."""
    x = sample((1, 2, 4, 4))
    grid = np.array([1e30, -1e30, np.inf, -np.inf, np.nan, 1e9, -3e8, 2.0**31], np.float32).reshape(1, 2, 2, 2)
    for mode in ("nearest", "linear", "cubic"):
        for padding in PADDINGS:
            attrs = {"mode": mode, "padding_mode": padding}
            (y,) = ep_session(model("GridSample", [x, grid], attrs, opset=20)).run(None, {"x0": x, "x1": grid})
            assert np.isfinite(y).all() and (padding != "zeros" or not y.any())
    none = np.zeros((1, 0, 2, 2), np.float32)
    check(ep_session, "GridSample", [x, none], opset=20, expected=[np.zeros((1, 2, 0, 2), np.float32)])


@quick
@given(data=st.data())
def test_grid_sample_of_any_shape(ep_session: MakeSession, data: st.DataObject) -> None:
    spatial = data.draw(st.integers(2, 3))
    sizes = [data.draw(st.sampled_from([2, 4, 8, 16])) for _ in range(spatial)]
    out = [data.draw(st.integers(1, 6)) for _ in range(spatial)]
    n, c = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 5))
    attrs = {
        "mode": data.draw(st.sampled_from(["nearest", "linear", "cubic"] if spatial == 2 else ["nearest", "linear"])),
        "padding_mode": data.draw(st.sampled_from(PADDINGS)),
        "align_corners": data.draw(st.integers(0, 1)),
    }
    grid_sample(ep_session, sample((n, c, *sizes)), coordinates((n, *out, spatial)), attrs)


def regions(count: int, images: int, seed: int = 5) -> tuple[Array, Array]:
    """Boxes of every kind: large, thinner than a pixel, reaching outside, far outside, turned inside out."""
    rng = np.random.default_rng(seed)
    corner, size = rng.uniform(-3, 10, (count, 2)), rng.uniform(0, 12, (count, 2))
    boxes = np.concatenate([corner, corner + size], 1).astype(np.float32)
    boxes[::4, 2] = boxes[::4, 0] + np.float32(0.25)
    boxes[1::7] += 100
    boxes[2::7, 2:] = boxes[2::7, :2] - 1
    # Multiples of 1/8: every type holds them, and half a pixel more too.
    return np.round(boxes * 8) / np.float32(8), rng.integers(0, images, count)


def roi_align(
    make: MakeSession, x: Array, boxes: Array, batch: Array, attrs: dict[str, Any], opset: int, bfloat16: bool = False
) -> None:
    wide = np.float64 if x.dtype == np.float64 else np.float32
    inputs = [x.astype(wide), boxes.astype(wide), batch]
    (y,) = reference(model("RoiAlign", inputs, attrs, opset=opset), {f"x{i}": v for i, v in enumerate(inputs)})
    kind = "bfloat16" if bfloat16 else x.dtype.name
    # Positions of up to 110 with a few roundings, differences of neighbouring values of up to 8, averages.
    unit = ROUNDING["float64" if kind == "float64" else "float32"]
    tolerance = {"rtol": 2 * ROUNDING[kind], "atol": 4 * 110 * 8 * unit}
    found = [x, boxes.astype(x.dtype), batch]
    check(make, "RoiAlign", found, attrs, opset=opset, expected=[y.astype(x.dtype)], bfloat16=bfloat16, **tolerance)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("ratio", [0, 2])
@pytest.mark.parametrize("how", [None, "half_pixel", "output_half_pixel"])
def test_roi_align(ep_session: MakeSession, how: str | None, ratio: int, mode: str, dtype: type) -> None:
    x = sample((2, 3, 9, 12), dtype)
    boxes, batch = regions(15, 2)
    attrs: dict[str, Any] = {"mode": mode, "sampling_ratio": ratio, "output_height": 3, "output_width": 2}
    attrs["spatial_scale"] = 0.5 if ratio else 1.0
    if how is not None:
        attrs["coordinate_transformation_mode"] = how
    for opset in (10, 16, 22) if how is None else (16, 22):
        roi_align(ep_session, x, boxes, batch, attrs, opset)


def test_roi_align_bfloat16_and_no_region(ep_session: MakeSession) -> None:
    x, (boxes, batch) = in_bfloat16(sample((1, 2, 8, 8))), regions(6, 1)
    attrs = {"output_height": 2, "output_width": 2, "sampling_ratio": 2}
    roi_align(ep_session, x, np.clip(np.round(boxes), -4, 16), batch, attrs, 22, bfloat16=True)
    none = [x, boxes[:0], batch[:0]]
    check(ep_session, "RoiAlign", none, attrs, opset=16, expected=[np.zeros((0, 2, 2, 2), np.float32)])


def test_roi_align_of_an_image_that_does_not_exist(ep_session: MakeSession) -> None:
    x, boxes = sample((2, 2, 8, 8)), np.array([[0, 0, 4, 4], [0, 0, 4, 4]], np.float32)
    session = ep_session(model("RoiAlign", [x, boxes, np.array([0, 2])], {"output_height": 2}, opset=16))
    (y,) = session.run(None, {"x0": x, "x1": boxes, "x2": np.array([0, 2])})
    assert y[0].any() and not y[1].any()
    with pytest.raises(Exception, match="out of range"):
        session.run(None, {"x0": x, "x1": boxes, "x2": np.array([0, 1])})
