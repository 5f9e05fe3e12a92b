"""The arithmetic of grids: rounding is to the nearest number, and never to none."""

from __future__ import annotations

import itertools

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from cuvil_onnx.quantize.grid import (
    SCALE_DTYPES,
    Grid,
    Quantized,
    column_chunks,
    dequantize,
    flat,
    grouped,
    min_max,
    representable,
    round_to_grid,
)

FLOAT, HALF, BRAIN = SCALE_DTYPES
GRIDS = [
    Grid(bits, group, symmetric, dtype)
    for bits, group, symmetric, dtype in itertools.product((4, 8), (16, 64, -1), (True, False), SCALE_DTYPES)
]


def rounded(weight: np.ndarray, grid: Grid, **options: object) -> tuple[Quantized, np.ndarray]:
    scales, zeros = min_max(grouped(weight, grid, np), grid, np, **options)
    codes = round_to_grid(weight, scales, zeros, grid, np)
    made = Quantized(codes, scales, None if zeros is None else zeros.astype(codes.dtype))
    return made, dequantize(made, grid, np)


@pytest.mark.parametrize("group", [16, 32, -1])
@pytest.mark.parametrize("k", [1, 15, 16, 17, 50, 64])
def test_groups_pad_the_last_one(k: int, group: int) -> None:
    weight = np.arange(k * 3, dtype=np.float32).reshape(k, 3) + 1
    grid = Grid(group_size=group)
    blocks = grouped(weight, grid, np)
    assert blocks.shape == (grid.groups(k), grid.rows(k), 3)
    np.testing.assert_array_equal(flat(blocks, k), weight)
    assert (blocks.reshape(-1, 3)[k:] == 0).all()


@pytest.mark.parametrize("grid", GRIDS, ids=str)
@pytest.mark.parametrize("k", [5, 64, 77])
def test_error_is_at_most_a_step(grid: Grid, k: int) -> None:
    weight = np.random.default_rng(k).standard_normal((k, 9)).astype(np.float32)
    made, numbers = rounded(weight, grid)
    assert made.codes.min() >= grid.low and made.codes.max() <= grid.high
    # Half a step for the rounding, at most another half where the range was shifted (an integer zero point, the side
    # of a symmetric grid that has one code less), and what rounding the scale to 8 bits (2^-9) moves the ends by.
    step = np.repeat(np.abs(made.scales), grid.rows(k), 0)[:k]
    assert (np.abs(numbers - weight) <= step * (1 + 2**-8 * 2**grid.bits) + 1e-6).all()


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_rounding_is_to_the_nearest(grid: Grid) -> None:
    weight = np.random.default_rng(1).standard_normal((32, 4)).astype(np.float32)
    made, numbers = rounded(weight, grid)
    for delta in (-1, 1):
        moved = np.clip(made.codes.astype(np.int64) + delta, grid.low, grid.high).astype(made.codes.dtype)
        other = dequantize(Quantized(moved, made.scales, made.zero_points), grid, np)
        # Ties, and float32 roundings of numbers near 4, may go either way.
        assert (np.abs(numbers - weight) <= np.abs(other - weight) + 1e-5).all()


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_zeros_stay_zeros(grid: Grid) -> None:
    weight = np.random.default_rng(2).standard_normal((40, 5)).astype(np.float32)
    weight[:, 1], weight[3::2, 2] = 0, 0
    _, numbers = rounded(weight, grid)
    assert (numbers[weight == 0] == 0).all()


finite = st.floats(width=32, allow_nan=False, allow_infinity=False)


@settings(max_examples=150, deadline=None)
@given(
    hnp.arrays(np.float32, hnp.array_shapes(min_dims=2, max_dims=2, max_side=20), elements=finite),
    st.sampled_from([g for g in GRIDS if g.scale_dtype != HALF]),
    st.booleans(),
)
def test_finite_weights_never_give_anything_else(weight: np.ndarray, grid: Grid, full: bool) -> None:
    with np.errstate(over="ignore"):
        made, numbers = rounded(weight, grid, full_range=full)
    assert np.isfinite(made.scales).all() and (made.scales != 0).all()
    assert np.isfinite(numbers).all()


