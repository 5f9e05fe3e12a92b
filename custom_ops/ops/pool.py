"""cuvil::Pool: max and average pooling in either layout."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from custom_ops.body import Body
from custom_ops.shapes import Dim, shape, sliding, to_nchw, to_nhwc
from custom_ops.spec import Array, Attribute, Call, Example, Inferred, Input, OpSpec, Output, normal


def _body(body: Body, call: Call, inputs: Sequence[ir.Value | None]) -> Sequence[ir.Value]:
    (x,) = inputs
    assert x is not None
    attrs = call.attrs
    rank = len(attrs["kernel_shape"]) + 2
    nhwc = attrs["layout"] == "NHWC"
    brain = body.dtype == ir.DataType.BFLOAT16  # ORT's CPU provider has no bfloat16 pool
    dtype = ir.DataType.FLOAT if brain else body.dtype
    x = body.cast(x, dtype, body.dtype)
    x = body.transpose(x, to_nchw(rank)) if nhwc else x
    if attrs["global"]:
        y = body.op("GlobalMaxPool" if attrs["mode"] == "max" else "GlobalAveragePool", x)
    else:
        y = body.op("MaxPool" if attrs["mode"] == "max" else "AveragePool", x, **_window(call))
    return [body.cast(body.transpose(y, to_nhwc(rank)) if nhwc else y, body.dtype, dtype)]


def _window(call: Call) -> dict[str, Any]:
    """The attributes that exist at the opset; `_check` has seen that the others have their default."""
    attrs = call.attrs
    window = {name: attrs[name] for name in ("kernel_shape", "strides", "pads")}
    if call.opset >= 10:
        window["ceil_mode"] = attrs["ceil_mode"]
    if attrs["mode"] == "average":
        window["count_include_pad"] = attrs["count_include_pad"]
    if call.opset >= (10 if attrs["mode"] == "max" else 19):
        window["dilations"] = attrs["dilations"]
    return window


def _check(call: Call) -> None:
    attrs = call.attrs
    spatial = len(attrs["kernel_shape"])
    for name, count in (("strides", spatial), ("pads", 2 * spatial), ("dilations", spatial)):
        if len(attrs[name]) != count:
            raise call.fail(f"{name} must have {count} entries for {spatial} spatial dimensions, got {attrs[name]}")
    dilated = any(d != 1 for d in attrs["dilations"])
    if dilated and call.opset < (10 if attrs["mode"] == "max" else 19):
        raise call.fail(f"dilated {attrs['mode']} pooling cannot be written at opset {call.opset}")
    if attrs["ceil_mode"] and call.opset < 10:
        raise call.fail(f"ceil_mode needs opset 10 for its body, the model has {call.opset}")


def _infer(call: Call) -> Sequence[Inferred]:
    x = call.shape(0)
    if x is None:
        return [(call.dtype, None)]
    nchw = call.attrs["layout"] == "NCHW"
    channels = x[1 if nchw else len(x) - 1]
    if call.attrs["global"]:
        ones: list[Dim] = [1] * (len(x) - 2)
        return [(call.dtype, shape([x[0], channels, *ones] if nchw else [x[0], *ones, channels]))]
    if call.attrs["ceil_mode"]:
        # Whether a last window that starts in the padding counts changed between opsets: left to shape inference.
        unknown: list[Dim] = [ir.SymbolicDim(None)] * (len(x) - 2)
        return [(call.dtype, shape([x[0], channels, *unknown] if nchw else [x[0], *unknown, channels]))]
    return [(call.dtype, sliding(x, call.attrs, channels))]


def _reference(inputs: Sequence[Array | None], attrs: Mapping[str, Any]) -> Sequence[Array]:
    (x,) = inputs
    assert x is not None
    nhwc = attrs["layout"] == "NHWC"
    x = x.transpose(to_nchw(x.ndim)) if nhwc else x
    axes = tuple(range(2, x.ndim))
    if attrs["global"]:
        y = x.max(axes, keepdims=True) if attrs["mode"] == "max" else x.mean(axes, keepdims=True)
    else:
        y = _slide(x, attrs)
    return [y.transpose(to_nhwc(y.ndim)) if nhwc else y]


def _slide(x: Array, attrs: Mapping[str, Any]) -> Array:
    n = x.ndim - 2
    kernel, strides, pads, dilations = (attrs[k] for k in ("kernel_shape", "strides", "pads", "dilations"))
    sizes = []
    for i in range(n):
        span = x.shape[2 + i] + pads[i] + pads[i + n] - dilations[i] * (kernel[i] - 1) - 1
        count = (-(-span // strides[i]) if attrs["ceil_mode"] else span // strides[i]) + 1
        # A window must start inside the input or its left padding.
        sizes.append(count - ((count - 1) * strides[i] >= x.shape[2 + i] + pads[i]))
    y = np.empty((*x.shape[:2], *sizes))
    for position in np.ndindex(*sizes):
        starts = [p * s - lead for p, s, lead in zip(position, strides, pads, strict=False)]
        places = [[a + d * j for j in range(k)] for a, d, k in zip(starts, dilations, kernel, strict=True)]
        inside = [[p for p in axis if 0 <= p < size] for axis, size in zip(places, x.shape[2:], strict=True)]
        padded = [
            [p for p in axis if p < size + pads[i + n]]
            for i, (axis, size) in enumerate(zip(places, x.shape[2:], strict=True))
        ]
        values = x[(slice(None), slice(None), *np.ix_(*inside))].reshape(*x.shape[:2], -1)
        if attrs["mode"] == "max":
            y[(slice(None), slice(None), *position)] = values.max(-1)
        else:
            counted = padded if attrs["count_include_pad"] else inside
            y[(slice(None), slice(None), *position)] = values.sum(-1) / np.prod([len(c) for c in counted])
    return y


def _examples() -> Iterable[Example]:
    x = normal("x", 2, 8, 9, 10)
    for layout in ("NCHW", "NHWC"):
        data = x if layout == "NCHW" else np.ascontiguousarray(x.transpose(to_nhwc(4)))
        for mode in ("max", "average"):
            tag = f"{layout.lower()}_{mode}"
            base = {"mode": mode, "layout": layout, "kernel_shape": [3, 3], "dilations": [1, 1]}
            padded = {**base, "strides": [2, 2], "pads": [1, 1, 1, 1]}
            yield Example(f"{tag}_padded", (data,), padded)
            yield Example(f"{tag}_include_pad", (data,), {**padded, "count_include_pad": 1})
            yield Example(f"{tag}_ceil", (data,), {**padded, "ceil_mode": 1, "pads": [0] * 4}, opset=10)
            yield Example(f"{tag}_uneven", (data,), {**base, "strides": [1, 2], "pads": [0, 1, 2, 0]})
            dilated = {**base, "strides": [1, 1], "pads": [0] * 4, "dilations": [2, 3]}
            yield Example(f"{tag}_dilated", (data,), dilated, opset=10 if mode == "max" else 19)
            whole = {**base, "global": 1, "kernel_shape": [1, 1], "strides": [1, 1], "pads": [0] * 4}
            yield Example(f"{tag}_global", (data,), whole)


SPEC = OpSpec(
    name="Pool",
    doc="ONNX MaxPool, AveragePool, GlobalMaxPool or GlobalAveragePool, in either layout. With `global` the window is "
    "the whole tensor: kernel_shape then only tells the number of spatial dimensions (entries 1).",
    inputs=(Input("X", "[N, C, spatial...] or [N, spatial..., C]", "input"),),
    outputs=(Output("Y", "as X, with the pooled spatial dimensions", "result"),),
    attributes=(
        Attribute("mode", ir.AttributeType.STRING, "what is taken of a window", allowed=("max", "average")),
        Attribute("kernel_shape", ir.AttributeType.INTS, "window size, one entry a spatial dimension"),
        Attribute("strides", ir.AttributeType.INTS, "strides"),
        Attribute("pads", ir.AttributeType.INTS, "padding: all begins, then all ends"),
        Attribute("dilations", ir.AttributeType.INTS, "dilations"),
        Attribute("ceil_mode", ir.AttributeType.INT, "1: count a last, partial window", default=0, allowed=(0, 1)),
        Attribute(
            "count_include_pad",
            ir.AttributeType.INT,
            "1: the average divides by positions in the padding too",
            default=0,
            allowed=(0, 1),
        ),
        Attribute("global", ir.AttributeType.INT, "1: one window, the whole tensor", default=0, allowed=(0, 1)),
        Attribute("layout", ir.AttributeType.STRING, "layout of X and Y", default="NCHW", allowed=("NCHW", "NHWC")),
    ),
    body=_body,
    infer=_infer,
    reference=_reference,
    examples=_examples,
    check=_check,
)
