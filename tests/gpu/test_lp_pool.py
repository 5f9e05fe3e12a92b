"""LpPool and GlobalLpPool against their definitions in float64."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.gpu.bounds import ROUNDING, in_bfloat16
from tests.gpu.single_op import MakeSession, check, model, quick, reference, sample
from tests.gpu.test_pool import POOLS

Array = np.ndarray
FLOATS = [np.float32, np.float16, np.float64]


def lp_pool(x: Array, out: tuple[int, ...], attrs: dict[str, Any]) -> Array:
    """By the average of |x|^p, which NumPy takes here of windows in an output of the given size."""
    p, kernel, rank = attrs.get("p", 2), attrs["kernel_shape"], x.ndim - 2
    strides, dilations = attrs.get("strides", [1] * rank), attrs.get("dilations", [1] * rank)
    begin = attrs.get("pads", [0] * 2 * rank)[:rank]
    if (same := attrs.get("auto_pad", "")).startswith("SAME"):
        total = [max((o - 1) * s + k - i, 0) for o, s, k, i in zip(out, strides, kernel, x.shape[2:], strict=True)]
        begin = [t // 2 if same == "SAME_UPPER" else t - t // 2 for t in total]
    y = np.zeros((*x.shape[:2], *out))
    wide = np.abs(x.astype(np.float64)) ** p
    for at in product(*map(range, out)):
        for k in product(*map(range, kernel)):
            place = [o * s + i * d - b for o, s, i, d, b in zip(at, strides, k, dilations, begin, strict=True)]
            if all(0 <= v < e for v, e in zip(place, x.shape[2:], strict=True)):
                y[(..., *at)] += wide[(..., *place)]
    return np.asarray(y ** (1 / p))


def check_lp_pool(make: MakeSession, x: Array, attrs: dict[str, Any], opset: int = 18, bfloat16: bool = False) -> None:
    # An average pool has the same windows.
    shape_attrs = {k: v for k, v in attrs.items() if k != "p"}
    wide = x.astype(np.float32)
    out = reference(model("AveragePool", [wide], shape_attrs, opset=19), {"x0": wide})[0].shape[2:]
    expected = lp_pool(x, out, attrs).astype(x.dtype)
    kind = "bfloat16" if bfloat16 else x.dtype.name
    # Positive terms, at most 64 of them, a power or root within 4 units each; one rounding to the type.
    inside = 80 * ROUNDING["float64" if kind == "float64" else "float32"]
    tolerance = {"rtol": inside + 2 * ROUNDING[kind], "atol": 2.0**-24 if kind == "float16" else 0.0}
    check(make, "LpPool", [x], attrs, opset=opset, expected=[expected], bfloat16=bfloat16, **tolerance)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("p", [1, 2, 3])
@pytest.mark.parametrize("name", POOLS)
def test_lp_pool(ep_session: MakeSession, name: str, p: int, dtype: type) -> None:
    shape, attrs = POOLS[name]
    opsets = (18, 22) if "ceil_mode" in attrs else (7, 11, 18, 22)
    for opset in opsets:
        check_lp_pool(ep_session, sample(shape, dtype), {**attrs, "p": p}, opset)


def test_defaults_and_bfloat16(ep_session: MakeSession) -> None:
    check_lp_pool(ep_session, sample((1, 2, 5, 5)), {"kernel_shape": [2, 2]}, opset=11)
    x = in_bfloat16(sample((1, 2, 6, 6)))
    check_lp_pool(ep_session, x, {"kernel_shape": [3, 2], "dilations": [2, 1]}, opset=22, bfloat16=True)


@quick
@given(data=st.data())
def test_lp_pools_of_any_shape(ep_session: MakeSession, data: st.DataObject) -> None:
    rank = data.draw(st.integers(1, 3))

    def values(low: int, high: int, count: int = rank) -> list[int]:
        return data.draw(st.lists(st.integers(low, high), min_size=count, max_size=count))

    kernel, dilations = values(1, 3), values(1, 2)
    size = [(k - 1) * d + 1 + e for k, d, e in zip(kernel, dilations, values(0, 5), strict=True)]
    attrs = {
        "kernel_shape": kernel,
        "strides": values(1, 4),
        "pads": [data.draw(st.integers(0, kernel[i % rank] - 1)) for i in range(2 * rank)],
        "dilations": dilations,
        "ceil_mode": data.draw(st.integers(0, 1)),
    }
    x = sample([*values(1, 3, 2), *size])
    try:
        reference(model("AveragePool", [x], attrs, opset=19), {"x0": x})
    except Exception:
        assume(False)  # a shape that ONNX Runtime refuses
    check_lp_pool(ep_session, x, {**attrs, "p": data.draw(st.sampled_from([1, 2, 4]))})


def test_lp_pool_as_onnx_runtime(ep_session: MakeSession) -> None:
    attrs = {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1], "p": 2}
    # Both are float32, of 6 terms and a root.
    check(ep_session, "LpPool", [sample((2, 3, 9, 8))], attrs, opset=18, rtol=20 * 2.0**-24)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("p", [1, 2, 3])
@pytest.mark.parametrize("shape", [(2, 5, 7, 7), (1, 64, 1, 1), (3, 2, 60, 60), (2, 3, 33), (1, 2, 3, 4, 5)], ids=str)
def test_global_lp_pool(ep_session: MakeSession, shape: tuple[int, ...], p: int, dtype: type) -> None:
    x = sample(shape, dtype)
    spatial = tuple(range(2, len(shape)))
    expected = (np.abs(x.astype(np.float64)) ** p).sum(spatial, keepdims=True) ** (1 / p)
    # As above, of up to 3600 terms: a thread of the reduction adds at most 120, one of the third norm all of them.
    terms = 120 if p < 3 else 3600
    inside = (terms + 16) * ROUNDING["float64" if dtype is np.float64 else "float32"]
    tolerance = {"rtol": inside + 2 * ROUNDING[np.dtype(dtype).name], "atol": 2.0**-24}
    for opset in (7, 22):
        check(ep_session, "GlobalLpPool", [x], {"p": p}, opset=opset, expected=[expected.astype(dtype)], **tolerance)


def test_global_lp_pool_of_nothing(ep_session: MakeSession) -> None:
    x = sample((0, 3, 2, 2))
    check(ep_session, "GlobalLpPool", [x], expected=[np.zeros((0, 3, 1, 1), np.float32)])
