"""com.microsoft GroupQueryAttention against NumPy in float64 and ONNX Runtime's CPU provider."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from tests.gpu.single_op import Array, MakeSession, quick
from tests.gpu.test_attention import TYPES, compare, merged, normal, rounded
from tests.gpu.test_attention_cache import attend, run, seen


def rotated(x: Array, cos: Array, sin: Array, position: Array, interleaved: bool) -> Array:
    """[B, heads, S, H] turned by the angles of position [B, S]."""
    turn = 2 * cos.shape[1]
    c, s = cos[position][:, None], sin[position][:, None]
    y = x.copy()
    first, second = (
        (slice(0, turn, 2), slice(1, turn, 2)) if interleaved else (slice(turn // 2), slice(turn // 2, turn))
    )
    a, b = x[..., first], x[..., second]
    y[..., first], y[..., second] = a * c - b * s, a * s + b * c
    return y


def check_group(
    make: MakeSession,
    dims: tuple[int, int, int, int, int],
    dtype: str,
    lengths: list[int],
    *,
    prompt: bool = False,
    buffer: int = 0,
    packed: bool = False,
    window: int = -1,
    softcap: float = 0.0,
    rotary: int = 0,
    interleaved: bool = False,
    positions: Array | None = None,
    bias: bool = False,
    smooth: bool = False,
    sink: bool = False,
    causal: bool = True,
) -> None:
    """dims: batch, heads, heads of keys, new rows, head size. lengths: keys of each entry with the new ones. `buffer`:
    rows of the past's tensor, of which those before the new ones are filled."""
    b, n, kv, s, h = dims
    total, held = max(max(lengths), s), buffer
    capacity = max(held, total)
    valid = np.array(lengths)
    first = np.zeros(b, int) if prompt else valid - s
    q, k, v = (rounded(normal(b, heads, s, h, seed=i), dtype) for i, heads in enumerate((n, kv, kv)))
    caches = [rounded(normal(b, kv, held, h, seed=i), dtype) for i in (5, 6)] if held else [None, None]
    cos = sin = None
    if rotary:
        angles = np.arange(capacity + 9)[:, None] * np.geomspace(1, 0.01, rotary // 2)
        cos, sin = rounded(np.cos(angles), dtype), rounded(np.sin(angles), dtype)
    attrs: dict[str, Any] = {"num_heads": n, "kv_num_heads": kv, "local_window_size": window, "softcap": softcap}
    attrs |= {"do_rotary": int(rotary > 0), "rotary_interleaved": int(interleaved), "smooth_softmax": int(smooth)}
    attrs |= {} if causal else {"causal": 0}
    added = rounded(normal(1, n, s, total, seed=8), dtype) if bias else None
    sinks = rounded(normal(n, seed=9), dtype) if sink else None
    rows = [merged(x) for x in (q, k, v)]
    inputs: dict[str, Array | None] = {
        "q": np.concatenate(rows, -1) if packed else rows[0],
        "k": None if packed else rows[1],
        "v": None if packed else rows[2],
        "pk": caches[0],
        "pv": caches[1],
        "lengths": (valid - 1).astype(np.int32),
        "total": np.array([total], np.int32),
        "cos": cos,
        "sin": sin,
        "positions": positions,
        "bias": added,
        "sinks": sinks,
    }
    y, k_out, v_out = run(make, "GroupQueryAttention", "com.microsoft", inputs, ["y", "ko", "vo"], dtype, attrs, 20)
    if cos is not None and sin is not None:
        place = first[:, None] + np.arange(s)
        if positions is not None:
            place = positions if not prompt else np.broadcast_to(positions.flat[0] + np.arange(s), (b, s))
        q, k = (rounded(rotated(x, cos, sin, place, interleaved), dtype) for x in (q, k))
    for out, new, old in ((k_out, k, caches[0]), (v_out, v, caches[1])):
        assert out.shape == (b, kv, capacity, h)
        for i in range(b):
            if old is not None:
                np.testing.assert_array_equal(out[i, :, : first[i]], old[i, :, : first[i]])
            # A rotated element may be rounded the other way: its products are added in another order.
            atol = 0 if out is v_out or not rotary else 8 * 2.0 ** -{"float32": 23, "float16": 10, "bfloat16": 7}[dtype]
            np.testing.assert_allclose(out[i, :, first[i] : first[i] + s], new[i], rtol=0, atol=atol)
            assert (out[i, :, first[i] + s :] == 0).all()
    hidden = seen(s, capacity, first, valid, window - 1 if window > 0 else -1, 0 if causal else -1)
    if added is not None:
        hidden = hidden + np.pad(added, [(0, 0)] * 3 + [(0, capacity - total)])
    exact, size = attend(
        q, k_out, v_out, hidden, float(np.float32(h**-0.5)), softcap, np.zeros(n) if smooth and sinks is None else sinks
    )[1:]
    ours, exact, size = (x.reshape(b, s, n, h) for x in (y, merged(exact), merged(size)))
    for i in range(b):  # rows past a prompt's end mean nothing
        rows_valid = valid[i] if prompt else s
        compare(ours[i, :rows_valid], exact[i, :rows_valid], 2 * size[i, :rows_valid], dtype)


@pytest.mark.parametrize("dtype", list(TYPES))
@pytest.mark.parametrize("packed", [False, True])
def test_group_query(ep_session: MakeSession, packed: bool, dtype: str) -> None:
    options: dict[str, Any] = {"packed": packed}
    check_group(ep_session, (2, 4, 2, 40, 64), dtype, [40, 17], prompt=True, **options)
    check_group(ep_session, (2, 4, 2, 4, 32), dtype, [4, 2], prompt=True, buffer=70, **options)
    check_group(ep_session, (2, 6, 2, 1, 64), dtype, [33, 20], buffer=32, **options)
    check_group(ep_session, (3, 8, 1, 1, 20), dtype, [33, 20, 1], buffer=64, **options)
    check_group(ep_session, (1, 4, 4, 70, 32), dtype, [170], buffer=200, **options)  # a chunk of a long prompt
    rotary: dict[str, Any] = {"rotary": 32, **options}
    check_group(ep_session, (2, 4, 2, 9, 64), dtype, [9, 5], prompt=True, buffer=40, **rotary)
    check_group(ep_session, (2, 4, 2, 1, 32), dtype, [33, 20], buffer=40, interleaved=True, **rotary)
    check_group(ep_session, (1, 4, 2, 5, 48), dtype, [33], buffer=40, **rotary)
    positions = np.array([[7], [2]], np.int64)
    check_group(ep_session, (2, 4, 2, 1, 32), dtype, [33, 20], buffer=40, positions=positions, **rotary)
    positions = np.array([[3, 9, 9], [0, 0, 0]], np.int64)
    check_group(ep_session, (2, 4, 2, 3, 32), dtype, [3, 2], prompt=True, positions=positions, **rotary)
    check_group(ep_session, (1, 2, 1, 3, 20), dtype, [8], buffer=9, rotary=12, interleaved=True, **options)  # unaligned


@pytest.mark.parametrize("dtype", list(TYPES))
def test_group_query_options(ep_session: MakeSession, dtype: str) -> None:
    for h in (64, 36):
        check_group(ep_session, (2, 4, 2, 90, h), dtype, [90, 70], prompt=True, window=13)
        check_group(ep_session, (2, 4, 2, 1, h), dtype, [90, 5], buffer=90, window=13)
        check_group(ep_session, (2, 4, 2, 5, h), dtype, [5, 3], prompt=True, softcap=0.8)
        check_group(ep_session, (2, 4, 2, 1, h), dtype, [60, 30], buffer=60, bias=True)
        check_group(ep_session, (2, 4, 2, 20, h), dtype, [20, 9], prompt=True, bias=True)
        check_group(ep_session, (2, 4, 2, 20, h), dtype, [20, 9], prompt=True, smooth=True)
        check_group(ep_session, (2, 4, 2, 1, h), dtype, [70, 30], buffer=80, sink=True, window=20)
        check_group(ep_session, (2, 4, 2, 20, h), dtype, [20, 9], prompt=True, causal=False)


@pytest.mark.parametrize("rotary", [0, 32])
def test_group_query_as_onnx_runtime(ep_session: MakeSession, rotary: int) -> None:
    """The reading of the op's text that the NumPy code above embodies is ONNX Runtime's: the same checks there."""

    def on_cpu(model: onnx.ModelProto) -> ort.InferenceSession:
        options = ort.SessionOptions()
        options.log_severity_level = 4
        return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])

    for make in (on_cpu, ep_session):
        options: dict[str, Any] = {"rotary": rotary}
        check_group(make, (2, 4, 2, 9, 64), "float32", [9, 5], prompt=True, **options)
        check_group(make, (2, 4, 2, 9, 64), "float32", [9, 5], prompt=True, buffer=20, packed=True, **options)
        check_group(make, (2, 4, 2, 1, 64), "float32", [33, 20], buffer=32, window=9, **options)
        check_group(make, (2, 4, 2, 1, 64), "float32", [33, 20], buffer=40, softcap=0.9, **options)
        check_group(make, (1, 4, 2, 5, 64), "float32", [33], buffer=40, bias=True, **options)
        check_group(make, (2, 4, 2, 1, 64), "float32", [33, 20], buffer=40, smooth=True, **options)
        check_group(make, (2, 4, 2, 1, 64), "float32", [33, 20], buffer=40, sink=True, **options)
        check_group(make, (2, 4, 2, 4, 32), "float32", [4, 2], prompt=True, causal=False)


