"""Operators of com.microsoft that ONNX Runtime's optimizers write, against NumPy in float64 and ONNX Runtime."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.gpu.bounds import assert_sum_of_products
from tests.gpu.single_op import Array, MakeSession, reference, sample

TYPES = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}
NO_BFLOAT16 = ["float32", "float16"]  # all that most of these schemas allow
UNIT = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}


def rounded(x: Array, dtype: str) -> Array:
    return x.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)).astype(np.float64)


def node_model(
    op: str,
    inputs: list[Array | onnx.TensorProto | None],
    outputs: list[str],
    attrs: dict[str, Any],
    dtype: str = "float32",
    plain: tuple[str, ...] = (),
) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """float64 inputs are cast to `dtype` before the node, outputs (but those in `plain`) to float64 after it."""
    info = helper.make_tensor_value_info
    nodes, names, values, initializers, feeds = [], [], [], [], {}
    for i, a in enumerate(inputs):
        name = f"x{i}"
        if a is None:
            names.append("")
            continue
        if isinstance(a, onnx.TensorProto):
            a.name = name
            initializers.append(a)
        else:
            feeds[name] = a
            values.append(info(name, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape))
            if a.dtype == np.float64:
                nodes.append(helper.make_node("Cast", [name], [name + "t"], to=TYPES[dtype]))
                name += "t"
        names.append(name)
    while not names[-1]:  # ONNX Runtime 1.31.1 crashes on a trailing empty name
        names.pop()
    inner = [o if o in plain or not o else o + "t" for o in outputs]
    nodes.append(helper.make_node(op, names, inner, domain="com.microsoft", name="node", **attrs))
    nodes += [helper.make_node("Cast", [o + "t"], [o], to=TensorProto.DOUBLE) for o in outputs if o and o not in plain]
    results = [onnx.ValueInfoProto(name=o) for o in outputs if o]
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph(nodes, "g", values, results, initializers)
    return helper.make_model(graph, opset_imports=imports, ir_version=10), feeds


def run(
    make: MakeSession, op: str, inputs: list[Any], outputs: list[str], attrs: dict[str, Any], *rest: Any
) -> list[Array]:
    """The node's outputs, the same bits in a second run."""
    m, feeds = node_model(op, inputs, outputs, attrs, *rest)
    session = make(m)
    first, second = session.run(None, feeds), session.run(None, feeds)
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a, b)
    return first


def close(found: Array, exact: Array, dtype: str, inside: float) -> None:
    """One rounding to `dtype`, and an error `inside` of the float32 computation."""
    assert found.shape == exact.shape, f"{found.shape} instead of {exact.shape}"
    bound = 1.01 * UNIT[dtype] * np.abs(exact) + inside + (2.0**-25 if dtype == "float16" else 0)
    assert (np.abs(found - exact) <= bound).all(), np.abs(found - exact).max()


EMBED_PARTS = ["segments", "mask", "positions", "one row of positions", ""]


