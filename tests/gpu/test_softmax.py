"""Softmax and LogSoftmax against NumPy in float64."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.gpu.single_op import MakeSession, check, quick

Array = np.ndarray

# One length for every kernel: a few lanes a row, a warp, a block of each size, the loop, and lengths that are not whole
# vectors; the batch of 2100 rows takes the layouts for many rows.
LENGTHS = [1, 3, 8, 64, 65, 128, 200, 256, 257, 1000, 1024, 4096, 4097, 8192, 10000, 16384, 32768, 32769, 70001]


def expected(x: Array, axis: int, log: bool) -> Array:
    x = x.astype(np.float64)
    with np.errstate(all="ignore"):
        # fmax, not max: a NaN comes in through the sum, and an all -inf row through -inf + inf.
        shifted = x - np.fmax.reduce(x, axis=axis, keepdims=True, initial=-np.inf)
        total = np.exp(shifted).sum(axis=axis, keepdims=True)
        result: Array = shifted - np.log(total) if log else np.exp(shifted) / total
        return result


def compare(make: MakeSession, x: Array, axis: int, log: bool = False, dtype: str = "float32", opset: int = 13) -> None:
    half = dtype in ("float16", "bfloat16")
    unit = {"float32": 2.0**-24, "float64": 2.0**-53, "float16": 2.0**-11, "bfloat16": 2.0**-8}[dtype]
    kind = np.float32 if dtype == "bfloat16" else np.dtype(dtype)
    x = x.astype(kind)
    seen = x.astype(ml_dtypes.bfloat16).astype(np.float32) if dtype == "bfloat16" else x
    if opset < 13:
        flat = seen.reshape(int(np.prod(seen.shape[:axis])), -1)
        y = expected(flat, 1, log).reshape(seen.shape)
    else:
        y = expected(seen, axis, log)
    # Result and expectation are rounded to the type, near a midpoint to different neighbours: 2 units. Inside,
    # exp(x - max) has a relative error of about |x - max| + 2 units (samples reach 30), the sum of n terms in
    # fixed-shape partial sums and the division a few units more: 64 in all, relative for softmax and absolute for its
    # logarithm.
    inside = 64 * (2.0**-53 if dtype == "float64" else 2.0**-24)
    rtol = inside + (2.02 * unit if half else 0)
    atol = (
        inside if log else (2.0**-24 if dtype == "float16" else 1e-37)
    )  # float16's smallest spacing; flushed denormals
    op = "LogSoftmax" if log else "Softmax"
    check(
        make,
        op,
        [x],
        {"axis": axis},
        rtol=rtol,
        atol=atol,
        expected=[y.astype(kind)],
        opset=opset,
        bfloat16=dtype == "bfloat16",
    )


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(0, 3, shape)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
@pytest.mark.parametrize("n", LENGTHS)
def test_rows(ep_session: MakeSession, n: int, dtype: str) -> None:
    compare(ep_session, normal(5, n), 1, log=n % 2 == 0, dtype=dtype)
    compare(ep_session, normal(5, n), -1, log=n % 2 == 1, dtype=dtype)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("n", [8, 100, 256, 768, 1000, 2048])
def test_many_rows(ep_session: MakeSession, n: int, dtype: str) -> None:
    compare(ep_session, normal(2100, n), 1, dtype=dtype)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
@pytest.mark.parametrize(
    ("shape", "axis"), [((2, 3, 4, 5), 1), ((2, 64, 6), 1), ((200, 34), 0), ((2, 1000, 7, 7), 1), ((3, 5, 1), 0)]
)
def test_columns(ep_session: MakeSession, shape: tuple[int, ...], axis: int, dtype: str) -> None:
    compare(ep_session, normal(*shape), axis, dtype=dtype)
    compare(ep_session, normal(*shape), axis - len(shape), log=True, dtype=dtype)


@pytest.mark.parametrize("opset", [1, 11])
def test_old_opsets_flatten(ep_session: MakeSession, opset: int) -> None:
    for axis in (0, 1, 2):
        compare(ep_session, normal(2, 3, 4, 5), axis, opset=opset)


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize(("n", "inner"), [(4, 1), (40, 1), (300, 1), (5000, 1), (40000, 1), (6, 5), (300, 4)])
def test_special_values(ep_session: MakeSession, n: int, inner: int, log: bool) -> None:
    x = normal(6, n, inner)
    x[1] = -np.inf  # nothing but -inf: NaN
    x[2, n // 2] = np.nan  # one NaN: the row is NaN
    x[3, 0] = np.inf  # inf - inf: NaN
    x[4, :-1] = -np.inf  # one finite value at the end: 1
    x[5, : n // 2] = -np.inf  # a whole thread's share is -inf, the row is not
    compare(ep_session, x, 1, log=log)


def test_large_values_do_not_overflow(ep_session: MakeSession) -> None:
    x = np.full((3, 100), 3e38)
    x[1] = -3e38
    x[2, ::2] = -3e38
    compare(ep_session, x, 1)


def test_empty(ep_session: MakeSession) -> None:
    for shape in ((0, 5), (3, 0), (2, 0, 3)):
        compare(ep_session, np.zeros(shape), 1)


@quick
@given(data=st.data())
def test_any_shape(ep_session: MakeSession, data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=4))
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    dtype = data.draw(st.sampled_from(["float32", "float16", "bfloat16", "float64"]))
    compare(
        ep_session, normal(*shape, seed=data.draw(st.integers(0, 9))), axis, log=data.draw(st.booleans()), dtype=dtype
    )