@quick
@given(data=st.data())
def test_any_group_query(ep_session: MakeSession, data: st.DataObject) -> None:
    draw = data.draw
    b, kv, s, prompt = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 40)), draw(st.booleans())
    h = draw(st.integers(1, 5)) * draw(st.sampled_from([4, 16]))
    if prompt:
        lengths = [s, *draw(st.lists(st.integers(1, s), min_size=b - 1, max_size=b - 1))]
        buffer = draw(st.sampled_from([0, s + 3]))
    else:
        lengths = draw(st.lists(st.integers(s, s + 90), min_size=b, max_size=b))
        lengths[0] = max(lengths[0], s + 1)
        buffer = max(lengths) + draw(st.integers(-1, 9))
    check_group(
        ep_session,
        (b, kv * draw(st.integers(1, 4)), kv, s, h),
        draw(st.sampled_from(list(TYPES))),
        lengths,
        prompt=prompt,
        buffer=buffer,
        packed=draw(st.booleans()),
        window=draw(st.sampled_from([-1, 1, 30])),
        rotary=draw(st.sampled_from([0, h // 4 * 2])),
        interleaved=draw(st.booleans()),
        softcap=draw(st.sampled_from([0.0, 2.0])),
        bias=draw(st.booleans()),
        smooth=draw(st.booleans()),
    )


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_cache_in_place(ep_session: MakeSession, dtype: str) -> None:
    """One buffer before and after: the new row joins it, and nothing else of it is touched."""
    b, n, kv, h, rows = 2, 4, 2, 32, 24
    kind = TYPES[dtype]
    names = ["q", "k", "v", "pk", "pv", "lengths", "total"]
    node = helper.make_node(
        "GroupQueryAttention", names, ["y", "ko", "vo"], domain="com.microsoft", num_heads=n, kv_num_heads=kv
    )
    shapes: dict[str, tuple[Any, ...]] = {"q": (b, 1, n * h), "k": (b, 1, kv * h), "v": (b, 1, kv * h)}
    shapes |= dict.fromkeys(("pk", "pv"), (b, kv, rows, h))
    infos = [helper.make_tensor_value_info(name, kind, s) for name, s in shapes.items()]
    infos += [helper.make_tensor_value_info("lengths", TensorProto.INT32, (b,))]
    infos += [helper.make_tensor_value_info("total", TensorProto.INT32, (1,))]
    outs = [helper.make_tensor_value_info(o, kind, None) for o in ("y", "ko", "vo")]
    graph = helper.make_graph([node], "g", infos, outs)
    imports = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    session = ep_session(helper.make_model(graph, opset_imports=imports, ir_version=10))

    def device(x: Array) -> ort.OrtValue:
        return ort.OrtValue.ortvalue_from_numpy(x.astype(dtype), "cuda", 0)

    caches = {name: device(normal(b, kv, rows, h, seed=i)) for i, name in enumerate(("pk", "pv"))}
    before = {name: x.numpy() for name, x in caches.items()}
    new = {name: normal(*shapes[name], seed=i).astype(dtype) for i, name in enumerate(("q", "k", "v"), 3)}
    binding = session.io_binding()
    for name, x in new.items():
        binding.bind_cpu_input(name, x)
    binding.bind_cpu_input("lengths", np.array([9, 3], np.int32))
    binding.bind_cpu_input("total", np.array([10], np.int32))
    for name, out in (("pk", "ko"), ("pv", "vo")):
        binding.bind_ortvalue_input(name, caches[name])
        binding.bind_ortvalue_output(out, caches[name])
    binding.bind_output("y", "cpu")
    session.run_with_iobinding(binding)
    binding.synchronize_outputs()
    for name, out in (("pk", "k"), ("pv", "v")):
        wanted = before[name].copy()
        for i, row in enumerate((9, 3)):
            wanted[i, :, row] = new[out].reshape(b, kv, h)[i]
        np.testing.assert_array_equal(caches[name].numpy(), wanted)
