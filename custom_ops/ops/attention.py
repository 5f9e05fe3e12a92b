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
    q, k, v, mask = (*inputs, None, None, None)[:4]
    assert q is not None
    if call.attrs["layout"] == "packed":
        q, k, v = body.split(body.widen(q), 3, axis=2)
    else:
        assert k is not None and v is not None
        q, k, v = body.widen(q), body.widen(k), body.widen(v)
    heads = call.attrs["num_heads"]

    def split_heads(x: ir.Value, perm: Sequence[int]) -> ir.Value:
        return body.transpose(body.reshape(x, [0, 0, heads, -1]), perm)

    scores = body.op("MatMul", split_heads(q, [0, 2, 1, 3]), split_heads(k, [0, 2, 3, 1]))
    scores = body.op("Mul", scores, body.constant(call.attrs["scale"], body.wide))
    if mask is not None:
        given = call.inputs[3]
        mask_dtype = body.dtype if given is None or given.dtype is None else given.dtype
        scores = body.op("Add", scores, body.cast(mask, body.wide, mask_dtype))
    if call.attrs["causal"]:
        scores = _hide_future(body, scores)
    weights = body.op("Softmax", scores, axis=3)
    context = body.op("MatMul", weights, split_heads(v, [0, 2, 1, 3]))
    return [body.narrow(body.reshape(body.transpose(context, [0, 2, 1, 3]), [0, 0, -1]))]


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
    if call.attrs["causal"] and call.opset < 11:
        raise call.fail(f"causal needs opset 11 (Range) for its body, the model has {call.opset}")
    if call.attrs["num_heads"] < 1:
        raise call.fail(f"num_heads must be positive, got {call.attrs['num_heads']}")
    q = call.shape(0)
    width = None if q is None or len(q) != 3 else q[2]
    parts = call.attrs["num_heads"] * (3 if packed else 1)
    if q is not None and (len(q) != 3 or (isinstance(width, int) and width % parts)):
        raise call.fail(f"Q must be [B, S, a multiple of {parts}], got {q}")


def _infer(call: Call) -> Sequence[Inferred]:
    q, v = call.shape(0), call.shape(2)
    if q is None or len(q) != 3:
        return [(call.dtype, None)]
    width = q[2]
    if call.attrs["layout"] == "packed":
        width = width // 3 if isinstance(width, int) else ir.SymbolicDim(None)
    elif v is not None and len(v) == 3:
        width = v[2]
    return [(call.dtype, shape([q[0], q[1], width]))]


def _reference(inputs: Sequence[Array | None], attrs: Mapping[str, Any]) -> Sequence[Array]:
    q, k, v, mask = (*inputs, None, None, None)[:4]
    assert q is not None
    if attrs["layout"] == "packed":
        q, k, v = np.split(q, 3, axis=-1)
    assert k is not None and v is not None
    heads = attrs["num_heads"]

    def split_heads(x: Array) -> Array:
        return x.reshape(x.shape[0], x.shape[1], heads, -1).transpose(0, 2, 1, 3)

    scores = split_heads(q) @ split_heads(k).swapaxes(2, 3) * attrs["scale"]
    if mask is not None:
        scores = scores + mask
    if attrs["causal"]:
        scores = np.where(np.triu(np.ones(scores.shape[2:], bool), 1), -np.inf, scores)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    context = (weights / weights.sum(-1, keepdims=True)) @ split_heads(v)
    return [context.transpose(0, 2, 1, 3).reshape(q.shape[0], q.shape[1], -1)]


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
    # Scores of several hundreds, whose exponentials overflow unless the row's maximum is subtracted.
    yield Example("large_scores", (qkv * 12,), packed, half=False)


SPEC = OpSpec(
    name="Attention",
    doc="Y = softmax(Q K^T * scale + mask) V a head, heads merged again. Scores and softmax are float32 for 16-bit "
    "tensors. `causal` hides keys whose position is greater than the query's, both counted from 0. A row whose every "
    "key is masked with -inf is NaN.",
    inputs=(
        Input("Q", "[B, S, N * H], packed: [B, S, 3 * N * H]", "queries; packed: all Q, then all K, then all V"),
        Input("K", "[B, T, N * H]", "keys, absent when packed", optional=True),
        Input("V", "[B, T, N * H]", "values, absent when packed", optional=True),
        Input("mask", "broadcasting to [B, N, S, T]", "added to the scores", "T or float32", optional=True),
    ),
    outputs=(Output("Y", "[B, S, N * H]", "context"),),
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
    ),
    body=_body,
    infer=_infer,
    reference=_reference,
    examples=_examples,
    check=_check,
)
