"""cuvil::LayerNorm: the residual sum and the normalization after it in one op."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from custom_ops.body import Body
from custom_ops.shapes import broadcast
from custom_ops.spec import Array, Attribute, Call, Example, Inferred, Input, OpSpec, Output, normal


def _body(body: Body, call: Call, inputs: Sequence[ir.Value | None]) -> Sequence[ir.Value]:
    x, scale, bias, skip, skip_bias = [None if v is None else body.widen(v) for v in (*inputs, None, None, None)[:5]]
    assert x is not None and scale is not None
    total = x
    for term in (skip, skip_bias):
        if term is not None:
            total = body.op("Add", total, term)
    epsilon = float(call.attrs["epsilon"])
    y = (_rms if call.attrs["rms"] else _standard)(body, total, scale, bias, epsilon)
    outputs = [body.narrow(y)]
    if call.num_outputs > 1:
        # An output of its own node, since a function's output must not be its input.
        outputs.append(body.narrow(total) if body.half else body.op("Identity", total))
    return outputs


def _standard(body: Body, x: ir.Value, scale: ir.Value, bias: ir.Value | None, epsilon: float) -> ir.Value:
    if body.opset >= 17:
        return body.op("LayerNormalization", x, scale, bias, axis=-1, epsilon=epsilon)
    centred = body.op("Sub", x, body.reduce_mean(x, -1))
    return _scaled(body, centred, scale, bias, epsilon)


def _rms(body: Body, x: ir.Value, scale: ir.Value, bias: ir.Value | None, epsilon: float) -> ir.Value:
    if body.opset >= 23:
        y = body.op("RMSNormalization", x, scale, axis=-1, epsilon=epsilon)
        return y if bias is None else body.op("Add", y, bias)
    return _scaled(body, x, scale, bias, epsilon)


def _scaled(body: Body, x: ir.Value, scale: ir.Value, bias: ir.Value | None, epsilon: float) -> ir.Value:
    mean_square = body.reduce_mean(body.op("Mul", x, x), -1)
    deviation = body.op("Sqrt", body.op("Add", mean_square, body.constant(epsilon, body.wide)))
    y = body.op("Mul", body.op("Div", x, deviation), scale)
    return y if bias is None else body.op("Add", y, bias)


def _infer(call: Call) -> Sequence[Inferred]:
    shapes = [call.shape(i) for i in (0, 3, 4) if call.has(i)]
    known = [s for s in shapes if s is not None]
    result = broadcast(known) if len(known) == len(shapes) else None
    return [(call.dtype, result)] * call.num_outputs


def _reference(inputs: Sequence[Array | None], attrs: Mapping[str, Any]) -> Sequence[Array]:
    x, scale, bias, skip, skip_bias = (*inputs, None, None, None)[:5]
    assert x is not None and scale is not None
    total = x + (0 if skip is None else skip) + (0 if skip_bias is None else skip_bias)
    centred = total if attrs["rms"] else total - total.mean(-1, keepdims=True)
    deviation = np.sqrt((centred * centred).mean(-1, keepdims=True) + attrs["epsilon"])
    return [centred / deviation * scale + (0 if bias is None else bias), total]


def _examples() -> Iterable[Example]:
    for rms in (0, 1):
        attrs = {"epsilon": 1e-5, "rms": rms}
        tag = "rms" if rms else "layer"

        def make(name: str, *shape: int, tag: str = tag) -> Array:
            return normal(f"{tag} {name}", *shape)

        yield Example(f"{tag}_plain", (make("x", 3, 5, 64), make("s", 64), make("b", 64)), attrs)
        yield Example(f"{tag}_no_bias", (make("x", 2, 384), make("s", 384), None), attrs)
        full = (make("x", 2, 7, 96), make("s", 96), make("b", 96), make("k", 2, 7, 96), make("kb", 96))
        yield Example(f"{tag}_skip_bias_sum", full, attrs, num_outputs=2)
        yield Example(f"{tag}_skip_no_bias", (full[0], full[1], None, full[3]), attrs, num_outputs=2)
        yield Example(f"{tag}_skip_broadcast", (full[0], full[1], full[2], make("kr", 7, 96)), attrs)
        yield Example(f"{tag}_skip_bias_only", (full[0], full[1], full[2], None, full[4]), attrs, num_outputs=2)
    # A mean far from zero: a variance computed as E[x^2] - E[x]^2 in float32 is off by tens of percent here.
    far = normal("far", 4, 256) + np.float32(1000)
    yield Example("large_mean", (far, np.ones(256, np.float32), np.zeros(256, np.float32)), half=False)
    yield Example("odd_width", (normal("odd", 3, 33), normal("odds", 33), normal("oddb", 33)))
    yield Example("wide", (normal("wide", 2, 5120), normal("wides", 5120), normal("wideb", 5120)))
    yield Example("empty", (normal("empty", 0, 8), normal("es", 8), normal("eb", 8)))


SPEC = OpSpec(
    name="LayerNorm",
    doc="S = X + skip + skip_bias; Y = (S - mean(S)) / sqrt(var(S) + epsilon) * scale + bias over the last axis. With "
    "`rms` nothing is subtracted and var(S) is mean(S^2). Everything is computed in float32 for 16-bit tensors: S is "
    "rounded only as an output, its float32 sum feeds the norm. For what ONNX LayerNormalization (opset 17) and "
    "RMSNormalization (23) cannot say: the residual sum, and older opsets.",
    inputs=(
        Input("X", "[..., N]", "input"),
        Input("scale", "[N]", "gain"),
        Input("bias", "[N]", "added last", optional=True),
        Input("skip", "the shape of X, or its last dimensions behind leading ones", "added to X", optional=True),
        Input("skip_bias", "[N]", "added to X and skip", optional=True),
    ),
    outputs=(
        Output("Y", "the shape of X", "normalized"),
        Output("S", "the shape of X", "the sum before normalization", optional=True),
    ),
    attributes=(
        Attribute("epsilon", ir.AttributeType.FLOAT, "added to the variance", default=1e-5),
        Attribute("rms", ir.AttributeType.INT, "1: root mean square norm", default=0, allowed=(0, 1)),
    ),
    body=_body,
    infer=_infer,
    reference=_reference,
    examples=_examples,
)
