"""cuvil::Attention and ONNX Attention against NumPy in float64, on shapes that reach every kernel and every mask."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

import custom_ops
from tests.gpu.single_op import MakeSession, quick

Array = np.ndarray
TYPES = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}
ELEMENTS = {**TYPES, "bool": TensorProto.BOOL}
# Half a unit in the last place near 1 of what the inputs, the probabilities and the result are rounded to.
UNIT = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
MASKS = ["none", "keys", "keys_inf", "full", "per_query", "heads", "masked_rows"]


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng([seed, *shape]).normal(0, 1, shape)


def rounded(x: Array, dtype: str) -> Array:
    return x.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)).astype(np.float64)


def make_mask(kind: str, b: int, n: int, s: int, t: int) -> Array | None:
    """An additive mask; finite hidden places have the lowest value that float16 holds."""
    hide = np.random.default_rng(b + n + s + t).random((b, n, s, t)) < 0.4
    hide[..., 0] = False
    if kind == "none":
        return None
    if kind in ("keys", "keys_inf"):
        return np.where(hide[:, :1, :1], -np.inf if kind == "keys_inf" else -65504.0, 0.0)
    if kind == "full":
        return normal(b, n, s, t, seed=9) * 2
    if kind == "per_query":
        return normal(s, 1, seed=9)  # changes nothing but the bits
    if kind == "heads":
        return np.where(hide[:1], -np.inf, normal(1, n, s, t, seed=9))
    if kind == "masked_batch":  # an entry of the batch that is padding throughout, and left padding
        keys = np.where(hide[:, :1, :1], -np.inf, 0.0)
        keys[0], keys[-1, ..., : t // 2] = -np.inf, -np.inf
        return keys
    rows = np.where(hide[:1, 0], -np.inf, 0.0)
    rows[0, s // 2] = -np.inf  # one query that sees no key
    return rows


def attention(q: Array, k: Array, v: Array, mask: Array | None, scale: float, causal: bool) -> tuple[Array, Array]:
    """[B,N,S,H] result, and its bound's size: the largest |V| that a query sees."""
    scores = q @ k.swapaxes(2, 3) * scale
    if mask is not None:
        scores = scores + mask
    if causal:
        scores = np.where(np.triu(np.ones(scores.shape[2:], bool), 1), -np.inf, scores)
    with np.errstate(all="ignore"):
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights = weights / weights.sum(-1, keepdims=True)
        return weights @ v, np.broadcast_to(np.abs(v).max(axis=(2, 3), keepdims=True), (*q.shape[:3], v.shape[3]))


def compare(found: Array, exact: Array, size: Array, dtype: str) -> None:
    """Errors against exact arithmetic on the rounded inputs. A probability of relative error e moves the result by at
    most 2 e max|V|. In float32: e is about the error of a score (below 16 here, dot products of up to 256 terms) plus a
    few units: 64 units in all. With 16-bit types the probabilities are rounded too (1 unit, partly averaging out), and
    the result (1 unit).
    """
    bound = 128 * UNIT["float32"] * size + (3 * UNIT[dtype] * size if dtype != "float32" else 0)
    assert found.shape == exact.shape, f"{found.shape} instead of {exact.shape}"
    nan = np.isnan(exact)
    np.testing.assert_array_equal(np.isnan(found), nan)
    error = np.where(nan, 0, np.abs(found - np.where(nan, 0, exact)))
    worst = np.unravel_index((error - bound).argmax(), error.shape)
    assert (error <= bound).all(), f"{found[worst]} instead of {exact[worst]} at {worst}, bound {bound[worst]}"


def run(
    make: MakeSession,
    op: str,
    domain: str,
    arrays: list[Array | None],
    types: list[str],
    attrs: dict[str, Any],
    opset: int,
    static: bool = True,
) -> Array:
    """The op's result; float inputs are float64, cast to their type before the node, and the result is cast back.

    Without `static` the model knows no dimension.
    """
    nodes, infos, names = [], [], []
    for i, x in enumerate(arrays):
        names.append(f"x{i}t" if x is not None else "")
        if x is None:
            continue
        boolean = x.dtype == np.bool_
        if boolean:
            types = [*types[:i], "bool", *types[i + 1 :]]
        infos.append(
            helper.make_tensor_value_info(
                f"x{i}", TensorProto.BOOL if boolean else TensorProto.DOUBLE, x.shape if static else [None] * x.ndim
            )
        )
        nodes.append(helper.make_node("Cast", [f"x{i}"], [f"x{i}t"], to=ELEMENTS[types[i]]))
    while not names[-1]:
        names.pop()
    functions = []
    if domain == "cuvil":
        values = [
            ir.val(name, ir.DataType(ELEMENTS[dtype]), ir.Shape(x.shape if static else [None] * x.ndim))
            if x is not None
            else None
            for name, x, dtype in zip(names, arrays, types, strict=False)
        ]
        node, function = custom_ops.make(op, values, 1, attrs, opset=opset, dtype=ir.DataType(TYPES[types[0]]))
        node.outputs[0].name = "yt"
        nodes.append(ir.to_proto(node))
        functions.append(ir.to_proto(function))
    else:
        nodes.append(helper.make_node(op, names, ["yt"], domain=domain, name="node", **attrs))
    nodes.append(helper.make_node("Cast", ["yt"], ["y"], to=TensorProto.DOUBLE))
    graph = helper.make_graph(nodes, "g", infos, [helper.make_tensor_value_info("y", TensorProto.DOUBLE, None)])
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("cuvil", 1), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=imports, functions=functions, ir_version=10)
    feeds = {f"x{i}": x for i, x in enumerate(arrays) if x is not None}
    result: Array = make(model).run(None, feeds)[0]
    return result


