"""Batch normalization and per-channel constants go into the weights before them, which others may share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from cuvil_onnx.passes.computed import LAZY_BYTES, Computed
from tests.passes.pass_testing import basic, made, normal, ops, same

# Weights are folded in double precision and rounded once: one unit in the last place a weight, summed over few terms.
RTOL, ATOL = 2e-5, 2e-5


def parameters(channels: int) -> dict[str, np.ndarray]:
    return {
        "s": normal(channels, seed=1),
        "b": normal(channels, seed=2),
        "m": normal(channels, seed=3),
        "v": np.abs(normal(channels, seed=4)) + np.float32(0.1),
    }


@pytest.mark.parametrize(
    ("layer", "weights", "x", "channels", "out"),
    [
        ("Conv(x, w)", {"w": normal(6, 4, 3, 3)}, (2, 4, 5, 5), 6, "2,6,3,3"),
        ("Conv<group=2>(x, w, c)", {"w": normal(6, 2, 3, 3), "c": normal(6)}, (2, 4, 5, 5), 6, "2,6,3,3"),
        ("ConvTranspose(x, w)", {"w": normal(4, 6, 2, 2)}, (2, 4, 3, 3), 6, "2,6,4,4"),
        ("ConvTranspose<group=2>(x, w, c)", {"w": normal(4, 3, 2, 2), "c": normal(6)}, (2, 4, 3, 3), 6, "2,6,4,4"),
        ("Gemm(x, w, c)", {"w": normal(4, 6), "c": normal(6)}, (3, 4), 6, "3,6"),
        ("Gemm<transB=1, alpha=0.5, beta=2.0>(x, w, c)", {"w": normal(6, 4), "c": normal(1, 6)}, (3, 4), 6, "3,6"),
    ],
)
def test_folds(layer: str, weights: dict[str, Any], x: tuple[int, ...], channels: int, out: str) -> None:
    shape = ",".join(map(str, x))
    body = f"t = {layer} y = BatchNormalization(t, s, b, m, v)"
    model = made(f"(float[{shape}] x) => (float[{out}] y) {{ {body} }}", **weights, **parameters(channels))
    result = basic(model)
    assert sum(ops(result.model).values()) == 1
    same(model, result, RTOL, ATOL, x=normal(*x, seed=9))


def test_another_reader_of_the_convolution_forbids_it() -> None:
    body = "t = Conv(x, w) n = BatchNormalization(t, s, b, m, v) y = Add(n, t)"
    model = made(f"(float[1,4,5,5] x) => (float[1,6,3,3] y) {{ {body} }}", w=normal(6, 4, 3, 3), **parameters(6))
    result = basic(model)
    assert ops(result.model) == {"Conv": 1, "Mul": 1, "Add": 2}, "the normalization becomes Mul and Add instead"
    same(model, result, RTOL, ATOL, x=normal(1, 4, 5, 5))


def test_shared_weights_are_copied() -> None:
    body = "t = Conv(x, w) y = BatchNormalization(t, s, b, m, v) z = Conv(x, w)"
    model = made(
        f"(float[1,4,5,5] x) => (float[1,6,3,3] y, float[1,6,3,3] z) {{ {body} }}",
        w=normal(6, 4, 3, 3),
        **parameters(6),
    )
    same(model, basic(model), RTOL, ATOL, x=normal(1, 4, 5, 5))


def test_batch_norm_in_training_mode_stays() -> None:
    body = "y, rm, rv = BatchNormalization<training_mode=1>(x, s, b, m, v)"
    model = made(f"(float[2,6,3] x) => (float[2,6,3] y) {{ {body} }}", **parameters(6))
    result = basic(model)
    assert ops(result.model) == {"BatchNormalization": 1}
    assert any(r.rule == "batch_norm" for r in result.report.trace.refused)


@pytest.mark.parametrize(
    ("op", "const"),
    [
        ("Mul(t, k)", normal(6, 1, 1)),
        ("Add(k, t)", normal(1, 6, 1, 1)),
        ("Sub(t, k)", normal(6, 1, 1)),
        ("Div(t, k)", np.float32(3)),
    ],
)
def test_constants_per_channel_fold(op: str, const: np.ndarray) -> None:
    model = made(
        f"(float[1,4,5,5] x) => (float[1,6,3,3] y) {{ t = Conv(x, w) y = {op} }}", w=normal(6, 4, 3, 3), k=const
    )
    result = basic(model)
    assert ops(result.model) == {"Conv": 1}
    same(model, result, RTOL, ATOL, x=normal(1, 4, 5, 5))


@pytest.mark.parametrize(
    ("op", "const", "out"),
    [
        ("Mul(t, k)", np.full((6, 1, 1), np.inf, np.float32), "1,6,3,3"),  # 0 * inf would be NaN inside the weights
        ("Div(t, k)", np.float32(0), "1,6,3,3"),
        ("Div(k, t)", np.float32(1), "1,6,3,3"),
        ("Add(t, k)", normal(3), "1,6,3,3"),  # along the width, not the channels
        ("Add(t, k)", normal(2, 6, 1, 1), "2,6,3,3"),  # enlarges the result
        ("Mul(t, k)", np.full((6, 1, 1), 1e38, np.float32), "1,6,3,3"),  # overflows
    ],
)
def test_constants_that_must_not_fold(op: str, const: np.ndarray, out: str) -> None:
    weight = normal(6, 4, 3, 3, scale=10)
    model = made(f"(float[1,4,5,5] x) => (float[{out}] y) {{ t = Conv(x, w) y = {op} }}", w=weight, k=const)
    result = basic(model)
    assert sum(ops(result.model).values()) == 2
    same(model, result, x=normal(1, 4, 5, 5, scale=10))


def folded_weights(model: Any) -> list[str]:
    return [tensor.name for tensor in model.graph.initializer if len(tensor.dims) == 4]


def test_layers_with_all_constants_in_common_share_the_folded_ones() -> None:
    body = "t = Conv(x, w) u = BatchNormalization(t, s, b, m, v) r = Conv(u, w) y = BatchNormalization(r, s, b, m, v)"
    weights = {"w": normal(4, 4, 1, 1), **parameters(4)}
    model = made(f"(float[1,4,5,5] x) => (float[1,4,5,5] y) {{ {body} }}", **weights)
    result = basic(model, skip=["initializer_dedup"])
    assert len(folded_weights(result.model)) == 1
    same(model, result, 1e-4, 1e-4, x=normal(1, 4, 5, 5))  # two layers, one after the other


@pytest.mark.parametrize("other", ["Conv<group=2>(u, w)", "Conv(u, w, c)"])
def test_one_difference_between_layers_keeps_them_apart(other: str) -> None:
    """`w` is [4, 2, 1, 1]: with one group it reads two channels, with two groups four."""
    first = "Conv(h, w)" if "group" in other else "Conv<group=2>(x, w)"
    second = other if "group" in other else other.replace("Conv", "Conv<group=2>")
    head = "h = Slice(x, zero, two, one)" if "group" in other else ""
    body = f"{head} t = {first} u = BatchNormalization(t, s, b, m, v)"
    body += f" r = {second} y = BatchNormalization(r, s, b, m, v)"
    weights = {"w": normal(4, 2, 1, 1), "c": normal(4, seed=7), **parameters(4)}
    weights |= {"zero": np.array([0]), "two": np.array([2]), "one": np.array([1])}
    model = made(f"(float[1,4,5,5] x) => (float[1,4,5,5] y) {{ {body} }}", **weights)
    same(model, basic(model), 1e-4, 1e-4, x=normal(1, 4, 5, 5))


def test_large_folded_weights_of_a_file_are_computed_when_they_are_written(tmp_path: Path) -> None:
    """Else all weights of a convolutional model would be in memory at once."""
    channels = 512
    body = "t = Conv(x, w) y = BatchNormalization(t, s, b, m, v)"
    weights = {"w": normal(channels, channels, 1, 1), **parameters(channels)}
    assert weights["w"].nbytes == LAZY_BYTES
    model = made(f"(float[1,{channels},2,2] x) => (float[1,{channels},2,2] y) {{ {body} }}", **weights)
    copy = onnx.ModelProto()
    copy.CopyFrom(model)  # saving moves the data out
    onnx.save(copy, tmp_path / "m.onnx", save_as_external_data=True, location="m.data")
    result = basic(tmp_path / "m.onnx", output=tmp_path / "out.onnx")
    held = [v.const_value for v in result.ir_model.graph.initializers.values()]
    assert sum(isinstance(tensor, Computed) for tensor in held) == 1
    same(model, result, 1e-4, 1e-4, x=normal(1, channels, 2, 2))  # sums of 512 products
    (weight,) = [t for t in onnx.load(tmp_path / "out.onnx").graph.initializer if len(t.dims) == 4]
    expected = [t for t in basic(model).model.graph.initializer if len(t.dims) == 4]
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(weight), onnx.numpy_helper.to_array(expected[0]))


def test_a_gemm_with_one_addend_a_row() -> None:
    body = "t = Gemm(x, w, c) y = BatchNormalization(t, s, b, m, v)"
    constants = {"w": normal(3, 4), "c": normal(4, 1), **parameters(4)}
    model = made(f"(float[4,3] x) => (float[4,4] y) {{ {body} }}", **constants)
    result = basic(model)
    assert ops(result.model) == {"Gemm": 1, "Mul": 1, "Add": 1}
    same(model, result, RTOL, ATOL, x=normal(4, 3, seed=9))


@pytest.mark.parametrize("layer", ["Conv", "ConvTranspose"])
@pytest.mark.parametrize(("dtype", "factor"), [("float", 1e38), ("float", 1e-38), ("float16", 1e-4)])
def test_factors_that_cost_sums_or_digits_stay(layer: str, dtype: str, factor: float) -> None:
    kind = {"float": np.float32, "float16": np.float16}[dtype]
    channel = {"k": np.full((1, 2, 1, 1), factor, kind), "w": normal(2, 2, 2, 2, scale=0.1).astype(kind)}
    body = f"t = {layer}(x, w) y = Mul(t, k)"
    size = 2 if layer == "Conv" else 4
    model = made(f"({dtype}[1,2,3,3] x) => ({dtype}[1,2,{size},{size}] y) {{ {body} }}", **channel)
    result = basic(model)
    assert ops(result.model) == {layer: 1, "Mul": 1}
    same(model, result, x=normal(1, 2, 3, 3, scale=3.0).astype(kind))