def test_rounding_a_scale_up_does_not_reach_infinity() -> None:
    # 15 steps of 131008 / 15 around a zero point of 6 or 7 reach 9 * 8734: narrowed to 65504 / 9, which rounds up.
    for low in np.arange(-65504, 0, 997, dtype=np.float32):
        made, numbers = rounded(np.array([[65504.0], [low]], np.float32), Grid(4, 16, False, HALF))
        assert np.abs(numbers).max() < 65520 and np.isfinite(made.scales.astype(np.float16)).all()


@settings(max_examples=150, deadline=None)
@given(
    hnp.arrays(np.float16, (18, 3), elements=st.floats(width=16, allow_nan=False, allow_infinity=False)),
    st.sampled_from([g for g in GRIDS if g.scale_dtype == HALF]),
)
def test_finite_in_half_too(weight: np.ndarray, grid: Grid) -> None:
    made, numbers = rounded(weight.astype(np.float32), grid)
    assert np.abs(numbers).max() < 65520  # what rounds to infinity
    np.testing.assert_array_equal(made.scales.astype(np.float16).astype(np.float32), made.scales)


def test_scales_that_would_vanish_become_the_smallest() -> None:
    tiny = np.array([1e-9, -1e-9, 3e-8, 6e-8, 1.0, 1e6], np.float32)
    half = representable(tiny, Grid(scale_dtype=HALF), np)
    smallest = 2.0**-24
    np.testing.assert_array_equal(half, np.array([smallest, -smallest, smallest, smallest, 1.0, 65504.0], np.float32))
    subnormal = np.array([1e-42, 1e-45], np.float32)
    assert (representable(subnormal, Grid(scale_dtype=FLOAT), np) == np.finfo(np.float32).tiny).all()


@given(finite)
def test_bfloat16_is_rounded_as_everywhere(number: float) -> None:
    import ml_dtypes

    given_ = np.array([number], np.float32)
    expected = given_.astype(ml_dtypes.bfloat16).astype(np.float32)
    found = representable(given_, Grid(scale_dtype=BRAIN), np)
    info = ml_dtypes.finfo(ml_dtypes.bfloat16)
    if np.isfinite(expected).all() and abs(float(expected[0])) >= float(info.tiny):
        np.testing.assert_array_equal(found, expected)
    else:
        assert np.isfinite(found).all() and (found != 0).all()


def test_symmetric_full_range_uses_all_codes() -> None:
    weight = np.array([[1.0], [-0.5], [0.25], [-1 / 8]], np.float32)
    grid = Grid(4, 16, True, FLOAT)
    made, numbers = rounded(weight, grid)
    assert made.codes.reshape(-1).tolist() == [-8, 4, -2, 1] and made.scales[0, 0] == -1 / 8
    np.testing.assert_array_equal(numbers, weight)


@pytest.mark.parametrize(("k", "n"), [(1, 1), (4096, 5), (4096, 14336), (1 << 24, 7), (64, 1 << 20)])
def test_chunks_cover_the_columns_and_begin_at_even_ones(k: int, n: int) -> None:
    chunks = column_chunks(k, n)
    assert [i for c in chunks[:50] for i in range(c.start, c.stop)][:1000] == list(range(min(n, 1000)))[
        : chunks[min(49, len(chunks) - 1)].stop
    ]
    assert chunks[-1].stop == n and all(c.start % 2 == 0 for c in chunks)
    assert all(a.stop == b.start for a, b in itertools.pairwise(chunks))


def test_code_types() -> None:
    kinds = {(g.bits, g.symmetric): g.code_dtype for g in GRIDS}
    T = ir.DataType
    assert kinds == {(4, True): T.INT4, (4, False): T.UINT4, (8, True): T.INT8, (8, False): T.UINT8}
