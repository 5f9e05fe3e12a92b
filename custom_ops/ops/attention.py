"""cuvil::Attention: multi-head attention from projected queries, keys and values to the merged context."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from custom_ops.body import Body
from custom_ops.shapes import shape
from custom_ops.spec import Array, Attribute, Call, Example, Inferred, Input, OpSpec, Output, normal


def _body(body: Body, call: Call, inputs: Sequence[ir.Value | None]) -> Sequence[ir.Value]:
    # Not ONNX Attention-23: ONNX Runtime's kernel refuses a mask that broadcasts over the queries.
    # Where sizes are known none is left for Reshape to infer: from an empty batch nothing can be inferred.
    mask = inputs[3]
    heads, kv_heads = call.attrs["num_heads"], _kv_heads(call.attrs)
    q, k, v, present = _split_heads(body, call, inputs)
    shared = heads // kv_heads
    grouped = shared > 1
    separate = _shape(body, q) if grouped else None
    if grouped:  # the queries of all heads that share a key, one below the other: nothing is repeated
        q = body.op("Reshape", q, _regrouped(body, separate, [1, 1, shared, 1], [1, shared, 1, 1]))
    scores = body.op("Mul", body.op("MatMul", q, k), body.constant(call.attrs["scale"], body.wide))
    joined = _shape(body, scores) if grouped else None
    if grouped:
        scores = body.op("Reshape", scores, _regrouped(body, joined, [1, shared, 1, 1], [1, 1, shared, 1]))
    if mask is not None:
        mask = _addend(body, call, mask)
        scores = body.op("Add", scores, mask)
    if call.attrs["causal"]:
        scores = _hide_future(body, scores)
    weights = body.op("Softmax", scores, axis=3)
    if call.attrs["masked_rows_zero"] and mask is not None:
        weights = _zero_hidden(body, scores if call.attrs["causal"] else mask, weights)
    if grouped:
        weights = body.op("Reshape", weights, joined)
    context = body.op("MatMul", weights, v)
    size = _head_size(call, 2)
    if grouped:
        if size is None or size != _head_size(call, 0):
            separate = _regrouped(body, _shape(body, context), [1, shared, 1, 1], [1, 1, shared, 1])
        context = body.op("Reshape", context, separate)
    width = -1 if size is None else heads * size
    return [body.narrow(body.reshape(body.transpose(context, [0, 2, 1, 3]), [0, 0, width])), *present]


def _shape(body: Body, x: ir.Value) -> ir.Value:
    return body.op("Shape", x)


def _regrouped(body: Body, sizes: ir.Value | None, times: Sequence[int], parts: Sequence[int]) -> ir.Value:
    """The sizes of a tensor of which one axis becomes longer and another shorter."""
    assert sizes is not None
    int64 = ir.DataType.INT64
    return body.op("Div", body.op("Mul", sizes, body.constant(times, int64)), body.constant(parts, int64))


def _kv_heads(attrs: Mapping[str, Any]) -> int:
    """The number of heads of K and V; 0 stands for as many as Q has."""
    return int(attrs["kv_num_heads"] or attrs["num_heads"])


def _head_size(call: Call, index: int) -> int | None:
    """The size of the heads of Q, K or V; None when it is not known."""
    heads, kv_heads = call.attrs["num_heads"], _kv_heads(call.attrs)
    packed = call.attrs["layout"] == "packed"
    given = call.shape(0 if packed else index)
    if given is None or not isinstance(given[-1], int):
        return None
    if _heads_first(call, index):
        return given[-1]
    return given[-1] // (heads + 2 * kv_heads if packed else kv_heads if index else heads)


def _split_heads(
    body: Body, call: Call, inputs: Sequence[ir.Value | None]
) -> tuple[ir.Value, ir.Value, ir.Value, list[ir.Value]]:
    """Q [B, N, S, H], K [B, G, H, T] and V [B, G, T, H], as wide as the scores; and the caches when there is a past."""
    heads, kv_heads = call.attrs["num_heads"], _kv_heads(call.attrs)
    given = [x if call.has(4) else body.widen(x) for x in inputs[:3] if x is not None]
    known = [-1 if size is None else size for size in (_head_size(call, i) for i in range(3))]
    if call.attrs["layout"] == "packed" and kv_heads != heads:
        sizes = [heads, kv_heads, kv_heads]
        parts = body.split(body.reshape(given[0], [0, 0, sum(sizes), known[0]]), sizes, axis=2)
    else:
        three = body.split(given[0], 3, axis=2) if call.attrs["layout"] == "packed" else given
        parts = [
            x if _heads_first(call, i) else body.reshape(x, [0, 0, n, known[i]])
            for i, (x, n) in enumerate(zip(three, (heads, kv_heads, kv_heads), strict=True))
        ]
    q, k, v = parts
    q = body.transpose(q, [0, 2, 1, 3])
    if not call.has(4):
        k = body.transpose(k, [0, 1, 3, 2] if _heads_first(call, 1) else [0, 2, 3, 1])
        return q, k, v if _heads_first(call, 2) else body.transpose(v, [0, 2, 1, 3]), []
    present = []
    for i, new in ((1, k), (2, v)):
        new = new if _heads_first(call, i) else body.transpose(new, [0, 2, 1, 3])
        present.append(body.op("Concat", inputs[3 + i], new, axis=2))
    k, v = (body.widen(x) for x in present)
    return body.widen(q), body.transpose(k, [0, 1, 3, 2]), v, present


def _heads_first(call: Call, index: int) -> bool:
    """Whether K or V is [B, G, T, H], as caches are."""
    given = call.shape(index) if index else None
    return given is not None and len(given) == 4


def _addend(body: Body, call: Call, mask: ir.Value) -> ir.Value:
    """What the mask adds to the scores, in their type."""
    given = call.inputs[3]
    dtype = body.dtype if given is None or given.dtype is None else given.dtype
    if dtype == ir.DataType.BOOL:
        zero, hidden = (body.constant(x, body.wide) for x in (0.0, -np.inf))
        return body.op("Where", mask, zero, hidden)
    return body.cast(mask, body.wide, dtype)


def _zero_hidden(body: Body, hiding: ir.Value, weights: ir.Value) -> ir.Value:
    """`weights` with 0 for keys hidden by `hiding`: rows of nothing else are NaN before, in others it is 0 already."""
    hidden = body.op("Equal", hiding, body.constant(-np.inf, body.wide))
    return body.op("Where", hidden, body.constant(0.0, body.wide), weights)


def _hide_future(body: Body, scores: ir.Value) -> ir.Value:
    """-inf where the key's position is greater than the query's, both counted from 0 as in ONNX Attention."""
    int64 = ir.DataType.INT64

    def positions(axis: int) -> ir.Value:
        size = body.op("Gather", body.op("Shape", scores), body.constant(axis, int64), axis=0)
        return body.op("Range", body.constant(0, int64), size, body.constant(1, int64))

    keys, queries = positions(3), body.reshape(positions(2), [-1, 1])
    return body.op("Where", body.op("Less", queries, keys), body.constant(-np.inf, body.wide), scores)


def _check(call: Call) -> None:
    packed = call.attrs["layout"] == "packed"
    for index, name in ((1, "K"), (2, "V")):
        if call.has(index) == packed:
            raise call.fail(f"layout '{call.attrs['layout']}' {'has no' if packed else 'needs'} input {name}")
    if call.has(4) != call.has(5):
        raise call.fail("only one of past_key and past_value is given")
    if call.num_outputs != (3 if call.has(4) else 1):
        raise call.fail(f"{call.num_outputs} outputs; 3 are required with a past, else 1")
    if call.has(4) and call.attrs["causal"]:
        raise call.fail("causal counts keys from 0 and is not defined with a past; a mask is required")
    needs = {"causal": "Range", "masked_rows_zero": "Equal of floats"}
    for name, operator in needs.items():
        if call.attrs[name] and call.opset < 11:
            raise call.fail(f"{name} needs opset 11 ({operator}) for its body, the model has {call.opset}")
    heads, kv_heads = call.attrs["num_heads"], _kv_heads(call.attrs)
    if heads < 1 or kv_heads < 1 or heads % kv_heads:
        raise call.fail(f"num_heads must be a positive multiple of kv_num_heads, got {heads} and {kv_heads}")
    widths = {0: heads + 2 * kv_heads} if packed else {0: heads, 1: kv_heads, 2: kv_heads}
    for index, parts in widths.items():
        found = call.shape(index)
        width = None if found is None or len(found) != 3 else found[2]
        if found is not None and _heads_first(call, index):
            if found[1] != parts:
                raise call.fail(f"{'QKV'[index]} must be [B, {parts}, T, H], got {found}")
            continue
        if found is not None and (len(found) != 3 or (isinstance(width, int) and width % parts)):
            raise call.fail(f"{'QKV'[index]} must be [B, {'SSTT'[index]}, a multiple of {parts}], got {found}")
    for index in (4, 5):
        found = call.shape(index)
        if found is not None and (len(found) != 4 or found[1] != kv_heads):
            raise call.fail(f"{call.op} past must be [B, {kv_heads}, P, H], got {found}")
    mask = call.shape(3)
    if mask is not None and (len(mask) > 4 or (call.attrs["masked_rows_zero"] and len(mask) < 1)):
        raise call.fail(f"the mask must have rank 1 to 4, got {mask}")


def _infer(call: Call) -> Sequence[Inferred]:
    q, v = call.shape(0), call.shape(2)
    present = [(call.dtype, _grown(call, index)) for index in (4, 5) if call.has(index)]
    if q is None or len(q) != 3:
        return [(call.dtype, None), *present]
    width = q[2]
    heads, kv_heads = call.attrs["num_heads"], _kv_heads(call.attrs)
    if call.attrs["layout"] == "packed":
        width = width // (heads + 2 * kv_heads) * heads if isinstance(width, int) else ir.SymbolicDim(None)
    elif v is not None and len(v) == 4:
        width = v[3] * heads if isinstance(v[3], int) else ir.SymbolicDim(None)
    elif v is not None and len(v) == 3:
        width = v[2] if kv_heads == heads else ir.SymbolicDim(None)
        if isinstance(v[2], int):
            width = v[2] // kv_heads * heads
    return [(call.dtype, shape([q[0], q[1], width])), *present]


def _grown(call: Call, index: int) -> ir.Shape | None:
    """The shape of a past with the new keys or values."""
    past = call.shape(index)
    if past is None:
        return None
    new = call.shape(0 if call.attrs["layout"] == "packed" else index - 3)
    rows = None if new is None else new[2 if _heads_first(call, index - 3) else 1]
    total = past[2] + rows if isinstance(past[2], int) and isinstance(rows, int) else ir.SymbolicDim(None)
    return shape([past[0], past[1], total, past[3]])


def _reference(inputs: Sequence[Array | None], attrs: Mapping[str, Any]) -> Sequence[Array]:
    q, k, v, mask, past_k, past_v = (*inputs, None, None, None, None, None)[:6]
    assert q is not None
    heads, kv_heads = attrs["num_heads"], _kv_heads(attrs)
    if attrs["layout"] == "packed":
        size = q.shape[-1] // (heads + 2 * kv_heads)
        q, k, v = np.split(q, [heads * size, (heads + kv_heads) * size], axis=-1)
    assert k is not None and v is not None

    def split_heads(x: Array, count: int) -> Array:
        separate = x if x.ndim == 4 else x.reshape(x.shape[0], x.shape[1], count, -1).transpose(0, 2, 1, 3)
        return separate.repeat(heads // count, axis=1)

    def with_past(x: Array, past: Array | None) -> Array:
        separate = x if x.ndim == 4 else x.reshape(x.shape[0], x.shape[1], kv_heads, -1).transpose(0, 2, 1, 3)
        return separate if past is None else np.concatenate([past, separate], axis=2)

    k, v = with_past(k, past_k), with_past(v, past_v)
    scores = split_heads(q, heads) @ split_heads(k, kv_heads).swapaxes(2, 3) * attrs["scale"]
    if mask is not None:
        scores = scores + mask
    if attrs["causal"]:
        scores = np.where(np.triu(np.ones(scores.shape[2:], bool), 1), -np.inf, scores)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights = weights / weights.sum(-1, keepdims=True)
    if attrs["masked_rows_zero"]:
        weights = np.where(scores.max(-1, keepdims=True) == -np.inf, 0, weights)
    return [(weights @ split_heads(v, kv_heads)).transpose(0, 2, 1, 3).reshape(q.shape[0], q.shape[1], -1), k, v]


def _padding_of(batch: int, rows: int, past: int) -> Array:
    """Left padding of the past, for each batch entry another."""
    hidden = np.arange(past + rows) < np.arange(1, batch + 1)[:, None]
    return np.where(hidden, -10000.0, 0).astype(np.float32)[:, None, None]


def _examples() -> Iterable[Example]:
    b, s, t, n, h = 2, 9, 13, 4, 16
    attrs = {"num_heads": n, "scale": h**-0.5}
    packed = {**attrs, "layout": "packed"}
    qkv = normal("qkv", b, s, 3 * n * h)
    q, k, v = (normal(name, b, size, n * h) for name, size in (("q", s), ("k", t), ("v", t)))
    padding = np.zeros((b, 1, 1, s), np.float32)
    padding[0, ..., 5:] = -10000.0
    padding[1, ..., :2] = -10000.0  # left padding too
    hidden = padding.copy()
    hidden[hidden != 0] = -np.inf
    yield Example("packed", (qkv,), packed)
    yield Example("packed_key_mask", (qkv, None, None, padding), packed)
    yield Example("packed_infinite_mask", (qkv, None, None, hidden), packed)
    yield Example("packed_full_mask", (qkv, None, None, normal("bias", b, n, s, s)), packed)
    yield Example("packed_query_mask", (qkv, None, None, normal("bias2", s, s)), packed)
    yield Example("packed_causal", (qkv,), {**packed, "causal": 1}, opset=11)
    yield Example("separate", (q, k, v), {**attrs, "layout": "separate"})
    yield Example("separate_mask", (q, k, v, normal("bias3", b, 1, s, t)), {**attrs, "layout": "separate"})
    yield Example("separate_causal", (q, k, v), {**attrs, "layout": "separate", "causal": 1}, opset=11)
    yield Example("one_token", (normal("qkv1", 1, 1, 3 * 64),), {"num_heads": 2, "scale": 0.25, "layout": "packed"})
    long = normal("qkvl", 1, 200, 3 * 128)
    yield Example("head_64", (long,), {"num_heads": 2, "scale": 0.125, "layout": "packed"})
    yield Example("head_32", (long,), {"num_heads": 4, "scale": 0.2, "layout": "packed"})
    yield Example("head_80", (normal("qkv80", 1, 33, 3 * 160),), {"num_heads": 2, "scale": 0.1, "layout": "packed"})
    # Grouped and multi-query heads.
    few: dict[str, Any] = {**attrs, "kv_num_heads": 2, "layout": "separate"}
    k2, v2 = (normal(name, b, t, 2 * h) for name in ("k2", "v2"))
    yield Example("grouped", (q, k2, v2), few)
    yield Example("grouped_mask", (q, k2, v2, normal("bias4", b, n, s, t)), few)
    yield Example("grouped_causal", (q, k2, v2), {**few, "causal": 1}, opset=11)
    cached = [x.reshape(b, t, 2, h).transpose(0, 2, 1, 3).copy() for x in (k2, v2)]
    yield Example("cached", (q, *cached, normal("bias5", b, 1, s, t)), few)
    yield Example("cached_keys", (q, cached[0], v2), {**few, "causal": 1}, opset=11)
    one: dict[str, Any] = {**packed, "kv_num_heads": 1}
    yield Example("packed_multi_query", (normal("qkv6", b, s, (n + 2) * h), None, None, padding), one)
    wide: dict[str, Any] = {"num_heads": 6, "kv_num_heads": 2, "scale": 0.2, "layout": "packed", "causal": 1}
    yield Example("packed_grouped_causal", (normal("qkvg", 1, 70, 10 * 24),), wide, opset=11)
    # Keys and values of earlier tokens, which the new ones are appended to.
    past = [normal(name, b, 2, 7, h) for name in ("pk", "pv")]
    seen = np.where(np.arange(7 + s) <= 7 + np.arange(s)[:, None], 0, -10000.0).astype(np.float32)
    new = tuple(normal(name, b, s, 2 * h) for name in ("nk", "nv"))
    yield Example("past", (q, *new, seen, *past), few, 3)
    yield Example("past_cached", (q, *(x.reshape(b, s, 2, h).swapaxes(1, 2).copy() for x in new), None, *past), few, 3)
    packed_few = normal("qkvp", b, s, (n + 4) * h)
    yield Example("past_packed", (packed_few, None, None, seen, *past), {**few, "layout": "packed"}, 3)
    all_heads = [normal(name, b, n, 7, h) for name in ("pk4", "pv4")]
    yield Example("past_packed_all_heads", (qkv, None, None, _padding_of(b, s, 7), *all_heads), packed, 3)
    step = (normal("step", b, 1, (n + 4) * h), None, None, None, *past)
    yield Example("past_one_token", step, {**few, "layout": "packed"}, 3)
    none = [x[:, :, :0] for x in past]
    yield Example("past_empty", (packed_few, None, None, seen[:, 7:], *none), {**few, "layout": "packed"}, 3)
    # Queries without any key, with all kinds of masks.
    zero = {"masked_rows_zero": 1}
    rows = np.zeros((b, 1, s, t), np.float32)
    rows[0, 0, 4], rows[1, 0, :3], rows[1, 0, 5, ::2] = -np.inf, -np.inf, -np.inf
    yield Example("masked_rows", (q, k, v, rows), {**attrs, **zero, "layout": "separate"}, opset=11)
    yield Example("masked_rows_grouped", (q, k2, v2, rows), {**few, **zero}, opset=11)
    nothing = np.zeros((b, 1, 1, s), np.float32)
    nothing[0] = -np.inf
    yield Example("masked_batch", (qkv, None, None, nothing), {**packed, **zero}, opset=11)
    left = np.where(np.arange(s) < 2, -np.inf, 0).astype(np.float32)  # causal too: the first queries see no key
    yield Example("masked_causal_rows", (qkv, None, None, left), {**packed, **zero, "causal": 1}, opset=11)
    # Scores of several hundreds, whose exponentials overflow unless the row's maximum is subtracted.
    yield Example("large_scores", (qkv * 12,), packed, half=False)


SPEC = OpSpec(
    name="Attention",
    doc="Y = softmax(Q K^T * scale + mask) V a head, heads merged again. Scores and softmax are float32 for 16-bit "
    "tensors. `causal` hides keys whose position is greater than the query's, both counted from 0. With fewer heads of "
    "keys than of queries (grouped, multi-query) each serves num_heads / kv_num_heads neighbouring heads of queries. A "
    "row whose every key is masked with -inf is 0 with `masked_rows_zero`, else NaN. With a past the keys and values "
    "are those of the past and then the new ones, T = P + S of them, which are outputs too.",
    inputs=(
        Input("Q", "[B, S, N * H], packed: [B, S, (N + 2 * G) * H]", "queries; packed: all Q, then all K, then all V"),
        Input("K", "[B, T, G * H] or [B, G, T, H]", "keys, absent when packed", optional=True),
        Input("V", "[B, T, G * H] or [B, G, T, H]", "values, absent when packed", optional=True),
        Input(
            "mask",
            "broadcasting to [B, N, S, T]",
            "added to the scores; bool: false hides the key",
            "T, float32 or bool",
            True,
        ),
        Input("past_key", "[B, G, P, H]", "keys of earlier tokens, in front of K", optional=True),
        Input("past_value", "[B, G, P, H]", "values of earlier tokens, in front of V", optional=True),
    ),
    outputs=(
        Output("Y", "[B, S, N * H]", "context"),
        Output("present_key", "[B, G, T, H]", "past_key and K, with a past", optional=True),
        Output("present_value", "[B, G, T, H]", "past_value and V, with a past", optional=True),
    ),
    attributes=(
        Attribute("num_heads", ir.AttributeType.INT, "N"),
        Attribute("scale", ir.AttributeType.FLOAT, "multiplies Q K^T"),
        Attribute("causal", ir.AttributeType.INT, "1: hide the future", default=0, allowed=(0, 1)),
        Attribute(
            "layout",
            ir.AttributeType.STRING,
            "whether Q holds K and V too",
            default="separate",
            allowed=("packed", "separate"),
        ),
        Attribute("kv_num_heads", ir.AttributeType.INT, "G, a divisor of N; 0: N", default=0),
        Attribute(
            "masked_rows_zero", ir.AttributeType.INT, "1: queries that see no key give 0", default=0, allowed=(0, 1)
        ),
    ),
    body=_body,
    infer=_infer,
    reference=_reference,
    examples=_examples,
    check=_check,
)