def heads_of(x: Array, n: int) -> Array:
    return x.reshape(x.shape[0], x.shape[1], n, -1).transpose(0, 2, 1, 3)


def merged(x: Array) -> Array:
    return x.transpose(0, 2, 1, 3).reshape(x.shape[0], x.shape[2], -1)


def check_cuvil(
    make: MakeSession,
    dims: tuple[int, int, int, int, int],
    dtype: str,
    mask_kind: str = "none",
    *,
    causal: bool = False,
    layout: str = "separate",
    mask_dtype: str | None = None,
    scale: float | None = None,
    kv: int | None = None,
    masked_rows_zero: bool = False,
    cached: bool = False,
) -> None:
    b, n, s, t, h = dims
    t = s if layout == "packed" else t
    kv = kv or n
    sizes = ((s, n), (t, kv), (t, kv))
    q, k, v = (rounded(normal(b, r, heads * h, seed=i), dtype) for i, (r, heads) in enumerate(sizes))
    mask = make_mask(mask_kind, b, n, s, t)
    mask_dtype = mask_dtype or dtype
    if mask is not None and mask_dtype == "bool":
        mask = mask == 0
    elif mask is not None:
        mask = rounded(mask, mask_dtype)
    attrs: dict[str, Any] = {
        "num_heads": n,
        "kv_num_heads": kv,
        "masked_rows_zero": int(masked_rows_zero),
        "scale": float(np.float32(scale or h**-0.5)),
        "causal": int(causal),
        "layout": layout,
    }
    operands = [np.concatenate([q, k, v], -1), None, None] if layout == "packed" else [q, k, v]
    if cached:  # [B, G, T, H]
        operands[1:] = [np.ascontiguousarray(heads_of(x, kv)) for x in (k, v)]
    found = run(make, "Attention", "cuvil", [*operands, mask], [dtype] * 3 + [mask_dtype], attrs, 17)
    added = np.where(mask, 0, -np.inf) if mask is not None and mask.dtype == np.bool_ else mask
    keys, values = (heads_of(x, kv).repeat(n // kv, 1) for x in (k, v))
    exact, size = attention(heads_of(q, n), keys, values, added, attrs["scale"], causal)
    if masked_rows_zero:
        exact = np.nan_to_num(exact)
    compare(found, merged(exact), merged(size), dtype)


@pytest.mark.parametrize("dtype", list(TYPES))
@pytest.mark.parametrize("h", [8, 20, 32, 40, 64, 80, 96, 128, 160, 256])
def test_head_sizes(ep_session: MakeSession, h: int, dtype: str) -> None:
    check_cuvil(ep_session, (2, 3, 37, 37, h), dtype, "keys", layout="packed")
    check_cuvil(ep_session, (1, 2, 70, 131, h), dtype, "full")


@pytest.mark.parametrize("dtype", list(TYPES))
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("mask", MASKS)
def test_masks(ep_session: MakeSession, mask: str, causal: bool, dtype: str) -> None:
    check_cuvil(ep_session, (2, 3, 77, 131, 64), dtype, mask, causal=causal)
    check_cuvil(ep_session, (2, 2, 90, 61, 24), dtype, mask, causal=causal)
    check_cuvil(ep_session, (2, 2, 33, 33, 36), dtype, mask, causal=causal, layout="packed")


@pytest.mark.parametrize("dtype", list(TYPES))
@pytest.mark.parametrize("mask", ["none", "keys", "heads"])
def test_many_heads(ep_session: MakeSession, mask: str, dtype: str) -> None:
    # Enough blocks for the layouts that serve large batches.
    check_cuvil(ep_session, (22, 12, 130, 130, 64), dtype, mask, layout="packed")
    check_cuvil(ep_session, (20, 7, 70, 150, 32), dtype, mask, causal=True)
    check_cuvil(ep_session, (12, 12, 100, 33, 128), dtype, mask)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("mask", ["keys", "full", "masked_rows"])
def test_float32_mask(ep_session: MakeSession, mask: str, dtype: str) -> None:
    check_cuvil(ep_session, (2, 3, 50, 190, 64), dtype, mask, mask_dtype="float32")


@pytest.mark.parametrize("dtype", list(TYPES))
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("mask", ["none", "keys_inf", "heads", "masked_rows"])
def test_grouped_heads(ep_session: MakeSession, mask: str, causal: bool, dtype: str) -> None:
    zero = {"masked_rows_zero": True, "causal": causal}
    check_cuvil(ep_session, (2, 6, 37, 53, 64), dtype, mask, kv=2, **zero)
    check_cuvil(ep_session, (1, 8, 70, 70, 40), dtype, mask, kv=1, layout="packed", **zero)
    check_cuvil(ep_session, (3, 4, 1, 90, 20), dtype, mask, kv=2, **zero)  # one token against what came before
    check_cuvil(ep_session, (2, 6, 5, 53, 64), dtype, mask, kv=2, cached=True, **zero)
    check_cuvil(ep_session, (2, 4, 5, 31, 20), dtype, mask, cached=True, **zero)
    # Enough blocks for the layouts that serve large batches.
    check_cuvil(ep_session, (9, 16, 130, 65, 32), dtype, mask, kv=4, **zero)


@pytest.mark.parametrize("dtype", list(TYPES))
@pytest.mark.parametrize("zero", [False, True])
def test_rows_without_keys(ep_session: MakeSession, zero: bool, dtype: str) -> None:
    for layout in ("separate", "packed"):
        options: dict[str, Any] = {"layout": layout, "masked_rows_zero": zero}
        check_cuvil(ep_session, (2, 3, 50, 50, 64), dtype, "masked_rows", **options)
        check_cuvil(ep_session, (2, 3, 50, 50, 36), dtype, "masked_rows", causal=True, **options)
        check_cuvil(ep_session, (2, 3, 50, 50, 64), dtype, "masked_rows", mask_dtype="bool", **options)
        check_cuvil(ep_session, (2, 3, 50, 50, 64), dtype, "keys_inf", mask_dtype="bool", **options)
        check_cuvil(ep_session, (22, 12, 130, 130, 64), dtype, "masked_batch", **options)


@pytest.mark.parametrize("dtype", list(TYPES))
def test_scales(ep_session: MakeSession, dtype: str) -> None:
    for scale in (-0.3, 1.0):
        check_cuvil(ep_session, (1, 2, 40, 40, 16), dtype, scale=scale)


@pytest.mark.parametrize("dtype", list(TYPES))
def test_long(ep_session: MakeSession, dtype: str) -> None:
    check_cuvil(ep_session, (1, 2, 1025, 1025, 64), dtype, causal=True, layout="packed")
    check_cuvil(ep_session, (1, 2, 1, 3000, 64), dtype, "keys")


def test_nan_stays_in_its_query(ep_session: MakeSession) -> None:
    for dtype in TYPES:
        q, k, v = (rounded(normal(1, 40, 64, seed=i), dtype) for i in range(3))
        q[0, 7, 3] = np.nan
        attrs = {"num_heads": 2, "scale": 0.2, "causal": 0, "layout": "separate"}
        y = run(ep_session, "Attention", "cuvil", [q, k, v, None], [dtype] * 4, attrs, 17)
        assert (
            np.isnan(y[0, 7, :32]).all() and not np.isnan(np.delete(y, 7, 1)).any() and not np.isnan(y[0, 7, 32:]).any()
        )


def check_onnx(
    make: MakeSession,
    dims: tuple[int, int, int, int, int, int],
    dtype: str,
    *,
    v_head: int | None = None,
    rank: int = 4,
    mask: Array | None = None,
    causal: bool = False,
) -> None:
    b, n, kv, s, t, h = dims
    q = rounded(normal(b, n, s, h), dtype)
    k, v = rounded(normal(b, kv, t, h, seed=1), dtype), rounded(normal(b, kv, t, v_head or h, seed=2), dtype)
    attrs: dict[str, Any] = {"is_causal": int(causal)}
    operands = [q, k, v]
    if rank == 3:
        operands = [merged(x) for x in operands]
        attrs |= {"q_num_heads": n, "kv_num_heads": kv}
    found = run(make, "Attention", "", [*operands, mask], [dtype] * 4, attrs, 23)
    added = None if mask is None else np.where(mask, 0, -np.inf) if mask.dtype == np.bool_ else mask
    groups = n // kv
    exact, size = attention(q, k.repeat(groups, 1), v.repeat(groups, 1), added, h**-0.5, causal)
    exact = np.nan_to_num(exact)  # the standard's result for a query that sees no key
    compare(found, exact if rank == 4 else merged(exact), size if rank == 4 else merged(size), dtype)


@pytest.mark.parametrize("dtype", list(TYPES))
@pytest.mark.parametrize("rank", [3, 4])
def test_onnx_attention(ep_session: MakeSession, rank: int, dtype: str) -> None:
    check_onnx(ep_session, (2, 3, 3, 17, 17, 64), dtype, rank=rank)
    check_onnx(ep_session, (2, 6, 2, 30, 45, 32), dtype, rank=rank, causal=True)
    check_onnx(ep_session, (1, 2, 2, 9, 70, 16), dtype, v_head=24, rank=rank)
    hide = np.random.default_rng(5).random((30, 45)) < 0.5
    hide[4] = False  # a query that sees no key gives 0
    check_onnx(ep_session, (2, 2, 2, 30, 45, 64), dtype, rank=rank, mask=hide)
    check_onnx(ep_session, (2, 2, 2, 30, 45, 64), dtype, rank=rank, mask=rounded(normal(2, 1, 30, 45), dtype))


@pytest.mark.parametrize("form", ["rows", "heads", "packed_kv", "packed"])
@pytest.mark.parametrize("causal", [False, True])
def test_microsoft_multi_head_attention(ep_session: MakeSession, causal: bool, form: str) -> None:
    b, n, s, t, h = 2, 3, 20, 20 if causal or form == "packed" else 33, 32
    q, k, v = (rounded(normal(b, n, r, h, seed=i), "float32") for i, r in enumerate((s, t, t)))
    mask = rounded(normal(1, n, s, t, seed=3), "float32")
    operands: list[Array | None] = [merged(q), merged(k), merged(v)]
    if form == "heads":
        operands = [merged(q), k, v]
    elif form == "packed_kv":  # [B, T, N, 2, H]
        operands = [merged(q), np.stack([k, v], -2).transpose(0, 2, 1, 3, 4), None]
    elif form == "packed":
        operands = [np.stack([q, k, v], -2).transpose(0, 2, 1, 3, 4), None, None]
    attrs = {"num_heads": n, "unidirectional": int(causal)}
    operands += [None, None, mask]
    found = run(ep_session, "MultiHeadAttention", "com.microsoft", operands, ["float32"] * 6, attrs, 17)
    exact, size = attention(q, k, v, mask, h**-0.5, causal)
    compare(found, merged(exact), merged(size), "float32")


@quick
@given(data=st.data())
def test_any_shape(ep_session: MakeSession, data: st.DataObject) -> None:
    draw = data.draw
    dims = (
        draw(st.integers(1, 3)),
        draw(st.integers(1, 4)),
        draw(st.integers(1, 200)),
        draw(st.integers(1, 200)),
        draw(st.integers(1, 17)) * draw(st.sampled_from([1, 8])),
    )
    check_cuvil(
        ep_session,
        dims,
        draw(st.sampled_from(list(TYPES))),
        draw(st.sampled_from([*MASKS, "masked_batch"])),
        causal=draw(st.booleans()),
        layout=draw(st.sampled_from(["packed", "separate"])),
        kv=draw(st.sampled_from([d for d in range(1, dims[1] + 1) if dims[1] % d == 0])),
        masked_rows_zero=draw(st.booleans()),
    )


def test_empty(ep_session: MakeSession) -> None:
    attrs = {"num_heads": 2, "scale": 1.0, "causal": 0, "layout": "separate"}
    q, none = normal(2, 3, 16), np.zeros((2, 0, 16))
    y = run(ep_session, "Attention", "cuvil", [q, none, none, None], ["float32"] * 4, attrs, 17, static=False)
    assert (y == np.zeros((2, 3, 16))).all()
    y = run(ep_session, "Attention", "cuvil", [none, q, q, None], ["float32"] * 4, attrs, 17, static=False)
    assert y.shape == (2, 0, 16)


def test_refusals_are_told(ep_session: MakeSession) -> None:
    attrs = {"num_heads": 2, "scale": 1.0, "causal": 0, "layout": "separate"}
    q = normal(2, 3, 16)
    for wrong, kv in ((normal(2, 4, 18), 0), (normal(1, 4, 16), 0), (normal(2, 4, 16), 1)):
        attrs["kv_num_heads"] = kv
        with pytest.raises(Exception, match=r"\[2,3,16\]"):
            run(ep_session, "Attention", "cuvil", [q, wrong, wrong, None], ["float32"] * 4, attrs, 17, static=False)
