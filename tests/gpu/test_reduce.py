"""The ten Reduce operators against ONNX Runtime's CPU provider, or NumPy in float64 where that has no kernel."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.gpu.single_op import MakeSession, check, ints, quick, sample

Array = np.ndarray

REFERENCE = {
    "ReduceSum": lambda x, **k: x.sum(**k),
    "ReduceMean": lambda x, **k: x.mean(**k),
    "ReduceMax": lambda x, **k: x.max(**k),
    "ReduceMin": lambda x, **k: x.min(**k),
    "ReduceProd": lambda x, **k: x.prod(**k),
    "ReduceL1": lambda x, **k: np.abs(x).sum(**k),
    "ReduceL2": lambda x, **k: np.sqrt((x * x).sum(**k)),
    "ReduceSumSquare": lambda x, **k: (x * x).sum(**k),
    "ReduceLogSum": lambda x, **k: np.log(x.sum(**k)),
    "ReduceLogSumExp": lambda x, **k: np.log(np.exp(x).sum(**k)),
}
# Shapes that reach every kernel: short, medium and long rows, columns with and without vectors, split rows and
# columns, several reduced runs, and runs that begin at no vector boundary.
CASES = [
    ((4, 3), (1,)),
    ((700, 5), (1,)),
    ((33, 300), (1,)),
    ((5, 7001), (1,)),
    ((300001,), (0,)),
    ((2, 40000, 3), (1,)),
    ((3, 50, 64), (1,)),
    ((3, 50, 7), (1,)),
    ((20000, 8), (0,)),
    ((4, 16, 7, 7), (2, 3)),
    ((4, 16, 9, 9), (0, 2, 3)),
    ((3, 4, 5, 6), (0, 2)),
    ((2, 3, 4, 5), (0, 1, 2, 3)),
    ((1, 3, 1), (0, 2)),
    ((6, 1), (1,)),
]


def numbers(op: str, shape: tuple[int, ...], dtype: type) -> Array:
    x = sample(shape, dtype)
    if op == "ReduceProd":  # signs and a few factors: rounding would swamp a long product of arbitrary numbers
        x = np.where(x > 0, 1, -1).astype(dtype)
        x.reshape(-1)[:: max(1, x.size // 8)] *= np.asarray(1.5, dtype) if x.dtype.kind == "f" else np.asarray(2, dtype)
        return x
    return np.asarray(np.abs(x) + 0.5, dtype) if op == "ReduceLogSum" else x


def attributes(axes: tuple[int, ...] | None, keep: int) -> dict[str, object]:
    return {"axes": list(axes), "keepdims": keep} if axes is not None else {"keepdims": keep}


@pytest.mark.parametrize("op", REFERENCE)
@pytest.mark.parametrize(("shape", "axes"), CASES)
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64])
def test_floats(ep_session: MakeSession, op: str, shape: tuple[int, ...], axes: tuple[int, ...], dtype: type) -> None:
    x = numbers(op, shape, dtype)
    exact = REFERENCE[op](x.astype(np.float64), axis=axes, keepdims=True)
    with np.errstate(over="ignore"):
        expected = np.asarray(exact).astype(dtype)
    if not np.isfinite(expected).all():
        pytest.skip("beyond the type")
    # Sums of up to 3e5 terms of magnitude 1 in float32, in pairs or chains of at most a few hundred: the error is below
    # 1e-5 of the sum of magnitudes. float16 rounds once, at the end.
    scale = float(np.abs(x.astype(np.float64)).sum(axis=axes).max()) if op in ("ReduceSum", "ReduceMean") else 1.0
    scale /= np.prod([shape[a] for a in axes]) if op == "ReduceMean" else 1
    rtol, atol = {np.float32: (2e-5, 1e-6), np.float16: (1e-3, 1e-4), np.float64: (1e-12, 1e-12)}[dtype]
    check(
        ep_session, op, [x], attributes(axes, 1), opset=11, rtol=rtol, atol=atol * max(scale, 1.0), expected=[expected]
    )


@pytest.mark.parametrize("op", REFERENCE)
@pytest.mark.parametrize(("shape", "axes"), [((33, 300), (1,)), ((5, 40, 8), (1,))])
def test_bfloat16(ep_session: MakeSession, op: str, shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    x = numbers(op, shape, np.float32)
    x = (x.view(np.uint32) & 0xFFFF0000).view(np.float32)  # exactly representable
    expected = np.asarray(REFERENCE[op](x.astype(np.float64), axis=axes, keepdims=True)).astype(np.float32)
    if op == "ReduceSum":
        inputs, attrs = [x, ints(*axes)], {"keepdims": 1}
    else:
        inputs, attrs = [x], attributes(axes, 1)
    # One rounding to 8 significant bits; sums that cancel are compared on the scale of their terms.
    tolerances = {"rtol": 2**-8, "atol": 1e-4}
    check(ep_session, op, inputs, attrs, opset=13, constant=[1], expected=[expected], bfloat16=True, **tolerances)


@pytest.mark.parametrize("op", [op for op in REFERENCE if op not in ("ReduceLogSumExp", "ReduceLogSum")])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize(("shape", "axes"), [((33, 300), (1,)), ((5, 40, 8), (1,)), ((100000,), (0,))])
def test_integers(ep_session: MakeSession, op: str, dtype: type, shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    x = numbers(op, shape, dtype)
    exact = REFERENCE[op](x.astype(np.float64), axis=axes, keepdims=False)
    check(ep_session, op, [x], attributes(axes, 0), opset=11, expected=[np.trunc(exact).astype(dtype)])


@pytest.mark.parametrize("op", ["ReduceMax", "ReduceMin"])
@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.bool_])
def test_narrow_extrema(ep_session: MakeSession, op: str, dtype: type) -> None:
    x = sample((9, 100), dtype)
    check(ep_session, op, [x, ints(1)], opset=20, constant=[1], expected=[REFERENCE[op](x, axis=1, keepdims=True)])
    check(ep_session, op, [x, ints(0)], opset=20, constant=[1], expected=[REFERENCE[op](x, axis=0, keepdims=True)])


@pytest.mark.parametrize("op", REFERENCE)
def test_axes_as_input(ep_session: MakeSession, op: str) -> None:
    x = numbers(op, (3, 4, 5), np.float32)
    check(ep_session, op, [x, ints(-1, 0)], {"keepdims": 0}, opset=18, rtol=1e-5, atol=1e-5)
    check(ep_session, op, [x], {"keepdims": 1}, opset=18, rtol=1e-5, atol=1e-5)
    check(ep_session, op, [x, ints()], {"noop_with_empty_axes": 1}, opset=18, rtol=1e-5, atol=1e-6)
    check(ep_session, op, [numbers(op, (), np.float32)], opset=18, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("op", REFERENCE)
def test_nothing_to_reduce(ep_session: MakeSession, op: str) -> None:
    empty = np.zeros((2, 0, 3), np.float32)
    check(ep_session, op, [empty, ints(1)], opset=18)
    check(ep_session, op, [empty, ints(0)], opset=18)
    check(ep_session, op, [empty], {"keepdims": 0}, opset=18)


@pytest.mark.parametrize("op", ["ReduceMax", "ReduceMin", "ReduceSum", "ReduceLogSumExp"])
@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
def test_special_values(ep_session: MakeSession, op: str, special: float) -> None:
    x = sample((4, 1000))
    x[0, 0] = x[1, 999] = x[2, 500] = special
    expected = REFERENCE[op](x.astype(np.float64), axis=1, keepdims=True).astype(np.float32)
    check(ep_session, op, [x], {"axes": [1]}, opset=11, rtol=1e-5, atol=1e-3, expected=[expected])
    check(
        ep_session,
        op,
        [np.full((3, 40), special, np.float32)],
        {"axes": [1]},
        opset=11,
        expected=[np.full((3, 1), special, np.float32)],
    )


def test_log_sum_exp_does_not_overflow(ep_session: MakeSession) -> None:
    x = np.array([[1000.0, 1000.0], [-1000.0, -1000.0]], np.float32)
    expected = x[:, :1] + np.float32(np.log(2))
    check(ep_session, "ReduceLogSumExp", [x], {"axes": [1]}, opset=11, rtol=1e-6, expected=[expected])


@given(st.data())
@quick
def test_shapes(ep_session: MakeSession, data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.sampled_from([1, 2, 3, 8, 17, 64, 130]), min_size=1, max_size=4)))
    axes = data.draw(st.lists(st.integers(0, len(shape) - 1), unique=True, min_size=1))
    op = data.draw(st.sampled_from(["ReduceSum", "ReduceMax", "ReduceL2"]))
    dtype = data.draw(st.sampled_from([np.float32, np.float64]))
    x = sample(shape, dtype)
    expected = np.asarray(REFERENCE[op](x.astype(np.float64), axis=tuple(axes), keepdims=True)).astype(dtype)
    scale = float(np.sqrt(np.prod([shape[a] for a in axes])))  # of a sum of normal values
    rtol, atol = (1e-5, 1e-5 * scale) if dtype is np.float32 else (1e-11, 1e-11 * scale)
    check(ep_session, op, [x], attributes(tuple(axes), 1), opset=11, rtol=rtol, atol=atol, expected=[expected])