@pytest.mark.parametrize("dtype", NO_BFLOAT16)
@pytest.mark.parametrize("parts", EMBED_PARTS)
@pytest.mark.parametrize("hidden", [8, 33, 768])
def test_embed_layer_norm(ep_session: MakeSession, hidden: int, parts: str, dtype: str) -> None:
    rng = np.random.default_rng(hidden)
    batch, seq = 3, 5
    ids = rng.integers(0, 11, (batch, seq)).astype(np.int32)
    word, position, segment = (rounded(rng.standard_normal((n, hidden)), dtype) for n in (11, 9, 2))
    gamma, beta = rounded(rng.standard_normal(hidden), dtype), rounded(rng.standard_normal(hidden), dtype)
    segments = rng.integers(0, 2, (batch, seq)).astype(np.int32) if parts == "segments" else None
    mask = rng.integers(0, 2, (batch, seq)).astype(np.int32) if parts == "mask" else None
    places = None
    if "positions" in parts:
        places = rng.integers(0, 9, (1 if "row" in parts else batch, seq)).astype(np.int32)
    inputs = [ids, segments, word, position, None if segments is None else segment, gamma, beta, mask, places]
    attrs = {"epsilon": 1e-5}
    outputs = ["y", "count", "s"]
    y, count, s = run(ep_session, "EmbedLayerNormalization", inputs, outputs, attrs, dtype, ("count",))
    total = word[ids] + position[np.arange(seq) if places is None else places]
    total = total if segments is None else total + segment[segments]
    centred = total - total.mean(-1, keepdims=True)
    exact = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + np.float32(1e-5)) * gamma + beta
    # A few dozen float32 roundings of values up to about 30.
    close(s, total, dtype, 1e-6)
    close(y, exact, dtype, 3e-5)
    np.testing.assert_array_equal(count, np.zeros(batch) if mask is None else (mask == 1).sum(1))
    if dtype == "float32":
        stock = reference(*node_model("EmbedLayerNormalization", inputs, outputs, attrs, dtype, ("count",)))
        np.testing.assert_allclose(y, stock[0], atol=3e-5)
        np.testing.assert_array_equal(count, stock[1])


def test_embed_layer_norm_out_of_range_fails_in_the_next_run(ep_session: MakeSession) -> None:
    ids, table, vector = np.array([[0, 4]], np.int32), sample((4, 8), np.float64), np.ones(8)
    inputs = [ids, None, table, table, None, vector, vector]
    m, feeds = node_model("EmbedLayerNormalization", inputs, ["y", "count"], {}, "float32", ("count",))
    session = ep_session(m)
    session.run(None, feeds)
    with pytest.raises(Exception, match="out of range"):
        session.run(None, feeds | {"x0": np.array([[0, 1]], np.int32)})


def codes(values: Array, kind: str, name: str = "d") -> onnx.TensorProto:
    to = {"uint4": TensorProto.UINT4, "int4": TensorProto.INT4}[kind]
    return helper.make_tensor(name, to, values.shape, values.ravel().tolist())


