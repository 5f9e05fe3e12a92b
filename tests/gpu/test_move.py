"""Concat, Split, Slice, Expand, Tile, ConstantOfShape, Range: data moved or made without arithmetic, exact."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

from tests.gpu.single_op import MOVED, MakeSession, check, ints, quick, sample

extents = st.sampled_from([0, 1, 2, 3, 5, 8, 16, 33])


@pytest.mark.parametrize("dtype", MOVED)
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_concat_types(ep_session: MakeSession, dtype: type, axis: int) -> None:
    shapes = [[2, 3, 4] for _ in range(3)]
    for shape, extent in zip(shapes, (1, 0, 7), strict=True):
        shape[axis] = extent
    check(ep_session, "Concat", [sample(s, dtype, i) for i, s in enumerate(shapes)], {"axis": axis})


@given(st.data())
@quick
def test_concat_shapes(ep_session: MakeSession, data: st.DataObject) -> None:
    shape = data.draw(st.lists(extents, min_size=1, max_size=4))
    axis = data.draw(st.integers(0, len(shape) - 1))
    sizes = data.draw(st.lists(extents, min_size=1, max_size=6))
    dtype = data.draw(st.sampled_from([np.float32, np.float16, np.uint8]))
    inputs = [sample([s if i == axis else e for i, e in enumerate(shape)], dtype, s) for s in sizes]
    check(ep_session, "Concat", inputs, {"axis": axis}, opset=data.draw(st.sampled_from([7, 11, 13])))


def test_concat_of_more_inputs_than_one_launch_takes(ep_session: MakeSession) -> None:
    check(ep_session, "Concat", [sample((3, i % 4), seed=i) for i in range(131)], {"axis": 1})


@pytest.mark.parametrize("dtype", MOVED)
def test_split_types(ep_session: MakeSession, dtype: type) -> None:
    check(ep_session, "Split", [sample((3, 12), dtype)], {"axis": 1}, opset=13, outputs=("a", "b", "c"))


@given(st.data())
@quick
def test_split_shapes(ep_session: MakeSession, data: st.DataObject) -> None:
    sizes = data.draw(st.lists(extents, min_size=1, max_size=5))
    shape = data.draw(st.lists(extents, min_size=1, max_size=4))
    axis = data.draw(st.integers(0, len(shape) - 1))
    shape[axis] = sum(sizes)
    outputs = [f"y{i}" for i in range(len(sizes))]
    opset = data.draw(st.sampled_from([7, 11, 13, 18]))
    if opset < 13:
        check(ep_session, "Split", [sample(shape)], {"axis": axis, "split": sizes}, opset=opset, outputs=outputs)
    else:
        check(ep_session, "Split", [sample(shape), ints(*sizes)], {"axis": axis}, opset=opset, outputs=outputs)


def test_split_into_uneven_parts_and_many(ep_session: MakeSession) -> None:
    check(ep_session, "Split", [sample((7, 2))], {"num_outputs": 3}, opset=18, outputs=("a", "b", "c"))
    check(ep_session, "Split", [sample((100, 3))], opset=13, outputs=[f"y{i}" for i in range(100)])


def test_split_of_absent_outputs(ep_session: MakeSession) -> None:
    x = sample((6, 2))
    check(ep_session, "Split", [x], opset=13, outputs=("a", "", "c"), expected=[x[:2], x[4:]])


@pytest.mark.parametrize("dtype", MOVED)
def test_slice_types(ep_session: MakeSession, dtype: type) -> None:
    check(ep_session, "Slice", [sample((5, 8), dtype), ints(1, 7), ints(5, 0), ints(0, 1), ints(1, -2)])


@given(st.data())
@quick
def test_slice_shapes(ep_session: MakeSession, data: st.DataObject) -> None:
    shape = data.draw(st.lists(extents, min_size=1, max_size=4))
    axes = data.draw(st.lists(st.integers(0, len(shape) - 1), unique=True, min_size=1))
    bound = st.one_of(st.integers(-40, 40), st.just(np.iinfo(np.int64).max), st.just(-np.iinfo(np.int64).max))
    starts, stops = ([data.draw(bound) for _ in axes] for _ in range(2))
    dtype = data.draw(st.sampled_from([np.float32, np.float16, np.uint8]))
    x = sample(shape, dtype)
    if data.draw(st.booleans()):
        check(ep_session, "Slice", [x], {"starts": starts, "ends": stops, "axes": axes}, opset=9)
    else:
        steps = [data.draw(st.integers(-3, 3).filter(bool)) for _ in axes]
        inputs = [x, *(ints(*v) for v in (starts, stops, axes, steps))]
        check(ep_session, "Slice", inputs, opset=data.draw(st.sampled_from([10, 11, 13])))


def test_slice_defaults_and_int32_indices(ep_session: MakeSession) -> None:
    x = sample((4, 5, 6))
    check(ep_session, "Slice", [x, ints(1, 0), ints(3, -1)])
    check(ep_session, "Slice", [x, *(np.array([v], np.int32) for v in (0, 9, -1, 2))])


@given(st.data())
@quick
def test_expand(ep_session: MakeSession, data: st.DataObject) -> None:
    target = data.draw(st.lists(extents, max_size=5))
    kept = data.draw(st.integers(0, len(target)))
    shape = [1 if data.draw(st.booleans()) else e for e in target[len(target) - kept :]]
    asked = [
        1 if i >= len(target) - kept and shape[i - len(target)] == e and e != 1 else e for i, e in enumerate(target)
    ]
    dtype = data.draw(st.sampled_from(MOVED))
    check(ep_session, "Expand", [sample(shape, dtype), ints(*asked)], opset=data.draw(st.sampled_from([8, 13])))


@given(st.data())
@quick
def test_tile(ep_session: MakeSession, data: st.DataObject) -> None:
    shape = data.draw(st.lists(extents, min_size=1, max_size=5))
    repeats = [data.draw(st.integers(0, 3)) for _ in shape]
    dtype = data.draw(st.sampled_from([np.float32, np.float64, np.int64, np.bool_]))
    check(ep_session, "Tile", [sample(shape, dtype), ints(*repeats)], opset=data.draw(st.sampled_from([7, 13])))


@pytest.mark.parametrize("dtype", MOVED)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 5), (17, 1, 3)])
def test_constant_of_shape(ep_session: MakeSession, dtype: type, shape: tuple[int, ...]) -> None:
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    value = helper.make_tensor("value", kind, [1], [1 if dtype is np.bool_ else 113])
    check(ep_session, "ConstantOfShape", [ints(*shape)], {"value": value}, opset=9)


def test_constant_of_shape_without_a_value(ep_session: MakeSession) -> None:
    check(ep_session, "ConstantOfShape", [ints(2, 3)], opset=9)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int16, np.int32, np.int64])
@pytest.mark.parametrize("values", [(0, 10, 1), (3, -7, -3), (5, 5, 2), (5, 2, 1), (-1000, 999, 7)])
def test_range(ep_session: MakeSession, dtype: type, values: tuple[int, ...]) -> None:
    check(ep_session, "Range", [np.array(v, dtype) for v in values], opset=11)


def test_range_of_fractions(ep_session: MakeSession) -> None:
    # ONNX Runtime adds the step up, this provider multiplies it: a rounding in each of 45 steps.
    check(ep_session, "Range", [np.array(v, np.float32) for v in (0.5, 5.0, 0.1)], opset=11, rtol=1e-5)
