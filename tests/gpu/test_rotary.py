"""RotaryEmbedding of ONNX and of com.microsoft, against NumPy in float64; and against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from tests.gpu.single_op import MakeSession, quick, reference

Array = np.ndarray
TYPES = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}
UNIT = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
INPUTS = {"": ["x", "cos", "sin", "positions"], "com.microsoft": ["x", "positions", "cos", "sin"]}


def rounded(x: Array, dtype: str) -> Array:
    return x.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)).astype(np.float64)


def node_model(domain: str, feeds: dict[str, Array], attrs: dict[str, Any], dtype: str) -> Any:
    """Floating inputs are float64, cast to `dtype` before the node and back after."""
    floats = ["x", "cos", "sin"]
    nodes = [helper.make_node("Cast", [n], [n + "t"], to=TYPES[dtype]) for n in floats]
    names = [(n + "t" if n in floats else n) if n in feeds else "" for n in INPUTS[domain]]
    while not names[-1]:
        names.pop()
    nodes.append(helper.make_node("RotaryEmbedding", names, ["yt"], domain=domain, **attrs))
    nodes.append(helper.make_node("Cast", ["yt"], ["y"], to=TensorProto.DOUBLE))
    info = helper.make_tensor_value_info
    inputs = [info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in feeds.items()]
    graph = helper.make_graph(nodes, "g", inputs, [info("y", TensorProto.DOUBLE, None)])
    imports = [helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def rotated(x: Array, cos: Array, sin: Array, interleaved: bool) -> Array:
    """x is [batch, seq, heads, size]; cos and sin are [batch, seq, rotary / 2]."""
    half = cos.shape[-1]
    c, s, y = cos[:, :, None], sin[:, :, None], x.copy()
    first = np.s_[..., 0 : 2 * half : 2] if interleaved else np.s_[..., :half]
    second = np.s_[..., 1 : 2 * half : 2] if interleaved else np.s_[..., half : 2 * half]
    y[first], y[second] = x[first] * c - x[second] * s, x[first] * s + x[second] * c
    return y


def check_rotary(
    make: MakeSession,
    domain: str,
    dtype: str,
    *,
    batch: int = 2,
    seq: int = 5,
    heads: int = 3,
    size: int = 16,
    rotary: int = 0,
    rank: int = 3,
    interleaved: bool = False,
    positions: str = "each",
    name_heads: bool = True,
) -> None:
    rng = np.random.default_rng(size * 100 + seq)
    half, rows = (rotary or size) // 2, seq + 7
    shape = (rows, half) if positions != "none" else (batch, seq, half)
    x, cos, sin = (
        rounded(v, dtype)
        for v in (rng.standard_normal((batch, seq, heads, size)), rng.uniform(-1, 1, shape), rng.uniform(-1, 1, shape))
    )
    feeds = {"x": x.transpose(0, 2, 1, 3) if rank == 4 else x.reshape(batch, seq, heads * size)}
    feeds |= {"cos": cos, "sin": sin}
    if positions == "one":
        feeds["positions"] = np.array([4])
        c, s = (np.broadcast_to(v[4 : 4 + seq], (batch, seq, half)) for v in (cos, sin))
    elif positions == "each":
        feeds["positions"] = rng.integers(0, rows, (batch, seq))
        c, s = cos[feeds["positions"]], sin[feeds["positions"]]
    else:
        c, s = cos, sin
    attrs: dict[str, Any] = {"interleaved": int(interleaved)}
    if rotary:
        attrs["rotary_embedding_dim"] = rotary
    if name_heads and (rank == 3 or domain):
        attrs["num_heads"] = heads
    m = node_model(domain, feeds, attrs, dtype)
    session = make(m)
    (found,), (again,) = session.run(None, feeds), session.run(None, feeds)
    np.testing.assert_array_equal(found, again)
    y = rotated(x, c, s, interleaved)
    exact = y.transpose(0, 2, 1, 3) if rank == 4 else y.reshape(batch, seq, heads * size)
    assert found.shape == exact.shape
    # Two float32 products of at most max|x|, their sum, and the rounding to the type.
    bound = 4 * 2.0**-24 * np.abs(x).max(initial=0) + 1.01 * UNIT[dtype] * np.abs(exact)
    assert (np.abs(found - exact) <= bound).all(), np.abs(found - exact).max()
    if dtype == "float32" and x.size and half:
        (stock,) = reference(m, feeds)
        np.testing.assert_allclose(found, stock, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", list(TYPES))
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("rank", [3, 4])
@pytest.mark.parametrize(
    ("domain", "positions"), [("", "none"), ("", "each"), ("com.microsoft", "each"), ("com.microsoft", "one")]
)
def test_forms(ep_session: MakeSession, domain: str, positions: str, rank: int, interleaved: bool, dtype: str) -> None:
    # Whole vectors, and sizes that are not.
    for size, rotary in ((64, 0), (64, 32), (10, 0), (10, 6)):
        check_rotary(
            ep_session,
            domain,
            dtype,
            size=size,
            rotary=rotary,
            rank=rank,
            interleaved=interleaved,
            positions=positions,
        )


@given(data=st.data())
@quick
def test_any_shape(ep_session: MakeSession, data: st.DataObject) -> None:
    domain = data.draw(st.sampled_from(["", "com.microsoft"]))
    size = 2 * data.draw(st.integers(1, 40))
    check_rotary(
        ep_session,
        domain,
        data.draw(st.sampled_from(list(TYPES))),
        batch=data.draw(st.integers(1, 3)),
        seq=data.draw(st.integers(1, 9)),
        heads=data.draw(st.integers(1, 5)),
        size=size,
        rotary=data.draw(st.sampled_from([0, 2 * data.draw(st.integers(1, size // 2))])),
        rank=data.draw(st.sampled_from([3, 4])),
        interleaved=data.draw(st.booleans()),
        positions=data.draw(st.sampled_from(["each", "one"] if domain else ["each", "none"])),
    )


def test_heads_from_the_cache(ep_session: MakeSession) -> None:
    check_rotary(ep_session, "com.microsoft", "float32", name_heads=False)


def test_empty(ep_session: MakeSession) -> None:
    check_rotary(ep_session, "", "float32", batch=0)
    check_rotary(ep_session, "com.microsoft", "float16", seq=0)


def test_a_position_outside_the_cache_fails_in_the_next_run(ep_session: MakeSession) -> None:
    rng = np.random.default_rng(0)
    feeds = {
        "x": rng.standard_normal((1, 2, 8)),
        "cos": rng.standard_normal((4, 4)),
        "sin": rng.standard_normal((4, 4)),
    }
    feeds["positions"] = np.array([[1, 4]])
    session = ep_session(node_model("", feeds, {"num_heads": 1}, "float32"))
    (y,) = session.run(None, feeds)
    np.testing.assert_array_equal(y[0, 1], feeds["x"][0, 1].astype(np.float32))  # left as it is
    with pytest.raises(Exception, match="out of range"):
        session.run(None, feeds | {"positions": np.array([[1, 2]])})


def test_shapes_that_do_not_fit_are_named(ep_session: MakeSession) -> None:
    feeds = {
        "x": np.ones((1, 2, 8)),
        "cos": np.ones((4, 3)),
        "sin": np.ones((4, 3)),
        "positions": np.zeros((1, 2), np.int64),
    }
    m = node_model("", feeds, {"num_heads": 1}, "float32")
    for value in m.graph.input:  # unknown to shape inference, so that the kernel meets them
        value.type.tensor_type.ClearField("shape")
    with pytest.raises(Exception, match=r"\[4,3\]; \[positions, 4\] is required"):
        ep_session(m).run(None, feeds)
