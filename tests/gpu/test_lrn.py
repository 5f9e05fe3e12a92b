"""LRN against its definition in float64, and against ONNX Runtime's CPU provider."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.gpu.bounds import ROUNDING, in_bfloat16
from tests.gpu.single_op import MakeSession, check, quick, sample

Array = np.ndarray


def expected(x: Array, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0) -> Array:
    wide = x.astype(np.float64)
    squares, channels = wide * wide, x.shape[1]
    total = np.zeros_like(wide)
    for c in range(channels):
        first, last = max(0, c - (size - 1) // 2), min(channels - 1, c + (size - 1) - (size - 1) // 2)
        total[:, c] = squares[:, first : last + 1].sum(1)
    # The attributes are float32 numbers.
    a, b, k = (float(np.float32(v)) for v in (alpha, beta, bias))
    return np.asarray(wide / (k + a / size * total) ** b)


def lrn(make: MakeSession, x: Array, size: int, bfloat16: bool = False, opset: int = 13, **attrs: float) -> None:
    kind = "bfloat16" if bfloat16 else x.dtype.name
    # Inside: about `size` + 6 roundings of the base, whose power amplifies them by beta (at most 2 here), and a power
    # within 4 units; the result is rounded once.
    inside = (2 * (size + 6) + 8) * ROUNDING["float64" if kind == "float64" else "float32"]
    tolerance = {"rtol": inside + 2 * ROUNDING[kind], "atol": 2.0**-24 if kind == "float16" else 0.0}
    y = expected(x, size, **attrs).astype(x.dtype)
    given_attrs: dict[str, Any] = {"size": size, **attrs}
    check(make, "LRN", [x], given_attrs, opset=opset, expected=[y], bfloat16=bfloat16, **tolerance)


STRONG = {"alpha": 0.5, "beta": 0.75, "bias": 2.0}  # the default alpha hides the window


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64])
@pytest.mark.parametrize("size", [1, 3, 5, 9])
@pytest.mark.parametrize("shape", [(2, 7, 5, 5), (1, 96, 8, 8), (1, 3, 1, 1), (3, 1, 2, 4), (2, 20, 3, 8)], ids=str)
def test_lrn(ep_session: MakeSession, shape: tuple[int, ...], size: int, dtype: type) -> None:
    lrn(ep_session, sample(shape, dtype), size, **STRONG)


def test_other_attributes(ep_session: MakeSession) -> None:
    x = sample((2, 9, 4, 4))
    for opset in (7, 13):
        lrn(ep_session, x, 5, opset=opset)
        lrn(ep_session, x, 5, opset=opset, alpha=0.3, beta=0.5, bias=1.5)
        lrn(ep_session, x, 3, opset=opset, alpha=1.0, beta=2.0)
        lrn(ep_session, x, 4, opset=opset, **STRONG)  # an even window reaches one channel farther behind


def test_bfloat16(ep_session: MakeSession) -> None:
    x = in_bfloat16(sample((2, 12, 4, 8)))
    lrn(ep_session, x, 5, bfloat16=True, **STRONG)


def test_as_onnx_runtime(ep_session: MakeSession) -> None:
    # Both are float32: each within the bound above, of about 30 units.
    check(ep_session, "LRN", [sample((2, 16, 13, 13))], {"size": 5, **STRONG}, opset=13, rtol=2 * 30 * 2.0**-24)


def test_threads_that_walk_many_channels(ep_session: MakeSession) -> None:
    # Large enough that a thread takes several channels, whose number no walk divides.
    lrn(ep_session, sample((1, 37, 160, 160), np.float32), 5, **STRONG)
    lrn(ep_session, sample((1, 37, 160, 160), np.float32), 7, **STRONG)


def test_empty(ep_session: MakeSession) -> None:
    for shape in ((0, 3, 2, 2), (2, 3, 0, 2)):
        check(ep_session, "LRN", [sample(shape)], {"size": 5}, expected=[sample(shape)])


@quick
@given(
    shape=st.lists(st.integers(1, 12), min_size=3, max_size=5),
    size=st.integers(1, 8),
    dtype=st.sampled_from([np.float32, np.float16]),
)
def test_any_shape(ep_session: MakeSession, shape: list[int], size: int, dtype: type) -> None:
    lrn(ep_session, sample(shape, dtype), size, **STRONG)
