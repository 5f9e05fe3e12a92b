"""csrc/plan against NumPy: output shapes, slices and views, reduction passes."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

NAMES = ("mean_variance", "pad", "reduce", "resize", "shapes", "slice", "strided")
SOURCES = ["tests/csrc/plan_tool.cc"] + [f"csrc/plan/{n}.cc" for n in NAMES]
INT64 = np.iinfo(np.int64)


class Tool:
    """The compiled plan_tool; `ask` returns the sections of its answer, or raises what the library threw."""

    def __init__(self, path: Path) -> None:
        self.process = subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, name: str, *lists: Sequence[int] | int) -> list[list[int]]:
        def text(v: Sequence[int] | int) -> str:
            return str(v) if isinstance(v, int) else ",".join(map(str, v)) or "-"

        assert self.process.stdin and self.process.stdout
        print(name, *map(text, lists), file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline().strip()
        if answer.startswith("error: "):
            raise ValueError(answer)
        return [[int(w) for w in section.split()] for section in answer.split("|")]


@pytest.fixture(scope="module")
def tool(compile_cpp: Callable[..., Path]) -> Iterator[Tool]:
    t = Tool(compile_cpp(SOURCES))
    yield t
    t.process.communicate()


def look(data: np.ndarray, offset: int, extents: Sequence[int], strides: Sequence[int]) -> np.ndarray:
    """The elements that a view selects, flat; reading outside the data fails."""
    index = np.full(tuple(extents), offset, np.int64)
    for axis, (e, s) in enumerate(zip(extents, strides, strict=True)):
        index += (np.arange(e) * s).reshape([-1 if i == axis else 1 for i in range(len(extents))])
    assert index.size == 0 or (index.min() >= 0 and index.max() < data.size)
    return data.reshape(-1)[index.reshape(-1)]


shapes = st.lists(st.sampled_from([0, 1, 1, 2, 3, 4, 8]), max_size=6)
positive = st.lists(st.sampled_from([1, 2, 3, 4, 8]), max_size=6)


def test_reshape(tool: Tool) -> None:
    assert tool.ask("reshape", [2, 3, 4], [0, -1], 0) == [[2, 12]]
    assert tool.ask("reshape", [2, 3, 4], [4, 3, 2], 0) == [[4, 3, 2]]
    assert tool.ask("reshape", [0, 3], [0, -1], 0) == [[0, 0]]  # nothing divides into nothing
    assert tool.ask("reshape", [0, 3], [3, 0], 1) == [[3, 0]]
    assert tool.ask("reshape", [1, 1], [], 0) == [[]]
    assert tool.ask("reshape", [], [-1], 0) == [[1]]


@pytest.mark.parametrize(
    ("shape", "target", "allow_zero", "message"),
    [
        ([2, 3], [-1, -1], 0, "more than one -1"),
        ([2, 3], [4, -1], 0, "does not divide"),
        ([2, 3], [7], 0, "holds 6 elements"),
        ([2], [2, 0], 0, "no such dimension"),
        ([0], [0, -1], 1, "both 0 and -1"),
        ([2], [-2], 0, "dimensions are >= -1"),
    ],
)
def test_reshape_refuses(tool: Tool, shape: list[int], target: list[int], allow_zero: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tool.ask("reshape", shape, target, allow_zero)


def test_rank_changes(tool: Tool) -> None:
    assert tool.ask("flatten", [2, 3, 4], 0) == [[1, 24]]
    assert tool.ask("flatten", [2, 3, 4], 3) == [[24, 1]]
    assert tool.ask("flatten", [2, 3, 4], -1) == [[6, 4]]
    assert tool.ask("flatten", [], 0) == [[1, 1]]
    assert tool.ask("squeeze", [1, 3, 1], []) == [[3]]
    assert tool.ask("squeeze", [1, 3, 1], [-1]) == [[1, 3]]
    assert tool.ask("unsqueeze", [3], [0, -1]) == [[1, 3, 1]]
    assert tool.ask("expand", [3, 1], [2, 1, 4]) == [[2, 3, 4]]
    for question in (("squeeze", [2, 1], [0]), ("unsqueeze", [3], [0, 0]), ("expand", [2], [3]), ("flatten", [2], 2)):
        with pytest.raises(ValueError, match="error"):
            tool.ask(*question)


@given(st.integers(-20, 20), st.integers(-20, 20), st.integers(-5, 5).filter(bool))
def test_range(tool: Tool, start: int, limit: int, delta: int) -> None:
    assert tool.ask("range", start, limit, delta) == [[len(range(start, limit, delta))]]


def test_range_extremes(tool: Tool) -> None:
    assert tool.ask("range", INT64.min, INT64.max, INT64.max) == [[3]]
    with pytest.raises(ValueError, match="delta is 0"):
        tool.ask("range", 0, 1, 0)


INT32_MAX = 2**31 - 1
ends = st.one_of(st.integers(-10, 10), st.sampled_from([INT64.min, INT64.max, INT64.max - 1, 1 - INT64.max, INT32_MAX]))
steps = st.one_of(st.integers(-4, 4).filter(bool), st.sampled_from([INT64.min, INT64.max]))


@given(st.data(), shapes)
def test_slice(tool: Tool, data: st.DataObject, shape: list[int]) -> None:
    axes = data.draw(st.lists(st.integers(0, len(shape) - 1), unique=True) if shape else st.just([]))
    triples = [(data.draw(ends), data.draw(ends), data.draw(steps)) for _ in axes]
    x = np.arange(np.prod(shape, dtype=np.int64)).reshape(shape)
    key = [slice(None)] * len(shape)
    for axis, (start, end, step) in zip(axes, triples, strict=True):
        # ONNX clamps as Python does, but for a backward start before the beginning: ONNX takes the first element. An
        # end that is the largest integer is open, as ONNX Runtime has it.
        stop = None if end in (INT32_MAX, INT64.max) else end
        key[axis] = slice(max(start, -shape[axis]) if step < 0 else start, stop, step)
    expected = x[tuple(key)]
    signed = [a - len(shape) if data.draw(st.booleans()) else a for a in axes]
    starts, stops, by = ([t[i] for t in triples] for i in range(3))
    found, (offset,), extents, strides = tool.ask("slice", shape, starts, stops, signed, by)
    assert found == list(expected.shape) == extents
    np.testing.assert_array_equal(look(x, offset, extents, strides), expected.reshape(-1))


def test_slice_defaults_and_errors(tool: Tool) -> None:
    assert tool.ask("slice", [4, 5], [1], [3], [], [])[0] == [2, 5]
    assert tool.ask("slice", [4, 5], [], [], [], [])[0] == [4, 5]
    for question in (([4], [0], [1, 2], [], []), ([4], [0], [1], [1], []), ([4], [0], [1], [], [0])):
        with pytest.raises(ValueError, match="error"):
            tool.ask("slice", *question)
    with pytest.raises(ValueError, match="listed twice"):
        tool.ask("slice", [4, 4], [0, 0], [1, 1], [0, -2], [])


@given(st.data(), positive)
def test_views(tool: Tool, data: st.DataObject, shape: list[int]) -> None:
    """A view stays the same selection when it is collapsed, and when its elements are grouped."""
    x = np.arange(np.prod(shape, dtype=np.int64)).reshape(shape)
    perm = data.draw(st.permutations(range(len(shape))))
    y = x.transpose(perm)
    for axis in range(y.ndim):
        if data.draw(st.integers(0, 4)) == 0:
            y = np.flip(y, axis)
        if data.draw(st.integers(0, 4)) == 0 and y.shape[axis] == 1:
            y = np.broadcast_to(y, [3 if a == axis else e for a, e in enumerate(y.shape)])
    offset = (y.__array_interface__["data"][0] - x.__array_interface__["data"][0]) // 8 if x.size else 0
    strides = [s // 8 for s in y.strides]
    _, (moved,), extents, steps = tool.ask("collapse", list(y.shape), strides, offset)
    np.testing.assert_array_equal(look(x, moved, extents, steps), y.reshape(-1))
    assert len(extents) == 1 or 1 not in extents

    size, address = data.draw(st.sampled_from([1, 2, 4, 8])), data.draw(st.sampled_from([256, 264, 258]))
    (wide,), (moved,), extents, steps = tool.ask("widen", list(y.shape), strides, offset, size, address, 512)
    group = wide // size
    assert wide <= 16 and (group == 1 or address % wide == 0)
    grouped = x.reshape(-1)[: x.size // group * group].reshape(-1, group)
    first = look(grouped[:, 0], moved, extents, steps)
    np.testing.assert_array_equal((first[:, None] + np.arange(group)).reshape(-1), y.reshape(-1))


def test_nchw_to_nhwc_collapses_to_three_dimensions(tool: Tool) -> None:
    x = np.zeros((2, 3, 4, 5)).transpose(0, 2, 3, 1)
    assert tool.ask("collapse", list(x.shape), [s // 8 for s in x.strides], 0)[2:] == [[2, 20, 3], [60, 1, 20]]


@given(st.data(), shapes, st.booleans(), st.booleans())
def test_reduce(tool: Tool, data: st.DataObject, shape: list[int], keep: bool, noop: bool) -> None:
    axes = data.draw(st.lists(st.integers(0, len(shape) - 1), unique=True) if shape else st.just([]))
    x = np.arange(np.prod(shape, dtype=np.int64)).reshape(shape) % 7 + 1
    over = tuple(axes) if axes or noop else tuple(range(x.ndim))
    expected = x.sum(axis=over, keepdims=keep)
    found, (count,), *passes = tool.ask("reduce", shape, axes, int(keep), int(noop))
    assert found == list(expected.shape)
    assert count == np.prod([shape[a] for a in over], dtype=np.int64)
    partial = x.reshape(-1)
    for outer, reduce, inner in passes:
        partial = partial.reshape(outer, reduce, inner).sum(axis=1).reshape(-1)
    np.testing.assert_array_equal(partial, expected.reshape(-1))


@given(st.integers(1, 1 << 20), st.integers(1, 1 << 26), st.integers(1, 1 << 12), st.sampled_from([2, 4, 8, 16]))
def test_reduce_parts(tool: Tool, outer: int, reduce: int, inner: int, vector: int) -> None:
    ((parts,),) = tool.ask("reduce_parts", [outer, reduce, inner], vector, 132)
    assert 1 <= parts <= max(1, 132 * 8)
    assert parts == 1 or reduce // parts >= 16  # a part is never next to nothing
    assert parts == 1 or outer < 132 * 8  # enough outputs need no parts


def test_full_reduction_fills_the_device(tool: Tool) -> None:
    assert tool.ask("reduce_parts", [1, 1 << 24, 1], 4, 132) == [[1056]]
    assert tool.ask("reduce_parts", [0, 16, 4], 4, 132) == [[1]]


@given(st.data(), st.lists(st.sampled_from([0, 1, 1, 2, 3, 20]), min_size=1, max_size=5))
def test_mean_variance(tool: Tool, data: st.DataObject, shape: list[int]) -> None:
    """Each row of the plan holds the elements that NumPy would average, and a copy puts them back in their places."""
    axes = data.draw(st.lists(st.integers(0, len(shape) - 1), unique=True))
    x = np.arange(np.prod(shape, dtype=np.int64)).reshape(shape)
    (segments, rows, width, copied), *views = tool.ask("mean_variance", shape, axes)
    assert segments * rows * width == x.size or x.size == 0
    source = look(x, views[0][0], *views[1:3]) if copied else x.reshape(-1)
    if x.size:
        sums = source.reshape(segments, rows, width).sum(axis=(0, 2))
        np.testing.assert_array_equal(sums, x.sum(axis=tuple(axes)).reshape(-1))
    if copied:
        assert segments == 1
        np.testing.assert_array_equal(look(source, views[3][0], *views[4:6]), x.reshape(-1))


def test_mean_variance_of_images_needs_no_copy(tool: Tool) -> None:
    assert tool.ask("mean_variance", [4, 3, 8, 8], [0, 2, 3])[0] == [4, 3, 64, 0]
    assert tool.ask("mean_variance", [1, 3, 8, 8], [0, 2, 3])[0] == [1, 3, 64, 0]
    assert tool.ask("mean_variance", [4, 3, 8, 8], [2, -1])[0] == [1, 12, 64, 0]
    assert tool.ask("mean_variance", [4, 8, 8, 3], [0, 1, 2])[0] == [1, 3, 256, 1]


@given(st.data(), st.lists(st.sampled_from([1, 2, 3, 4]), min_size=1, max_size=4), st.integers(0, 3))
def test_pad(tool: Tool, data: st.DataObject, shape: list[int], mode: int) -> None:
    before, after = ([data.draw(st.sampled_from([0, 0, 1, -1])) for _ in shape] for _ in range(2))
    for i, extent in enumerate(shape):
        if extent + min(before[i], 0) + min(after[i], 0) < 2:  # too little left to reflect
            before[i] = after[i] = 0
    x = np.arange(np.prod(shape, dtype=np.int64)).reshape(shape) + 1
    key = tuple(slice(max(-b, 0), e - max(-a, 0)) for b, a, e in zip(before, after, shape, strict=True))
    width = [(max(b, 0), max(a, 0)) for b, a in zip(before, after, strict=True)]
    expected = np.pad(x[key], width, mode=("constant", "reflect", "edge", "wrap")[mode])
    found, (offset,), *dims = tool.ask("pad", shape, [*before, *after], [], mode)
    assert found == list(expected.shape)
    # What the kernel does with each dimension, here by NumPy, must give the padded tensor.
    out, kept, strides, begin = (list(v) for v in zip(*dims, strict=True))
    y = look(x, offset, kept, strides).reshape(kept)
    width = [(b, o - k - b) for b, o, k in zip(begin, out, kept, strict=True)]
    padded = np.pad(y, width, mode=("constant", "reflect", "edge", "wrap")[mode])
    np.testing.assert_array_equal(padded.reshape(-1), expected.reshape(-1))


def test_pad_of_axes_and_errors(tool: Tool) -> None:
    assert tool.ask("pad", [2, 3, 4], [1, 2], [-1], 0)[0] == [2, 3, 7]
    for question in (([2], [1], [], 0), ([2], [-3, 0], [], 0), ([0], [1, 0], [], 2), ([2], [0, 0], [3], 0)):
        with pytest.raises(ValueError, match="error"):
            tool.ask("pad", *question)


def test_resize(tool: Tool) -> None:
    """Sizes round down from scales; dimensions that stay are merged and marked."""
    assert tool.ask("resize", [2, 3, 5, 7], [100, 100, 200, 150], [], [], [], 0, 0) == [
        [2, 3, 10, 10],
        [6, 6, 35, 0],
        [5, 10, 7, 1],
        [7, 10, 1, 1],
    ]
    assert tool.ask("resize", [2, 5, 3, 4], [], [10], [], [1], 0, 0) == [
        [2, 10, 3, 4],
        [2, 2, 60, 0],
        [5, 10, 12, 1],
        [12, 12, 1, 0],
    ]
    assert tool.ask("resize", [2, 3], [100, 100], [], [], [], 0, 0) == [[2, 3], [6, 6, 1, 0]]
    # The same size, but of a part of the input: still resampled.
    assert tool.ask("resize", [4], [100], [], [0, 50], [], 0, 1) == [[4], [4, 4, 1, 1]]
    # 6 x 9 into 5 x 8, keeping the aspect: 5/6 is the smaller scale, 8/9 the larger.
    assert tool.ask("resize", [6, 9], [], [5, 8], [], [], 1, 0)[0] == [5, 8]
    assert tool.ask("resize", [6, 9], [], [3, 8], [], [], 1, 0)[0] == [3, 5]
    assert tool.ask("resize", [6, 9], [], [3, 8], [], [], 2, 0)[0] == [5, 8]


@pytest.mark.parametrize(
    "question",
    [
        ([4], [], [], [], [], 0, 0),
        ([4], [100], [4], [], [], 0, 0),
        ([4], [100, 100], [], [], [], 0, 0),
        ([4], [0], [], [], [], 0, 0),
        ([0], [], [3], [], [], 0, 0),
        ([4], [100], [], [0, 50, 100], [], 0, 1),
    ],
)
def test_resize_refuses(tool: Tool, question: tuple[object, ...]) -> None:
    with pytest.raises(ValueError, match="error: Resize"):
        tool.ask("resize", *question)  # type: ignore[arg-type]
