"""moment_norm: layer normalization of flax, as jax2tf and tf2onnx write it."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.rules.rule_testing import Case, contract, fires, graph, ops, refused, weight

HEAD = "(float[B,6,16] x) => (float[B,6,16] y)"
BODY = (
    "s1 = ReduceSum<keepdims=0>(x, axis) xx = Mul(x, x) s2 = ReduceSum<keepdims=0>(xx, axis) m2 = Mul(s2, part) "
    "m = Mul(s1, part) mm = Mul(m, m) d = Sub(m2, mm) v = Max(zero, d) v1 = Reshape(v, kept) e = Add(v1, eps) "
    "r = Sqrt(e) i = Reciprocal(r) k = Mul(i, scale) m1 = Reshape(m, kept) c = Sub(x, m1) n = Mul(c, k) "
    "y = Add(n, bias)"
)
CONSTANTS = {
    "axis": np.array([2]),
    "part": np.float32(1 / 16),
    "zero": np.float32(0),
    "kept": np.array([0, 6, 1]),
    "eps": np.float32(1e-6),
    "scale": weight(1, 1, 16),
    "bias": weight(1, 1, 16, seed=1),
    "one": np.float32(1),
    "last": np.array([-1]),
    "two": np.float32(2),
}
SYMBOLS = {"B": 3}
# The variance loses digits in the written form: inputs have a mean of about 0 and a deviation of about 2.
CLOSE = {"rtol": 1e-4, "atol": 1e-4, "symbols": SYMBOLS}


def made(body: str = BODY, head: str = HEAD, opset: int = 17, **more: np.ndarray) -> onnx.ModelProto:
    weights = {k: v for k, v in {**CONSTANTS, **more}.items() if f", {k})" in body or f"({k}," in body}
    return graph(f"{head} {{ {body} }}", opset, **weights)


test_contract = contract(Case("moment_norm", made, "d"))


def test_one_operator() -> None:
    assert ops(fires(made(), "moment_norm", **CLOSE)) == {"LayerNormalization": 1}


def test_older_opset() -> None:
    assert ops(fires(made(opset=13), "moment_norm", **CLOSE)) == {"cuvil::LayerNorm": 1}


@pytest.mark.parametrize(
    "change",
    [
        {"v = Max(zero, d) v1 = Reshape(v, kept)": "v1 = Reshape(d, kept)"},
        {"Max(zero, d)": "Max(d, zero)"},
        {"i = Reciprocal(r)": "i = Div(one, r)"},
        {"k = Mul(i, scale)": "", "n = Mul(c, k)": "n0 = Mul(c, i) n = Mul(n0, scale)"},
        {"k = Mul(i, scale)": "", "n = Mul(c, k)": "n = Mul(c, i)"},
        {"n = Mul(c, k) y = Add(n, bias)": "y = Mul(k, c)"},
        {"xx = Mul(x, x)": "xx = Pow(x, two)"},
        {"Reshape(v, kept)": "Unsqueeze(v, last)", "Reshape(m, kept)": "Unsqueeze(m, last)"},
        {
            "s1 = ReduceSum<keepdims=0>(x, axis)": "m = ReduceMean<axes=[-1], keepdims=1>(x)",
            "s2 = ReduceSum<keepdims=0>(xx, axis) m2 = Mul(s2, part) m = Mul(s1, part)": (
                "m2 = ReduceMean<axes=[-1], keepdims=1>(xx)"
            ),
            "v1 = Reshape(v, kept) e = Add(v1, eps)": "e = Add(v, eps)",
            "m1 = Reshape(m, kept) c = Sub(x, m1)": "c = Sub(x, m)",
        },
    ],
)
def test_other_writings(change: dict[str, str]) -> None:
    body = BODY
    for old, new in change.items():
        assert old in body
        body = body.replace(old, new)
    assert ops(fires(made(body), "moment_norm", **CLOSE)) == {"LayerNormalization": 1}


@pytest.mark.parametrize(
    ("change", "constants", "reason"),
    [
        ({}, {"part": np.float32(1 / 15)}, ""),
        ({"Max(zero, d)": "Max(one, d)"}, {}, ""),
        ({"d = Sub(m2, mm)": "d = Sub(mm, m2)"}, {}, ""),
        ({"xx = Mul(x, x)": "xx = Mul(x, scale)"}, {}, ""),
        ({"i = Reciprocal(r)": "i = Neg(r)"}, {}, ""),
        ({}, {"eps": np.float32(-1e-6)}, "epsilon is -1e-06"),
        ({"c = Sub(x, m1)": "c = Sub(x, v1)"}, {}, "not the mean"),
        ({"c = Sub(x, m1)": "c = Sub(m1, x)"}, {}, "not multiplied with x - mean"),
        ({"n = Mul(c, k)": "n = Add(c, k)"}, {}, "not multiplied with x - mean"),
        ({"i = Reciprocal(r)": "i = Div(one, r)"}, {"one": np.ones((1, 1, 1, 1), np.float32)}, ""),
    ],
)
def test_near_misses(change: dict[str, str], constants: dict[str, np.ndarray], reason: str) -> None:
    body = BODY
    for old, new in change.items():
        assert old in body
        body = body.replace(old, new)
    refused(made(body, **constants), "moment_norm", reason)


def test_another_axis() -> None:
    # magika's first norm: over the middle axis.
    sizes = {"axis": np.array([1]), "part": np.float32(1 / 6), "kept": np.array([0, 1, 16])}
    refused(made(**sizes), "moment_norm", "")


def test_axis_brought_back_elsewhere_is_refused() -> None:
    head = "(float[4,4,4] x) => (float[4,4,4] y)"
    sizes = {"part": np.float32(1 / 4), "kept": np.array([4, 1, 4]), "scale": weight(4), "bias": weight(4)}
    refused(made(head=head, **sizes), "moment_norm", "brought back as the last")
