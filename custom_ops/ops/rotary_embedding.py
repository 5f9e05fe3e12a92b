"""cuvil::RotaryEmbedding: rotates pairs of elements of each head by the angles of its position."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from custom_ops.body import Body
from custom_ops.spec import Array, Attribute, Call, Example, Inferred, Input, OpSpec, Output, normal


def _body(body: Body, call: Call, inputs: Sequence[ir.Value | None]) -> Sequence[ir.Value]:
    x, cos, sin = inputs[:3]
    assert x is not None and cos is not None and sin is not None
    heads, rotated, dim, size = _sizes(call.attrs, call.shape(0))
    x = body.reshape(body.widen(x), [0, 0, heads, size])
    rest: list[ir.Value] = []
    if rotated < heads:
        x, others = body.split(x, [rotated, heads - rotated], axis=2)
        rest.append(others)
    tail: list[ir.Value] = []
    if dim < size:
        x, beyond = body.split(x, [dim, size - dim], axis=3)
        tail.append(beyond)
    x = _rotate(body, call, x, cos, sin)
    if tail:
        x = body.op("Concat", x, *tail, axis=3)
    if rest:
        x = body.op("Concat", x, *rest, axis=2)
    return [body.narrow(body.reshape(x, [0, 0, heads * size]))]


def _rotate(body: Body, call: Call, x: ir.Value, cos: ir.Value, sin: ir.Value) -> ir.Value:
    """x [B, S, n, R], all of it rotated."""
    _, rotated, dim, _ = _sizes(call.attrs, call.shape(0))
    interleaved, pairs = call.attrs["interleaved"], call.attrs["per_pair"]
    axis = 4 if interleaved else 3
    if interleaved and pairs:
        x = body.reshape(x, [0, 0, rotated, dim // 2, 2])
    factors = []
    for index, value in ((1, cos), (2, sin)):
        given = call.inputs[index]
        dtype = body.dtype if given is None or given.dtype is None else given.dtype
        shape = [0, 0, 1, dim // 2, 1] if interleaved and pairs else [0, 0, 1, dim // 2 if pairs else dim]
        factors.append(body.reshape(body.cast(value, body.wide, dtype), shape))
    c, s = factors

    def mul(a: ir.Value, b: ir.Value) -> ir.Value:
        return body.op("Mul", a, b)

    whole = [0, 0, rotated, dim]
    if pairs:
        a, b = body.split(x, 2, axis=axis)
        first = body.op("Sub", mul(a, c), mul(b, s))
        second = body.op("Add", mul(b, c), mul(a, s))
        y = body.op("Concat", first, second, axis=axis)
        return body.reshape(y, whole) if interleaved else y
    a, b = body.split(body.reshape(x, [0, 0, rotated, dim // 2, 2]) if interleaved else x, 2, axis=axis)
    turned = body.op("Concat", body.op("Neg", b), a, axis=axis)
    turned = body.reshape(turned, whole) if interleaved else turned
    return body.op("Add", mul(x, c), mul(turned, s))


def _sizes(attrs: Mapping[str, Any], shape: ir.Shape | None) -> tuple[int, int, int, int]:
    """(heads, rotated heads, rotated elements, head size)."""
    assert shape is not None and isinstance(shape[2], int)
    heads = attrs["num_heads"]
    return heads, attrs["rotated_heads"] or heads, attrs["rotary_dim"], shape[2] // heads


def _check(call: Call) -> None:
    x, heads, dim = call.shape(0), call.attrs["num_heads"], call.attrs["rotary_dim"]
    if x is None or len(x) != 3 or heads < 1 or not isinstance(x[2], int) or x[2] % heads:
        raise call.fail(f"X must be [B, S, a multiple of num_heads = {heads}], got {x}")
    if dim < 2 or dim % 2 or dim > x[2] // heads:
        raise call.fail(f"rotary_dim must be even and at most the head size {x[2] // heads}, got {dim}")
    if not 0 <= call.attrs["rotated_heads"] <= heads:
        raise call.fail(f"rotated_heads must be at most num_heads = {heads}, got {call.attrs['rotated_heads']}")
    width = dim // 2 if call.attrs["per_pair"] else dim
    for index, name in ((1, "cos"), (2, "sin")):
        shape = call.shape(index)
        if shape is not None and (len(shape) != 3 or (isinstance(shape[2], int) and shape[2] != width)):
            raise call.fail(f"{name} must be [1 or B, 1 or S, {width}], got {shape}")


def _infer(call: Call) -> Sequence[Inferred]:
    return [(call.dtype, call.shape(0))]


def _reference(inputs: Sequence[Array | None], attrs: Mapping[str, Any]) -> Sequence[Array]:
    x, cos, sin = inputs[:3]
    assert x is not None and cos is not None and sin is not None
    heads, dim = attrs["num_heads"], attrs["rotary_dim"]
    y = x.reshape(*x.shape[:2], heads, -1).copy()
    turned = y[:, :, : attrs["rotated_heads"] or heads, :dim]
    index = np.arange(dim)
    if attrs["interleaved"]:
        partner, first, pair = index ^ 1, index % 2 == 0, index // 2
    else:
        partner, first, pair = (index + dim // 2) % dim, index < dim // 2, index % (dim // 2)
    factor = pair if attrs["per_pair"] else index
    c, s = cos[:, :, None, factor], sin[:, :, None, factor]
    turned[:] = turned * c + np.where(first, -1, 1) * turned[..., partner] * s
    return [y.reshape(x.shape)]


def _examples() -> Iterable[Example]:
    b, s, n, h = 2, 5, 3, 16
    x = normal("rotary", b, s, n * h)

    def angles(name: str, *shape: int) -> tuple[Array, Array]:
        angle = normal(name, *shape, scale=3.0)
        return np.cos(angle), np.sin(angle)

    for interleaved in (0, 1):
        kind = "interleaved" if interleaved else "halves"
        attrs = {"num_heads": n, "rotary_dim": h, "interleaved": interleaved}
        yield Example(kind, (x, *angles("a", b, s, h)), attrs)
        yield Example(f"{kind}_one_batch", (x, *angles("b", 1, s, h)), attrs)
        yield Example(f"{kind}_pairs", (x, *angles("c", b, s, h // 2)), {**attrs, "per_pair": 1})
        part = {**attrs, "rotary_dim": 6}
        yield Example(f"{kind}_part_of_head", (x, *angles("d", 1, s, 6)), part)
        yield Example(f"{kind}_part_of_head_pairs", (x, *angles("e", b, s, 3)), {**part, "per_pair": 1})
        some = {**attrs, "rotated_heads": 2}
        yield Example(f"{kind}_some_heads", (x, *angles("f", b, 1, h)), some)
        yield Example(f"{kind}_some_of_some", (x, *angles("g", b, s, 6)), {**some, "rotary_dim": 6})
        wide = normal("wide", 1, 7, 4 * 64)
        yield Example(f"{kind}_wide", (wide, *angles("h", 1, 7, 64)), {**attrs, "num_heads": 4, "rotary_dim": 64})
        quarter = {**attrs, "num_heads": 4, "rotary_dim": 16, "per_pair": 1, "rotated_heads": 3}
        yield Example(f"{kind}_wide_quarter", (wide, *angles("i", 1, 7, 8)), quarter)


SPEC = OpSpec(
    name="RotaryEmbedding",
    doc="The first `rotary_dim` = R elements of a head are R / 2 pairs (a, b), which become (a cos - b sin, b cos + a "
    "sin); a and b are R / 2 apart, or neighbours when `interleaved`. Computed in float32 for 16-bit tensors. What is "
    "beyond R, and heads from `rotated_heads` on, stays: packed queries, keys and values are rotated in one call, in "
    "place. Unlike ONNX RotaryEmbedding (opset 23) cos and sin may be the same for the whole batch.",
    inputs=(
        Input("X", "[B, S, N * H]", "heads next to each other"),
        Input("cos", "[1 or B, 1 or S, R]", "one value an element, with `per_pair` [.., R / 2]", "T or float32"),
        Input("sin", "[1 or B, 1 or S, R]", "as cos", "T or float32"),
    ),
    outputs=(Output("Y", "[B, S, N * H]", "rotated"),),
    attributes=(
        Attribute("num_heads", ir.AttributeType.INT, "N"),
        Attribute("rotary_dim", ir.AttributeType.INT, "R, even"),
        Attribute("interleaved", ir.AttributeType.INT, "1: pairs are neighbours", default=0, allowed=(0, 1)),
        Attribute("per_pair", ir.AttributeType.INT, "1: a pair shares its cos and sin", default=0, allowed=(0, 1)),
        Attribute("rotated_heads", ir.AttributeType.INT, "only the first so many; 0: all", default=0),
    ),
    body=_body,
    infer=_infer,
    reference=_reference,
    examples=_examples,
    check=_check,
)
