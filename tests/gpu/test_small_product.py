"""The kernel of products of few rows (csrc/kernels/small_product.cu), in each way to cut one up, against float64."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st

import custom_ops
from custom_ops import activations, testing
from custom_ops.spec import Example
from tests.gpu.bounds import assert_sum_of_products, rounded
from tests.gpu.single_op import MakeSession, quick, sample
from tests.gpu.test_gemm import PARAMS, run

WAYS = [f"small{rows}x{split}" for rows in (32, 64) for split in (1, 2, 4, 8)]
SPLITTING = 132 * 3
"""Blocks of a product whose sums are shared, at most: the H200 has 132 multiprocessors. Asking for more is an error."""


def serves(way: str, m: int, k: int, n: int) -> bool:
    """Whether the kernel offers to cut the product up like this (GemmPlan::cuts)."""
    rows, split = (int(part) for part in way.removeprefix("small").split("x"))
    tiles = -(-m // rows) * -(-n // 64)
    return (rows == 32 or m > rows // 2) and (split == 1 or (split <= -(-k // 64) and tiles * split <= SPLITTING))


def product(
    make: MakeSession, m: int, k: int, n: int, dtype: str, *, trans_b: bool = False, constant: bool = True
) -> None:
    """Gemm with a bias, or MatMul, in the way that CUVIL_TUNING names; twice with equal bits (`run` sees to it)."""
    a, b = rounded(sample([m, k], np.float64, 1), dtype), rounded(sample([k, n], np.float64, 2), dtype)
    bias = rounded(sample([n], np.float64, 3), dtype)
    fixed = (1,) if constant else ()
    if trans_b:
        inputs = [a, b.T.copy(), bias]
        found = run(make, "Gemm", list(inputs), dtype, attrs={"transB": 1, "alpha": 0.5}, constant=fixed)
        exact, magnitude = 0.5 * (a @ b) + bias, 0.5 * (np.abs(a) @ np.abs(b)) + np.abs(bias)
    else:
        found = run(make, "MatMul", [a, b], dtype, constant=fixed)
        exact, magnitude = a @ b, np.abs(a) @ np.abs(b)
    assert_sum_of_products(found, np.asarray(exact), np.asarray(magnitude), k, dtype)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("trans_b", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_ways(ep_session: MakeSession, monkeypatch: pytest.MonkeyPatch, way: str, trans_b: bool, dtype: str) -> None:
    """Two tiles of rows and three of columns, none of them whole; the sum neither, and shared unevenly."""
    monkeypatch.setenv("CUVIL_TUNING", f"only:{way}")
    product(ep_session, int(way[5:].split("x")[0]) + 17, 9 * 64 + 24, 2 * 64 + 8, dtype, trans_b=trans_b)


@pytest.mark.parametrize(("m", "k", "n"), [(1, 8, 8), (1, 768, 3072), (128, 768, 768), (33, 520, 64), (256, 64, 72)])
@pytest.mark.parametrize("way", ["small32x1", "small32x4", "small64x1", "small64x8"])
def test_sizes(ep_session: MakeSession, monkeypatch: pytest.MonkeyPatch, way: str, m: int, k: int, n: int) -> None:
    monkeypatch.setenv("CUVIL_TUNING", f"only:{way}")
    if serves(way, m, k, n):
        product(ep_session, m, k, n, "float16", constant=False)
    else:
        with pytest.raises(Exception, match=f"only:{way} is no way to compute"):
            product(ep_session, m, k, n, "float16", constant=False)


@given(data=st.data())
@quick
def test_any_shape(ep_session: MakeSession, data: st.DataObject) -> None:
    with pytest.MonkeyPatch.context() as patch:
        m, k, n = data.draw(st.integers(1, 300)), 8 * data.draw(st.integers(1, 150)), 8 * data.draw(st.integers(1, 40))
        way = data.draw(st.sampled_from([w for w in WAYS if serves(w, m, k, n)]))
        patch.setenv("CUVIL_TUNING", f"only:{way}")
        dtype, flags = data.draw(st.sampled_from(["float16", "bfloat16"])), [data.draw(st.booleans()) for _ in range(2)]
        product(ep_session, m, k, n, dtype, trans_b=flags[0], constant=flags[1])


@pytest.mark.parametrize("activation", list(activations.PARAMS))
@pytest.mark.parametrize("operands", ["bias", "z", "bias z", ""])
@pytest.mark.parametrize("way", ["small32x1", "small32x4"])
def test_epilogues(
    ep_session: MakeSession, monkeypatch: pytest.MonkeyPatch, way: str, operands: str, activation: str
) -> None:
    monkeypatch.setenv("CUVIL_TUNING", f"only:{way}")
    a, w = sample([2, 9, 320], np.float64, 1), sample([320, 40], np.float64, 2) / 16
    bias = sample([40], np.float64, 3) if "bias" in operands else None
    z = sample([2, 9, 40], np.float64, 4) if "z" in operands else None
    attrs = {"transB": 0, "activation": activation, "activation_params": PARAMS.get(activation, [])}
    example = Example("case", (a, w, bias, z), attrs)
    case = testing.build(custom_ops.specs()["FusedMatMul"], example, opset=20, dtype=ir.DataType.FLOAT16)
    (found,) = ep_session(case.model).run(None, case.feeds)
    # As in test_gemm.test_fused_matmul, but all in one pass: nothing is rounded on the way.
    added = [np.abs(v) for v in (bias, z) if v is not None]
    magnitude = 1.5 * (np.abs(a) @ np.abs(w) + sum(added))
    assert_sum_of_products(found, np.asarray(case.expected[0]), magnitude, 320, "float16")


@pytest.mark.parametrize("way", ["small32x1", "small32x8", "small64x4"])
def test_nan_and_infinity_stay_in_their_rows(
    ep_session: MakeSession, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Whatever the tiles' padding multiplies: the other rows are as without them."""
    monkeypatch.setenv("CUVIL_TUNING", f"only:{way}")
    a, b = sample([70, 520], np.float64, 1), sample([520, 72], np.float64, 2)
    clean = run(ep_session, "MatMul", [a, b], "float16")
    a[3, 519], a[40, 0] = np.nan, np.inf
    found = run(ep_session, "MatMul", [a, b], "float16")
    assert np.isnan(found[3]).all() and not np.isfinite(found[40]).any()
    others = [i for i in range(70) if i not in (3, 40)]
    np.testing.assert_array_equal(found[others], clean[others])
