"""MaxUnpool, ReverseSequence, EyeLike, Col2Im, CenterCropPad and CumProd."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto

from tests.gpu.bounds import ROUNDING, in_bfloat16
from tests.gpu.single_op import MOVED, MakeSession, check, ints, model, quick, reference, sample

Array = np.ndarray
FLOATS = [np.float32, np.float16, np.float64]

UNPOOLS: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((1, 1, 4, 4), {"kernel_shape": [2, 2], "strides": [2, 2]}),
    ((2, 3, 7, 9), {"kernel_shape": [3, 2], "strides": [2, 3]}),
    ((2, 3, 8, 8), {"kernel_shape": [2, 2], "strides": [2, 2], "pads": [1, 0, 1, 0]}),
    ((1, 2, 13), {"kernel_shape": [4]}),
    ((1, 2, 4, 6, 4), {"kernel_shape": [2, 3, 2], "strides": [2, 3, 2]}),
]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("shape", "attrs"), UNPOOLS, ids=str)
def test_max_unpool(ep_session: MakeSession, shape: tuple[int, ...], attrs: dict[str, Any], dtype: type) -> None:
    x = sample(shape)
    pooled, indices = reference(model("MaxPool", [x], attrs, outputs=("y0", "y1"), opset=12), {"x0": x})
    # The pool's own maxima at their places, everything else zero.
    expected = np.zeros(x.size, np.float32)
    expected[indices.reshape(-1)] = pooled.reshape(-1)
    expected = expected.reshape(shape).astype(dtype)
    inputs: list[Array | None] = [pooled.astype(dtype), indices, ints(*shape)]
    for opset in (9, 11, 22):
        check(ep_session, "MaxUnpool", inputs, attrs, opset=opset, expected=[expected], constant=(2,))
    inferred = [
        (n - 1) * s + k - p
        for n, s, k, p in zip(
            pooled.shape[2:],
            attrs.get("strides", [1] * 3),
            attrs["kernel_shape"],
            np.reshape(attrs.get("pads", [0] * 2 * len(attrs["kernel_shape"])), (2, -1)).sum(0),
            strict=False,
        )
    ]
    if [*shape[2:]] == inferred:  # else the indices are those of another shape
        check(ep_session, "MaxUnpool", inputs[:2], attrs, opset=11, expected=[expected])


def test_max_unpool_as_onnx_runtime_bfloat16_and_empty(ep_session: MakeSession) -> None:
    x, indices = sample((1, 1, 2, 2)), np.array([5, 7, 13, 15], np.int64).reshape(1, 1, 2, 2)
    attrs = {"kernel_shape": [2, 2], "strides": [2, 2]}
    check(ep_session, "MaxUnpool", [x, indices], attrs, opset=11)
    check(ep_session, "MaxUnpool", [x, indices, ints(1, 1, 5, 5)], attrs, opset=11)
    rounded = in_bfloat16(x)
    expected = np.zeros((1, 1, 4, 4), np.float32)
    expected.reshape(-1)[indices.reshape(-1)] = rounded.reshape(-1)
    check(ep_session, "MaxUnpool", [rounded, indices], attrs, opset=22, expected=[expected], bfloat16=True)
    none = [sample((0, 2, 2, 2)), np.zeros((0, 2, 2, 2), np.int64)]
    check(ep_session, "MaxUnpool", none, attrs, opset=11, expected=[sample((0, 2, 4, 4))])


def test_max_unpool_out_of_range_writes_nothing_and_the_next_run_fails(ep_session: MakeSession) -> None:
    x, bad = sample((1, 1, 1, 2)), np.array([3, 8], np.int64).reshape(1, 1, 1, 2)
    session = ep_session(model("MaxUnpool", [x, bad], {"kernel_shape": [2, 2], "strides": [2, 2]}, opset=11))
    (y,) = session.run(None, {"x0": x, "x1": bad})
    np.testing.assert_array_equal(y.reshape(-1), [0, 0, 0, x[0, 0, 0, 0], 0, 0, 0, 0])
    with pytest.raises(Exception, match="out of range"):
        session.run(None, {"x0": x, "x1": bad})


@pytest.mark.parametrize("dtype", MOVED)
@pytest.mark.parametrize("time", [0, 1])
@pytest.mark.parametrize("shape", [(5, 4), (5, 4, 3), (4, 5, 16), (1, 1, 7), (3, 2, 2, 2)], ids=str)
def test_reverse_sequence(ep_session: MakeSession, shape: tuple[int, ...], time: int, dtype: type) -> None:
    x = sample(shape, dtype)
    steps, batch = shape[time], shape[1 - time]
    lengths = np.arange(batch, dtype=np.int64) % (steps + 1)
    lengths[-1] = steps
    expected = x.copy()
    for b, n in enumerate(lengths):
        where = (slice(0, n), b) if time == 0 else (b, slice(0, n))
        expected[where] = x[where][::-1]
    attrs = {"time_axis": time, "batch_axis": 1 - time}
    check(ep_session, "ReverseSequence", [x, lengths], attrs, opset=10, expected=[expected])


def test_reverse_sequence_defaults_empty_and_bad_lengths(ep_session: MakeSession) -> None:
    x = sample((4, 3, 2))
    check(ep_session, "ReverseSequence", [x, ints(1, 2, 4)], opset=10)
    check(ep_session, "ReverseSequence", [x[:, :0], ints()], opset=10, expected=[x[:, :0]])
    session = ep_session(model("ReverseSequence", [x, ints(4, 5, -1)], opset=10))
    (y,) = session.run(None, {"x0": x, "x1": ints(4, 5, -1)})
    np.testing.assert_array_equal(y, np.stack([x[::-1, 0], x[:, 1], x[:, 2]], 1))
    with pytest.raises(Exception, match="out of range"):
        session.run(None, {"x0": x, "x1": ints(4, 4, 4)})


EYES = {np.float32: TensorProto.FLOAT, np.float64: TensorProto.DOUBLE, np.float16: TensorProto.FLOAT16}
EYES |= {np.int32: TensorProto.INT32, np.int64: TensorProto.INT64, np.uint8: TensorProto.UINT8}
EYES |= {np.bool_: TensorProto.BOOL}


@pytest.mark.parametrize("dtype", list(EYES))
@pytest.mark.parametrize("shape", [(4, 4), (3, 7), (7, 3), (1, 1), (300, 290), (0, 3)], ids=str)
def test_eye_like(ep_session: MakeSession, shape: tuple[int, int], dtype: type) -> None:
    for k in (0, 1, -2, 100, -(2**62)):
        expected = np.eye(*shape, k=int(np.clip(k, -1000, 1000))).astype(dtype)
        attrs = {"k": k, "dtype": EYES[dtype]}
        for opset in (9, 22):
            check(ep_session, "EyeLike", [sample(shape)], attrs, opset=opset, expected=[expected])
    check(ep_session, "EyeLike", [sample(shape, dtype)], opset=9, expected=[np.eye(*shape).astype(dtype)])


def test_eye_like_bfloat16(ep_session: MakeSession) -> None:
    x = in_bfloat16(sample((3, 3)))
    check(ep_session, "EyeLike", [x], opset=22, expected=[np.eye(3, dtype=np.float32)], bfloat16=True)


def col2im(x: Array, image: list[int], block: list[int], attrs: dict[str, Any]) -> tuple[Array, int]:
    """In float64, with the largest number of terms of an element. x has no blocks yet: [n, c]; they are made here."""
    rank = len(image)
    strides, dilations = attrs.get("strides", [1] * rank), attrs.get("dilations", [1] * rank)
    pads = attrs.get("pads", [0] * 2 * rank)
    padded = [i + pads[d] + pads[d + rank] for d, i in enumerate(image)]
    counts = [(p - d * (k - 1) - 1) // s + 1 for p, d, k, s in zip(padded, dilations, block, strides, strict=True)]
    n, channels = x.shape[0], x.shape[1]
    y, terms = np.zeros((n, channels, *padded)), np.zeros(padded, int)
    columns = x.astype(np.float64).reshape(n, channels, *block, *counts)
    for k in product(*map(range, block)):
        where = tuple(
            slice(i * d, i * d + (c - 1) * s + 1, s) for i, d, c, s in zip(k, dilations, counts, strides, strict=True)
        )
        y[(slice(None), slice(None), *where)] += columns[(slice(None), slice(None), *k)]
        terms[where] += 1
    inside = tuple(slice(pads[d], pads[d] + i) for d, i in enumerate(image))
    return y[(slice(None), slice(None), *inside)], int(terms.max())


def check_col2im(
    make: MakeSession, n: int, c: int, image: list[int], block: list[int], attrs: dict[str, Any], dtype: type
) -> None:
    rank = len(image)
    pads = attrs.get("pads", [0] * 2 * rank)
    count = 1
    for d, (i, k) in enumerate(zip(image, block, strict=True)):
        span = attrs.get("dilations", [1] * rank)[d] * (k - 1) + 1
        count *= (i + pads[d] + pads[d + rank] - span) // attrs.get("strides", [1] * rank)[d] + 1
    columns = sample((n, c * int(np.prod(block)), count), dtype)
    exact, terms = col2im(columns.reshape(n, c, -1), image, block, attrs)
    # Terms of up to 5, each addition rounded in float32; the result is rounded once.
    unit = ROUNDING["float64" if dtype is np.float64 else "float32"]
    tolerance = {"rtol": 2 * ROUNDING[np.dtype(dtype).name], "atol": 5 * terms * terms * unit}
    inputs = [columns, ints(*image), ints(*block)]
    check(make, "Col2Im", inputs, attrs, opset=18, expected=[exact.astype(dtype)], constant=(1, 2), **tolerance)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    ("image", "block", "attrs"),
    [
        ([5, 5], [1, 5], {}),
        ([5, 6], [2, 3], {"strides": [2, 3]}),
        ([6, 7], [3, 3], {"pads": [1, 1, 1, 1]}),
        ([6, 6], [2, 2], {"dilations": [2, 3], "pads": [1, 0, 0, 2]}),
        ([9], [3], {"strides": [2]}),
        ([4, 5, 6], [2, 3, 2], {"strides": [1, 2, 2], "pads": [0, 1, 0, 0, 1, 0]}),
    ],
    ids=str,
)
def test_col2im(
    ep_session: MakeSession, image: list[int], block: list[int], attrs: dict[str, Any], dtype: type
) -> None:
    check_col2im(ep_session, 2, 3, image, block, attrs, dtype)


@quick
@given(data=st.data())
def test_col2im_of_any_shape(ep_session: MakeSession, data: st.DataObject) -> None:
    rank = data.draw(st.integers(1, 3))

    def values(low: int, high: int, count: int = rank) -> list[int]:
        return data.draw(st.lists(st.integers(low, high), min_size=count, max_size=count))

    block, dilations = values(1, 3), values(1, 2)
    image = [(k - 1) * d + 1 + e for k, d, e in zip(block, dilations, values(0, 4), strict=True)]
    attrs = {"strides": values(1, 3), "dilations": dilations, "pads": values(0, 2, 2 * rank)}
    check_col2im(ep_session, *values(1, 3, 2), image, block, attrs, np.float32)


def test_col2im_as_onnx_runtime(ep_session: MakeSession) -> None:
    inputs = [sample((1, 9, 16)), ints(6, 6), ints(3, 3)]
    check(ep_session, "Col2Im", inputs, opset=18, constant=(1, 2), rtol=1e-5, atol=9 * 9 * 5 * 2.0**-24)


@quick
@given(data=st.data())
def test_center_crop_pad(ep_session: MakeSession, data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.sampled_from([1, 2, 3, 8, 9]), min_size=1, max_size=4))
    axes = data.draw(st.one_of(st.none(), st.lists(st.integers(0, len(shape) - 1), min_size=1, unique=True)))
    over = range(len(shape)) if axes is None else axes
    wanted = [data.draw(st.sampled_from([1, 2, 5, 8, 12])) for _ in over]
    x = sample(shape, data.draw(st.sampled_from(MOVED)))
    expected = x
    for axis, extent in zip(over, wanted, strict=True):
        more = extent - expected.shape[axis]
        if more < 0:
            first = -more // 2
            expected = expected.take(range(first, first + extent), axis)
        else:
            width = [(more // 2, more - more // 2) if a == axis else (0, 0) for a in range(x.ndim)]
            expected = np.pad(expected, width)
    attrs = {} if axes is None else {"axes": axes}
    index = data.draw(st.sampled_from([np.int32, np.int64]))
    inputs = [x, np.array(wanted, index)]
    check(ep_session, "CenterCropPad", inputs, attrs, opset=18, expected=[expected], constant=(1,))


def test_center_crop_pad_defaults_bfloat16_and_empty(ep_session: MakeSession) -> None:
    x = in_bfloat16(sample((3, 8, 5)))
    expected = np.pad(x[:, 1:6], [(1, 1), (0, 0), (0, 1)])
    check(ep_session, "CenterCropPad", [x, ints(5, 5, 6)], opset=18, expected=[expected], bfloat16=True)
    check(ep_session, "CenterCropPad", [x, ints(-1 + 1)], {"axes": [-1]}, opset=18, expected=[x[..., :0]])
    check(
        ep_session,
        "CenterCropPad",
        [x[..., :0], ints(2)],
        {"axes": [2]},
        opset=18,
        expected=[np.zeros_like(x)[..., :2]],
    )


def run_cumprod(make: MakeSession, x: Array, axis: int, exclusive: int, reverse: int, bfloat16: bool = False) -> None:
    wide = x.astype(np.float64)
    turned = np.flip(wide, axis) if reverse else wide
    exact = np.cumprod(turned, axis)
    if exclusive and x.size:
        ones = np.ones_like(turned.take([0], axis))
        exact = np.concatenate([ones, exact], axis).take(range(x.shape[axis]), axis)
    expected = (np.flip(exact, axis) if reverse else exact).astype(x.dtype)
    attrs, inputs = {"exclusive": exclusive, "reverse": reverse}, [x, np.array(axis, np.int64)]
    tolerance = {"rtol": 0.0, "atol": 0.0}
    if x.dtype.kind == "f":
        kind = "bfloat16" if bfloat16 else x.dtype.name
        # Each of n factors rounds once.
        inside = (x.shape[axis] + 8) * ROUNDING["float64" if kind == "float64" else "float32"]
        tolerance = {"rtol": inside + 2 * ROUNDING[kind], "atol": 2.0**-24 if kind == "float16" else 0.0}
    check(make, "CumProd", inputs, attrs, opset=26, expected=[expected], bfloat16=bfloat16, constant=(1,), **tolerance)


@pytest.mark.parametrize("dtype", [*FLOATS, np.int32, np.int64])
@pytest.mark.parametrize(("shape", "axis"), [((5,), 0), ((3, 700), 1), ((3, 256), -1), ((4, 40, 5), 1), ((2, 0), 1)])
def test_cumprod(ep_session: MakeSession, dtype: type, shape: tuple[int, ...], axis: int) -> None:
    # Near 1, so that neither overflow nor underflow hides a factor; whole numbers are 1 or -1, and twice a 2.
    if np.dtype(dtype).kind == "f":
        x: Array = (1 + 0.1 * np.sin(np.arange(int(np.prod(shape))))).reshape(shape).astype(dtype)
    else:
        x = np.where(sample(shape, dtype) % 2, 1, -1).astype(dtype)
        x.reshape(-1)[1:3] = 2
    for exclusive in (0, 1):
        for reverse in (0, 1):
            run_cumprod(ep_session, x, axis, exclusive, reverse)


def test_cumprod_bfloat16(ep_session: MakeSession) -> None:
    x = in_bfloat16((1 + 0.1 * np.sin(np.arange(60))).reshape(3, 20))
    run_cumprod(ep_session, x, 1, 0, 0, bfloat16=True)
