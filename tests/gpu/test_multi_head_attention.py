"""com.microsoft MultiHeadAttention with projection bias, padding masks and a cache, against NumPy in float64, which
ONNX Runtime's CPU provider agrees with."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.gpu.single_op import MakeSession, quick
from tests.gpu.test_attention import TYPES, UNIT, compare, heads_of, merged, normal, rounded
from tests.gpu.test_attention_cache import attend, run, seen


def on_cpu(model: onnx.ModelProto) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def check(
    make: MakeSession,
    dims: tuple[int, int, int, int, int, int],
    dtype: str,
    *,
    v_head: int | None = None,
    bias: bool = False,
    padding: int = 0,
    attention_bias: tuple[int, int] | None = None,
    causal: bool = False,
    filler: float | None = None,
    presents: bool = False,
) -> None:
    """dims: batch, heads, queries, past, new keys, head size. padding: rank of the mask. attention_bias: its batches
    and heads."""
    b, n, s, past, fresh, h = dims
    hv, t = v_head or h, past + fresh
    x = [rounded(normal(b, r, n * w, seed=i), dtype) for i, (r, w) in enumerate(((s, h), (fresh, h), (fresh, hv)))]
    flat = rounded(normal(n * (2 * h + hv), seed=4), dtype) if bias else None
    caches = [rounded(normal(b, n, past, w, seed=i), dtype) if past else None for i, w in ((5, h), (6, hv))]
    rng = np.random.default_rng(t)
    mask = None
    visible = np.ones((b, 1, 1, t), bool)
    if padding == 1:
        mask = rng.integers(0, t + 1, b).astype(np.int32)
        visible = (np.arange(t) < mask[:, None])[:, None, None]
    elif padding:
        mask = (rng.random((b, t) if padding == 2 else (b, s, t)) < 0.6).astype(np.int32)
        visible = (mask > 0).reshape(b, 1, -1, t)
    added = rounded(normal(*attention_bias, s, t, seed=7), dtype) if attention_bias else None
    attrs: dict[str, Any] = {"num_heads": n, "unidirectional": int(causal)}
    if filler is not None:
        attrs["mask_filter_value"] = filler
    inputs = {
        "q": x[0],
        "k": x[1],
        "v": x[2],
        "bias": flat,
        "mask": mask,
        "add": added,
        "pk": caches[0],
        "pv": caches[1],
    }
    outputs = ["y", "ko", "vo"] if presents else ["y"]
    found = run(make, "MultiHeadAttention", "com.microsoft", inputs, outputs, dtype, attrs, 20)
    if flat is not None:
        x = [rounded(a + c, dtype) for a, c in zip(x, np.split(flat, [n * h, 2 * n * h]), strict=True)]
    q, k, v = (heads_of(a, n) for a in x)
    k, v = (new if old is None else np.concatenate([old, new], 2) for old, new in zip(caches, (k, v), strict=True))
    total = np.where(visible, 0.0, -10000.0 if filler is None else filler)
    if added is not None:
        total = total + added
    if causal:
        total = total + seen(s, t, np.full(b, past), np.full(b, t), right=0)
    _, exact, size = attend(q, k, v, total, float(np.float32(h**-0.5)))
    # Scores around the filler are that far from 0: float32 gives them an error of so much, relative to 1 of exponents.
    far = 10000.0 if padding and filler is None else 0.0
    compare(found[0], merged(exact), merged(size) * (1 + far * 2.0**-24 / (64 * UNIT["float32"])), dtype)
    for out, wanted in zip(found[1:], (k, v), strict=False):
        np.testing.assert_array_equal(out, wanted)


@pytest.mark.parametrize("dtype", list(TYPES))
@pytest.mark.parametrize("h", [32, 20])
def test_bias_and_cache(ep_session: MakeSession, h: int, dtype: str) -> None:
    check(ep_session, (2, 3, 40, 0, 33, h), dtype, bias=True)
    check(ep_session, (2, 3, 4, 0, 7, h), dtype, bias=True, v_head=h // 2, presents=True)
    check(ep_session, (2, 2, 1, 70, 1, h), dtype, bias=True, presents=True)
    check(ep_session, (2, 2, 5, 12, 5, h), dtype, presents=True, causal=True)
    check(ep_session, (1, 2, 5, 60, 5, h), dtype, bias=True, attention_bias=(1, 2))
    check(ep_session, (2, 2, 9, 0, 9, h), dtype, presents=True)


@pytest.mark.parametrize("dtype", list(TYPES))
@pytest.mark.parametrize("padding", [1, 2, 3])
def test_padding(ep_session: MakeSession, padding: int, dtype: str) -> None:
    check(ep_session, (3, 2, 20, 0, 37, 64), dtype, padding=padding)
    check(ep_session, (2, 3, 5, 0, 18, 20), dtype, padding=padding, attention_bias=(1, 3), bias=True)
    check(ep_session, (2, 3, 5, 0, 18, 20), dtype, padding=padding, attention_bias=(2, 1), filler=-3.0)
    check(ep_session, (2, 3, 1, 30, 1, 32), dtype, padding=padding, presents=True)


def test_as_onnx_runtime(ep_session: MakeSession) -> None:
    for make in (on_cpu, ep_session):
        check(make, (2, 3, 4, 0, 7, 16), "float32", bias=True)
        check(make, (2, 2, 5, 12, 5, 16), "float32", bias=True, presents=True, causal=True)
        check(make, (2, 3, 5, 6, 5, 16), "float32", padding=2, attention_bias=(1, 3), presents=True)
        check(make, (2, 3, 5, 0, 18, 16), "float32", padding=1)
        check(make, (2, 3, 5, 0, 18, 16), "float32", padding=3)


@quick
@given(data=st.data())
def test_any_shape(ep_session: MakeSession, data: st.DataObject) -> None:
    draw = data.draw
    b, n, s = draw(st.integers(1, 3)), draw(st.integers(1, 4)), draw(st.integers(1, 70))
    past = draw(st.integers(0, 50)) * draw(st.integers(0, 1))
    fresh = s if past else draw(st.integers(1, 70))
    h = draw(st.integers(1, 9)) * draw(st.sampled_from([1, 8]))
    shapes = st.tuples(st.sampled_from([1, b]), st.sampled_from([1, n]))
    check(
        ep_session,
        (b, n, s, past, fresh, h),
        draw(st.sampled_from(list(TYPES))),
        bias=draw(st.booleans()),
        padding=draw(st.integers(0, 3)),
        attention_bias=draw(st.none() | shapes),
        presents=draw(st.booleans()),
    )
