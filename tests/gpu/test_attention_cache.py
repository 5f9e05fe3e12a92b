"""ONNX Attention with a cache, windows, soft cap and scores, against NumPy in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from tests.gpu.single_op import Array, MakeSession, quick
from tests.gpu.test_attention import TYPES, compare, merged, normal, rounded


def run(
    make: MakeSession,
    op: str,
    domain: str,
    inputs: dict[str, Array | None],
    outputs: list[str],
    dtype: str,
    attrs: dict[str, Any],
    opset: int,
) -> list[Array]:
    """Outputs as float64. Inputs of float64 are cast to `dtype` before the node, the others stay as they are."""
    nodes, infos, names = [], [], []
    for name, x in inputs.items():
        names.append("" if x is None else name)
        if x is None:
            continue
        infos.append(helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape))
        if x.dtype == np.float64:
            names[-1] = f"{name}_t"
            nodes.append(helper.make_node("Cast", [name], [f"{name}_t"], to=TYPES[dtype]))
    while names and not names[-1]:
        names.pop()
    nodes.append(helper.make_node(op, names, [f"{o}_t" if o else "" for o in outputs], domain=domain, **attrs))
    wanted = [o for o in outputs if o]
    nodes += [helper.make_node("Cast", [f"{o}_t"], [o], to=TensorProto.DOUBLE) for o in wanted]
    results = [helper.make_tensor_value_info(o, TensorProto.DOUBLE, None) for o in wanted]
    graph = helper.make_graph(nodes, "g", infos, results)
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=10)
    feeds = {name: x for name, x in inputs.items() if x is not None}
    found: list[Array] = make(model).run(None, feeds)
    return found


def attend(
    q: Array, k: Array, v: Array, added: Array, scale: float, softcap: float = 0.0, sinks: Array | None = None
) -> tuple[list[Array], Array, Array]:
    """The scores by stage (raw, capped, masked, softmax), the result and its bound's size; `added` is -inf where a key
    is not seen. Rows without keys are 0."""
    k, v = (x.repeat(q.shape[1] // k.shape[1], 1) for x in (k, v))
    raw = q @ k.swapaxes(2, 3) * scale
    capped = softcap * np.tanh(raw / softcap) if softcap else raw
    masked = capped + added
    with np.errstate(all="ignore"):
        top = np.maximum(masked.max(-1, keepdims=True, initial=-1e30), -1e30)
        weights = np.exp(masked - top)
        total = weights.sum(-1, keepdims=True)
        if sinks is not None:
            total = total + np.exp(sinks[None, :, None, None] - top)
        weights = np.nan_to_num(weights / total)
    size = np.broadcast_to(np.abs(v).max(axis=(2, 3), keepdims=True), (*q.shape[:3], v.shape[3]))
    return [raw, capped, masked, weights], weights @ v, size


def seen(s: int, t: int, offset: Array, length: Array, left: int = -1, right: int = -1) -> Array:
    """0 where a query sees a key by its place, else -inf: [B, 1, s, t]."""
    place = np.arange(s)[None, :, None] + offset[:, None, None]
    key = np.arange(t)[None, None]
    hidden = key >= length[:, None, None]
    if left >= 0:
        hidden = hidden | (key < place - left)
    if right >= 0:
        hidden = hidden | (key > place + right)
    return np.where(hidden, -np.inf, 0.0)[:, None]


def check_onnx(
    make: MakeSession,
    dims: tuple[int, int, int, int, int, int, int],
    dtype: str,
    *,
    rank: int = 4,
    v_head: int | None = None,
    mask: Array | None = None,
    causal: bool = False,
    softcap: float = 0.0,
    lengths: Array | None = None,
    mode: int | None = None,
    presents: bool = True,
) -> None:
    """dims: batch, heads, heads of keys, queries, past, new keys, head size. Past 0 is no past."""
    b, n, kv, s, past, fresh, h = dims
    hv, t = v_head or h, past + fresh
    q = rounded(normal(b, n, s, h), dtype)
    k, v = rounded(normal(b, kv, t, h, seed=1), dtype), rounded(normal(b, kv, t, hv, seed=2), dtype)
    attrs: dict[str, Any] = {"is_causal": int(causal), "softcap": softcap}
    new = [q, k[:, :, past:], v[:, :, past:]]
    if rank == 3:
        new = [merged(x) for x in new]
        attrs |= {"q_num_heads": n, "kv_num_heads": kv}
    if mode is not None:
        attrs["qk_matmul_output_mode"] = mode
    inputs: dict[str, Array | None] = dict(zip(("q", "k", "v"), new, strict=True))
    inputs |= {"mask": mask, "pk": k[:, :, :past] if past else None, "pv": v[:, :, :past] if past else None}
    inputs["lengths"] = lengths
    outputs = ["y", *(["k_out", "v_out"] if presents else ["", ""]), *(["qk"] if mode is not None else [])]
    opset = 24 if lengths is not None or (mask is not None and mask.shape[-1] not in (1, t)) else 23
    found = run(make, "Attention", "", inputs, outputs, dtype, attrs, opset)
    added = np.zeros((b, 1, s, t))
    if mask is not None:
        bias = np.where(mask, 0, -np.inf) if mask.dtype == np.bool_ else mask
        short = 0 if mask.shape[-1] == 1 else t - mask.shape[-1]
        added = added + np.pad(bias, [(0, 0)] * (mask.ndim - 1) + [(0, short)], constant_values=-np.inf)
    valid = np.full(b, t) if lengths is None else lengths
    offset = np.full(b, past) if lengths is None else lengths - s
    added = added + seen(s, t, offset, valid, right=0 if causal else -1)
    stages, exact, size = attend(q, k, v, added, float(np.float32(h**-0.5)), softcap)
    compare(found.pop(0), exact if rank == 4 else merged(exact), size if rank == 4 else merged(size), dtype)
    if presents:
        np.testing.assert_array_equal(found.pop(0), k)  # moved, not computed
        np.testing.assert_array_equal(found.pop(0), v)
    if mode is not None:
        # A sum of up to 64 products of numbers below 5, rounded to the type.
        rtol, atol = {"float32": (1e-5, 1e-5), "float16": (2e-3, 2e-3), "bfloat16": (2e-2, 2e-2)}[dtype]
        np.testing.assert_allclose(found.pop(0), np.broadcast_to(stages[mode], (b, n, s, t)), rtol, atol)


@pytest.mark.parametrize("dtype", list(TYPES))
@pytest.mark.parametrize("rank", [3, 4])
@pytest.mark.parametrize("causal", [False, True])
def test_past(ep_session: MakeSession, causal: bool, rank: int, dtype: str) -> None:
    options: dict[str, Any] = {"causal": causal, "rank": rank}
    check_onnx(ep_session, (2, 3, 3, 4, 5, 4, 64), dtype, **options)
    check_onnx(ep_session, (2, 6, 2, 70, 33, 70, 32), dtype, **options)  # more than a tile of each
    check_onnx(ep_session, (1, 4, 2, 1, 130, 1, 64), dtype, **options)  # one token
    check_onnx(ep_session, (1, 2, 1, 7, 9, 7, 20), dtype, v_head=12, **options)
    check_onnx(ep_session, (1, 2, 1, 7, 40, 7, 64), dtype, presents=False, **options)
    check_onnx(ep_session, (2, 2, 2, 3, 0, 9, 16), dtype, **options)  # no past: the presents are K and V
    mask = rounded(normal(2, 1, 5, 38), dtype)
    check_onnx(ep_session, (2, 2, 2, 5, 33, 5, 32), dtype, mask=mask, **options)


@pytest.mark.parametrize("dtype", list(TYPES))
def test_lengths(ep_session: MakeSession, dtype: str) -> None:
    lengths = np.array([5, 40, 0], np.int64)
    for causal in (False, True):
        check_onnx(ep_session, (3, 4, 2, 6, 0, 40, 64), dtype, lengths=lengths, causal=causal)
        check_onnx(ep_session, (3, 2, 2, 6, 0, 40, 20), dtype, lengths=lengths, causal=causal, presents=False, rank=3)
        short = np.random.default_rng(3).random((1, 1, 6, 40)) < 0.7
        check_onnx(ep_session, (3, 4, 2, 6, 0, 40, 64), dtype, lengths=lengths, causal=causal, mask=short)
    check_onnx(ep_session, (3, 4, 2, 6, 0, 50, 64), dtype, lengths=lengths, mask=short)  # a mask that ends early
    check_onnx(ep_session, (3, 2, 2, 6, 0, 50, 20), dtype, lengths=lengths, mask=short, mode=2)


@pytest.mark.parametrize("dtype", list(TYPES))
@pytest.mark.parametrize("mode", [0, 1, 2, 3])
def test_scores(ep_session: MakeSession, mode: int, dtype: str) -> None:
    check_onnx(ep_session, (2, 4, 2, 5, 0, 37, 32), dtype, mode=mode, presents=False)
    hide = np.random.default_rng(5).random((5, 37)) < 0.5
    hide[2] = False  # a query without keys
    options: dict[str, Any] = {"mode": mode, "softcap": 1.5, "rank": 3}
    check_onnx(ep_session, (2, 4, 2, 5, 30, 7, 32), dtype, mask=hide, causal=True, **options)
    check_onnx(ep_session, (1, 2, 1, 3, 0, 300, 20), dtype, causal=True, **options)


@pytest.mark.parametrize("dtype", list(TYPES))
def test_soft_cap(ep_session: MakeSession, dtype: str) -> None:
    for h, mask in ((64, None), (36, None), (64, np.arange(70) % 7 != 3)):
        check_onnx(ep_session, (2, 3, 3, 70, 0, 70, h), dtype, softcap=0.7, mask=mask, causal=True)


@quick
@given(data=st.data())
def test_any_onnx_shape(ep_session: MakeSession, data: st.DataObject) -> None:
    draw = data.draw
    kv, s, past, fresh = (draw(st.integers(1, m)) for m in (3, 40, 90, 90))
    past = past * draw(st.integers(0, 1))
    b, n = draw(st.integers(1, 3)), kv * draw(st.integers(1, 3))
    lengths = None
    if past == 0 and draw(st.booleans()):
        lengths = np.array(draw(st.lists(st.integers(0, fresh), min_size=b, max_size=b)), np.int64)
    check_onnx(
        ep_session,
        (b, n, kv, s, past, fresh, draw(st.integers(1, 9)) * draw(st.sampled_from([1, 8]))),
        draw(st.sampled_from(list(TYPES))),
        rank=draw(st.sampled_from([3, 4])),
        causal=draw(st.booleans()),
        softcap=draw(st.sampled_from([0.0, 2.0])),
        mask=draw(st.sampled_from([None, rounded(normal(s, past + fresh), "bfloat16")])),
        lengths=lengths,
        presents=past > 0,
    )