@pytest.mark.parametrize("dtype", list(TYPES))
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize(
    ("kind", "gather", "quantize", "shape"),
    [
        ("uint4", 0, 1, (5, 32)),
        ("int4", 0, 1, (5, 40)),
        ("int4", 1, 0, (32, 6)),
        ("uint4", 1, 2, (2, 3, 48)),
        ("uint8", 0, 1, (5, 32)),
        ("uint8", 0, 1, (5, 48)),
        ("uint8 8", 0, 1, (5, 48)),
    ],
)
def test_gather_block_quantized(
    ep_session: MakeSession, kind: str, gather: int, quantize: int, shape: tuple[int, ...], zeros: bool, dtype: str
) -> None:
    rng = np.random.default_rng(1)
    bits = 8 if kind.endswith(" 8") else 4
    low, high = (-8, 7) if kind == "int4" else (0, 2**bits - 1)
    data = rng.integers(low, high + 1, shape)
    blocks = tuple(-(-n // 16) if i == quantize else n for i, n in enumerate(shape))
    scale, zero = rounded(rng.uniform(0.1, 1, blocks), dtype), rng.integers(low, high + 1, blocks)
    indices = rng.integers(-shape[gather], shape[gather], (2, 3))

    def stored(values: Array) -> Any:
        if not kind.startswith("uint8"):
            return codes(values, kind)
        if bits == 8:
            return values.astype(np.uint8)
        padded = np.concatenate([values, np.zeros_like(values[..., :1])], -1)
        return (padded[..., 0:-1:2] | padded[..., 1::2][..., : (values.shape[-1] + 1) // 2] << 4).astype(np.uint8)

    inputs = [stored(data), indices, scale, stored(zero) if zeros else None]
    attrs = {"gather_axis": gather, "quantize_axis": quantize, "block_size": 16, "bits": bits}
    (found,) = run(ep_session, "GatherBlockQuantized", inputs, ["y"], attrs, dtype)
    offset = zero if zeros else 2 ** (bits - 1) if kind.startswith("uint8") else 0
    full = tuple(slice(0, n) for n in shape)
    spread = [np.repeat(np.broadcast_to(v, blocks), 16, quantize)[full] for v in (offset, scale)]
    exact = np.take((data - spread[0]) * spread[1], indices, gather)
    close(found, exact, dtype, 1e-7 * 256)
    if dtype == "float32":
        (stock,) = reference(*node_model("GatherBlockQuantized", inputs, ["y"], attrs))
        np.testing.assert_array_equal(found, stock)


def gelu(x: Array) -> Array:
    return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


@pytest.mark.parametrize("dtype", NO_BFLOAT16)
@pytest.mark.parametrize("shape", [(2, 3, 64), (1, 5, 6), (2, 1, 2), (0, 3, 8)])
def test_bias_split_gelu(ep_session: MakeSession, shape: tuple[int, ...], dtype: str) -> None:
    x, bias = (rounded(sample(s, np.float64, i), dtype) for i, s in enumerate((shape, shape[-1:])))
    left, right = np.split(x + bias, 2, -1)
    (found,) = run(ep_session, "BiasSplitGelu", [x, bias], ["y"], {}, dtype)
    close(found, left * gelu(right) if x.size else left, dtype, 1e-5)


@pytest.mark.parametrize("dtype", NO_BFLOAT16)
def test_bias_add(ep_session: MakeSession, dtype: str) -> None:
    x, skip, bias = (rounded(sample(s, np.float64, i), dtype) for i, s in enumerate(((2, 3, 40), (2, 3, 40), (40,))))
    (found,) = run(ep_session, "BiasAdd", [x, bias, skip], ["y"], {}, dtype)
    close(found, x + bias + skip, dtype, 1e-6)


@pytest.mark.parametrize("dtype", NO_BFLOAT16)
@pytest.mark.parametrize("silu", [0, 1])
@pytest.mark.parametrize(
    ("shape", "groups"), [((2, 8, 8, 64), 32), ((1, 5, 7, 12), 3), ((2, 1, 1, 8), 8), ((1, 40, 40, 6), 2)]
)
def test_group_norm(ep_session: MakeSession, shape: tuple[int, ...], groups: int, silu: int, dtype: str) -> None:
    channels = shape[-1]
    x, skip = (rounded(sample(shape, np.float64, i) * 2 + 3, dtype) for i in (0, 1))
    bias = rounded(sample((channels,), np.float64, 2), dtype)
    by_image = rounded(sample((shape[0], channels), np.float64, 3), dtype)
    gamma, beta = (sample((channels,), np.float32, i) for i in (4, 5))
    attrs = {"groups": groups, "epsilon": 1e-5, "activation": silu, "channels_last": 1}

    def normalized(s: Array) -> Array:
        g = s.reshape(shape[0], -1, groups, channels // groups)
        centred = g - g.mean((1, 3), keepdims=True)
        y = centred / np.sqrt((centred**2).mean((1, 3), keepdims=True) + np.float32(1e-5))
        y = y.reshape(shape) * gamma + beta
        return y / (1 + np.exp(-y)) if silu else y

    (found,) = run(ep_session, "GroupNorm", [x, gamma, beta], ["y"], attrs, dtype)
    close(found, normalized(x), dtype, 3e-5)
    found, total = run(ep_session, "SkipGroupNorm", [x, gamma, beta, skip, bias], ["y", "s"], attrs, dtype)
    close(total, x + skip + bias, dtype, 2e-6)
    close(found, normalized(x + skip + bias), dtype, 3e-5)
    for given in (by_image, by_image[:, None, None]):
        (found,) = run(ep_session, "SkipGroupNorm", [x, gamma, beta, given], ["y"], attrs, dtype)
        close(found, normalized(x + by_image[:, None, None]), dtype, 3e-5)


@pytest.mark.parametrize("activation", ["Relu", "LeakyRelu", "Sigmoid", "Tanh"])
@pytest.mark.parametrize("c", [None, (24,), (16, 1), (16, 24)], ids=str)
def test_fused_gemm(ep_session: MakeSession, c: tuple[int, ...] | None, activation: str) -> None:
    a, b = sample((16, 40), np.float64, 1), sample((24, 40), np.float64, 2)
    bias = None if c is None else sample(c, np.float64, 3)
    attrs = {"activation": activation, "activation_alpha": 0.3, "transB": 1, "alpha": 0.5, "beta": 2.0}
    (found,) = run(ep_session, "FusedGemm", [a, b, bias], ["y"], attrs)
    a32, b32 = a.astype(np.float32).astype(np.float64), b.astype(np.float32).astype(np.float64)
    v = 0.5 * a32 @ b32.T + (0 if bias is None else 2 * bias.astype(np.float32))
    act = {
        "Relu": lambda x: np.maximum(x, 0),
        "LeakyRelu": lambda x: np.where(x < 0, np.float32(0.3) * x, x),
        "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
        "Tanh": np.tanh,
    }[activation]
    magnitude = 0.5 * np.abs(a32) @ np.abs(b32).T + (0 if bias is None else 2 * np.abs(bias))
    assert_sum_of_products(found, act(v), magnitude, 40, "float32", magnitude)


def test_transpose_matmul(ep_session: MakeSession) -> None:
    a, b = sample((3, 40, 16), np.float64, 1), sample((3, 40, 8), np.float64, 2)
    (found,) = run(ep_session, "TransposeMatMul", [a, b], ["y"], {"transA": 1, "alpha": 0.25})
    left = a.transpose(0, 2, 1)
    assert_sum_of_products(found, 0.25 * left @ b, np.abs(left) @ np.abs(b), 40, "float32")


@pytest.mark.parametrize("dtype", NO_BFLOAT16)
@pytest.mark.parametrize(
    ("x_shape", "w_shape", "attrs"),
    [
        ((2, 9, 7, 8), (16, 3, 3, 8), {"pads": [1, 1, 1, 1]}),
        ((1, 8, 8, 16), (8, 1, 1, 16), {}),
        ((1, 10, 8, 8), (8, 3, 3, 4), {"group": 2, "strides": [2, 2], "pads": [1, 1, 1, 1]}),
        ((2, 8, 8, 4), (4, 3, 3, 1), {"group": 4}),
    ],
    ids=str,
)
def test_nhwc_conv(
    ep_session: MakeSession, x_shape: tuple[int, ...], w_shape: tuple[int, ...], attrs: dict[str, Any], dtype: str
) -> None:
    x, w, bias = (rounded(sample(s, np.float64, i), dtype) for i, s in enumerate((x_shape, w_shape, w_shape[:1])))

    def conv(x: Array, w: Array, b: Array) -> Array:
        node = helper.make_node("Conv", ["x", "w", "b"], ["y"], **attrs)
        feeds = {"x": x.transpose(0, 3, 1, 2).copy(), "w": w.transpose(0, 3, 1, 2).copy(), "b": b}
        info = helper.make_tensor_value_info
        values = [info(n, TensorProto.DOUBLE, a.shape) for n, a in feeds.items()]
        graph = helper.make_graph([node], "g", values, [info("y", TensorProto.DOUBLE, None)])
        m = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        from onnx.reference import ReferenceEvaluator

        return np.asarray(ReferenceEvaluator(m).run(None, feeds)[0]).transpose(0, 2, 3, 1)

    for weight in (w, numpy_helper.from_array(w.astype(np.dtype(dtype)))):
        (found,) = run(ep_session, "NhwcConv", [x, weight, bias], ["y"], attrs, dtype)
        terms = int(np.prod(w_shape[1:]))
        exact, magnitude = conv(x, w, bias), conv(np.abs(x), np.abs(w), np.abs(bias))
        assert_sum_of_products(found, exact, magnitude, terms, dtype, magnitude)
