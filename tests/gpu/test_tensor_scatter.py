"""TensorScatter, exactly as on the CPU, and BitCast."""

from __future__ import annotations

import numpy as np
import pytest

from tests.gpu.single_op import MOVED, MakeSession, check, ints, sample


@pytest.mark.parametrize("dtype", MOVED)
@pytest.mark.parametrize("mode", ["linear", "circular"])
def test_tensor_scatter(ep_session: MakeSession, mode: str, dtype: type) -> None:
    # Rows of 1 to 64 elements: accesses of 1, 2, 4, 8 and 16 bytes.
    for batch, heads, capacity, steps, size in [(1, 1, 4, 1, 5), (2, 3, 9, 4, 1), (3, 2, 8, 8, 64), (2, 1, 5, 2, 6)]:
        cache, update = sample((batch, heads, capacity, size), dtype), sample((batch, heads, steps, size), dtype, 1)
        last = capacity if mode == "circular" else capacity - steps + 1
        first = np.random.default_rng(3).integers(0, last, batch)
        check(ep_session, "TensorScatter", [cache, update, first], {"mode": mode}, opset=24)
        check(ep_session, "TensorScatter", [cache, update], {"mode": mode}, opset=24)


def test_tensor_scatter_along_another_axis(ep_session: MakeSession) -> None:
    cache, update = sample((2, 7, 3, 4)), sample((2, 2, 3, 4), seed=1)
    check(ep_session, "TensorScatter", [cache, update, ints(5, 0)], {"axis": 1}, opset=24)


PAIRS = [
    *((np.float32, np.int32), (np.uint32, np.float32), (np.float64, np.int64), (np.float16, np.uint16)),
    *((np.int8, np.uint8), (np.bool_, np.uint8)),
]


@pytest.mark.parametrize(("source", "target"), PAIRS)
@pytest.mark.parametrize("shape", [(), (5,), (0, 3), (33, 70)])
def test_bit_cast(ep_session: MakeSession, source: type, target: type, shape: tuple[int, ...]) -> None:
    from onnx import helper

    x = sample(shape, source)
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(target))
    check(ep_session, "BitCast", [np.asarray(x)], {"to": kind}, opset=26, expected=[np.asarray(x).view(target)])
