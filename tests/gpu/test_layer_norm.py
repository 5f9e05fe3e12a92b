"""Layer and RMS normalization, with and without a residual, against NumPy in float64."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from tests.gpu.single_op import MakeSession, quick

Array = np.ndarray
EPSILON = 1e-5
TYPES = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}
TYPES["float64"] = TensorProto.DOUBLE
UNIT = {"float32": 2.0**-24, "float64": 2.0**-53, "float16": 2.0**-11, "bfloat16": 2.0**-8}


def normal(*shape: int, seed: int = 0, mean: float = 0) -> Array:
    return np.random.default_rng([seed, *shape]).normal(mean, 1.5, shape)


def rounded(x: Array, dtype: str) -> Array:
    return x.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)).astype(np.float64)


def session(
    make: MakeSession, op: str, domain: str, present: list[bool], outputs: list[str], attrs: dict[str, Any], dtype: str
) -> Any:
    """A session whose inputs are named i0, i1, ... and are float64, cast to `dtype` before the node and back after."""
    names = [f"i{i}" if p else "" for i, p in enumerate(present)]
    while not names[-1]:  # ONNX Runtime 1.31.1 crashes on a trailing empty name
        names.pop()
    nodes = [helper.make_node("Cast", [n], [n + "t"], to=TYPES[dtype]) for n in names if n]
    inner = [n + "t" if n else "" for n in names]
    nodes.append(helper.make_node(op, inner, [o + "t" if o else "" for o in outputs], domain=domain, **attrs))
    nodes += [helper.make_node("Cast", [o + "t"], [o], to=TensorProto.DOUBLE) for o in outputs if o]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "g",
        [info(n, TensorProto.DOUBLE, None) for n in names if n],
        [info(o, TensorProto.DOUBLE, None) for o in outputs if o],
    )
    opset = 23 if op == "RMSNormalization" else 17
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return make(helper.make_model(graph, opset_imports=imports, ir_version=10))


def compare(found: Array, exact: Array, size: Array | float, dtype: str) -> None:
    """Within one rounding to `dtype` and 32 float32 roundings of `size`, what the terms of the result reach: the sum of
    two or three operands, mean, difference, variance, root, quotient, product and sum round once or twice each.
    """
    inside = 32 * (2.0**-53 if dtype == "float64" else 2.0**-24)
    bound = 1.01 * UNIT[dtype] * np.abs(exact) + inside * (np.abs(exact) + size)
    if dtype == "float16":
        bound = bound + 2.0**-25  # half the spacing of the smallest numbers
    assert found.shape == exact.shape, f"{found.shape} instead of {exact.shape}"
    error = np.abs(found - exact)
    assert (error <= bound).all(), f"error {error.max()} at {np.unravel_index((error - bound).argmax(), error.shape)}"


def statistics(s: Array, axis: int, rms: bool) -> tuple[Array, Array]:
    axes = tuple(range(axis % s.ndim, s.ndim))
    mean = np.zeros(()) if rms else s.mean(axes, keepdims=True)
    return mean, 1 / np.sqrt(((s - mean) ** 2).mean(axes, keepdims=True) + np.float64(np.float32(EPSILON)))


def check_norm(
    make: MakeSession,
    shape: tuple[int, ...],
    axis: int = -1,
    dtype: str = "float32",
    *,
    op: str = "LayerNormalization",
    bias: bool = True,
    want_statistics: bool = False,
    mean: float = 0,
    scale_shape: tuple[int, ...] | None = None,
) -> None:
    rms = op != "LayerNormalization"
    x = rounded(normal(*shape, mean=mean), dtype)
    gain_shape = shape[axis % len(shape) :] if scale_shape is None else scale_shape
    gain, shift = (rounded(normal(*gain_shape, seed=i), dtype) for i in (1, 2))
    outputs = ["y"] + ([] if not want_statistics else ["inv"] if rms else ["mean", "inv"])
    attrs = {"axis": axis, "epsilon": EPSILON}
    run = session(make, op, "", [True, True, bias], outputs, attrs, dtype)
    found = dict(zip(outputs, run.run(None, {"i0": x, "i1": gain} | ({"i2": shift} if bias else {})), strict=True))
    centre, inv = statistics(x, axis, rms)
    y = (x - centre) * inv * gain + (shift if bias else 0)
    # Everything is relative to the largest value of the row, large means included.
    compare(found["y"], y, (np.abs(x).max() * inv) * np.abs(gain).max() + 4, dtype)
    if want_statistics:
        compare(found["inv"], np.broadcast_to(inv, found["inv"].shape), np.abs(x).max() * inv * inv, "float32")
        if not rms:
            compare(found["mean"], centre, np.abs(x).max(), "float32")


# One length for every kernel, and lengths that are not whole vectors.
@pytest.mark.parametrize("dtype", list(TYPES))
@pytest.mark.parametrize("n", [1, 5, 64, 100, 128, 256, 384, 768, 1000, 1024, 4096, 4100, 8192, 12000, 32768, 40001])
def test_lengths(ep_session: MakeSession, n: int, dtype: str) -> None:
    check_norm(ep_session, (3, n), dtype=dtype, want_statistics=n % 3 == 0)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("n", [7, 64, 768, 1000, 3072])
def test_many_rows(ep_session: MakeSession, n: int, dtype: str) -> None:
    check_norm(ep_session, (2101, n), dtype=dtype, bias=n != 768)


def test_large_mean_keeps_its_digits(ep_session: MakeSession) -> None:
    # E[x^2] - E[x]^2 in float32 would be off by tens of percent; the centred variance is not.
    for n in (256, 768, 5000, 40000):
        check_norm(ep_session, (4, n), mean=1000, want_statistics=True)


@pytest.mark.parametrize("axis", [0, 1, -2, 3])
def test_axes(ep_session: MakeSession, axis: int) -> None:
    check_norm(ep_session, (2, 3, 4, 5), axis, want_statistics=True)


def test_scale_shorter_than_the_row(ep_session: MakeSession) -> None:
    for scale_shape in ((5,), (1, 5), (1,), ()):
        check_norm(ep_session, (3, 4, 5), 1, op="RMSNormalization", bias=False, scale_shape=scale_shape)


@pytest.mark.parametrize("op", ["RMSNormalization", "SimplifiedLayerNormalization"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_rms(ep_session: MakeSession, op: str, dtype: str) -> None:
    for shape, axis in (((3, 4096), -1), ((2, 5, 33), -1), ((2, 3, 4), 1)):
        simplified = op == "SimplifiedLayerNormalization"
        check_norm(ep_session, shape, axis, dtype, op=op, bias=False, want_statistics=simplified)


def test_nan_and_inf_stay_in_their_row(ep_session: MakeSession) -> None:
    for n in (64, 768, 5000):
        x = normal(4, n)
        x[1, n // 2], x[2, 0] = np.nan, np.inf
        run = session(
            ep_session, "LayerNormalization", "", [True, True], ["y"], {"axis": -1, "epsilon": EPSILON}, "float32"
        )
        (y,) = run.run(None, {"i0": x, "i1": np.ones(n)})
        assert np.isnan(y[1:3]).all() and np.isfinite(y[[0, 3]]).all()


def check_skip(
    make: MakeSession,
    shape: tuple[int, ...],
    skip_shape: tuple[int, ...],
    dtype: str,
    rms: bool,
    beta: bool,
    bias: bool,
) -> None:
    x, skip = rounded(normal(*shape), dtype), rounded(normal(*skip_shape, seed=1), dtype)
    gain, shift, extra = (rounded(normal(shape[-1], seed=i), dtype) for i in (2, 3, 4))
    operands = [x, skip, gain, extra if bias else None] if rms else [x, skip, gain, shift if beta else None]
    operands += [] if rms else [extra if bias else None]
    op = "SkipSimplifiedLayerNormalization" if rms else "SkipLayerNormalization"
    present = [o is not None for o in operands]
    run = session(make, op, "com.microsoft", present, ["y", "", "", "s"], {"epsilon": EPSILON}, dtype)
    y, total = run.run(None, {f"i{i}": o for i, o in enumerate(operands) if o is not None})
    s = x + skip + (extra if bias else 0)
    centre, inv = statistics(s, -1, rms)
    exact = (s - centre) * inv * gain + (shift if beta and not rms else 0)
    compare(total, s, np.abs(s).max() + 4, dtype)
    compare(y, exact, (np.abs(s).max() * inv + 4) * np.abs(gain).max() + 4, dtype)


@pytest.mark.parametrize("rms", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("n", [33, 384, 768, 4096, 33000])
def test_residual(ep_session: MakeSession, n: int, dtype: str, rms: bool) -> None:
    check_skip(ep_session, (2, 3, n), (2, 3, n), dtype, rms, beta=True, bias=False)
    check_skip(ep_session, (2, 3, n), (2, 3, n), dtype, rms, beta=False, bias=True)


@pytest.mark.parametrize("skip_shape", [(3, 64), (1, 3, 64)])
def test_residual_is_repeated_over_the_batch(ep_session: MakeSession, skip_shape: tuple[int, ...]) -> None:
    check_skip(ep_session, (2, 3, 64), skip_shape, "float32", False, beta=True, bias=True)


@quick
@given(data=st.data())
def test_any_shape(ep_session: MakeSession, data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 30), min_size=1, max_size=4)))
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    check_norm(
        ep_session,
        shape,
        axis,
        data.draw(st.sampled_from(list(TYPES))),
        bias=data.draw(st.booleans()),
        want_statistics=True,
    )


def test_empty(ep_session: MakeSession) -> None:
    run = session(
        ep_session, "LayerNormalization", "", [True, True], ["y"], {"axis": -1, "epsilon": EPSILON}, "float32"
    )
    (y,) = run.run(None, {"i0": np.zeros((0, 8)), "i1": np.ones(8)})
    assert y.shape == (0, 8)
