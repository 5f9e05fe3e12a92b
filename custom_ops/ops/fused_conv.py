"""cuvil::FusedConv: a convolution with what follows it, in either layout."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from custom_ops import activations
from custom_ops.body import Body
from custom_ops.shapes import Dim, sliding, to_nchw, to_nhwc, unknown
from custom_ops.spec import Array, Attribute, Call, Example, Inferred, Input, OpSpec, Output, normal

_GEOMETRY = ("kernel_shape", "strides", "pads", "dilations", "group")


def _body(body: Body, call: Call, inputs: Sequence[ir.Value | None]) -> Sequence[ir.Value]:
    x, w, b, z = (*inputs, None, None)[:4]
    assert x is not None and w is not None
    brain = body.dtype == ir.DataType.BFLOAT16  # ORT's CPU provider has no bfloat16 convolution
    dtype = ir.DataType.FLOAT if brain else body.dtype
    rank = len(call.attrs["kernel_shape"]) + 2
    nhwc = call.attrs["layout"] == "NHWC"

    def up(value: ir.Value) -> ir.Value:
        return body.cast(value, dtype, body.dtype)

    def planar(value: ir.Value) -> ir.Value:
        return body.transpose(up(value), to_nchw(rank)) if nhwc else up(value)

    geometry = {name: call.attrs[name] for name in _GEOMETRY}
    y = body.op("Conv", planar(x), up(w), None if b is None else up(b), **geometry)
    if z is not None:
        y = body.op("Add", y, planar(z))
    y = body.activation(call.attrs["activation"], call.attrs["activation_params"], y, dtype)
    return [body.cast(body.transpose(y, to_nhwc(rank)) if nhwc else y, body.dtype, dtype)]


def _check(call: Call) -> None:
    activations.check(call)
    spatial = len(call.attrs["kernel_shape"])
    for name, count in (("strides", spatial), ("pads", 2 * spatial), ("dilations", spatial)):
        if len(call.attrs[name]) != count:
            raise call.fail(
                f"{name} must have {count} entries for {spatial} spatial dimensions, got {call.attrs[name]}"
            )
    x = call.shape(0)
    if x is not None and len(x) != spatial + 2:
        raise call.fail(f"input X must have rank {spatial + 2} for kernel_shape {call.attrs['kernel_shape']}, got {x}")


def _infer(call: Call) -> Sequence[Inferred]:
    x, w = call.shape(0), call.shape(1)
    if x is None:
        return [(call.dtype, None)]
    channels: Dim = unknown() if w is None else w[0]
    return [(call.dtype, sliding(x, call.attrs, channels))]


def conv(x: Array, w: Array, attrs: Mapping[str, Any]) -> Array:
    """A convolution by the definition, [N, C, spatial...], for tests."""
    spatial = x.ndim - 2
    pads = attrs["pads"]
    x = np.pad(x, [(0, 0), (0, 0), *((pads[i], pads[i + spatial]) for i in range(spatial))])
    kernel = w.shape[2:]
    sizes = [
        (x.shape[2 + i] - attrs["dilations"][i] * (kernel[i] - 1) - 1) // attrs["strides"][i] + 1
        for i in range(spatial)
    ]
    group, per_group = attrs["group"], w.shape[1]
    y = np.zeros((x.shape[0], w.shape[0], *sizes))
    out = w.shape[0] // group
    for offset in np.ndindex(*kernel):
        window = tuple(
            slice(
                offset[i] * attrs["dilations"][i],
                offset[i] * attrs["dilations"][i] + (sizes[i] - 1) * attrs["strides"][i] + 1,
                attrs["strides"][i],
            )
            for i in range(spatial)
        )
        part = x[(slice(None), slice(None), *window)]
        for g in range(group):
            y[:, g * out : (g + 1) * out] += np.einsum(
                "nc...,oc->no...",
                part[:, g * per_group : (g + 1) * per_group],
                w[(slice(g * out, (g + 1) * out), slice(None), *offset)],
            )
    return y


def _reference(inputs: Sequence[Array | None], attrs: Mapping[str, Any]) -> Sequence[Array]:
    x, w, b, z = (*inputs, None, None)[:4]
    assert x is not None and w is not None
    nhwc = attrs["layout"] == "NHWC"
    y = conv(x.transpose(to_nchw(x.ndim)) if nhwc else x, w, attrs)
    if b is not None:
        y = y + b.reshape(-1, *[1] * (x.ndim - 2))
    y = y.transpose(to_nhwc(x.ndim)) if nhwc else y
    y = y if z is None else y + z
    return [activations.reference(attrs["activation"], attrs["activation_params"], y)]


def _attrs(kernel: Sequence[int], **changes: Any) -> dict[str, Any]:
    n = len(kernel)
    base = {"kernel_shape": list(kernel), "strides": [1] * n, "pads": [0] * 2 * n, "dilations": [1] * n, "group": 1}
    return {**base, **changes}


def _examples() -> Iterable[Example]:
    x, w, b = normal("x", 2, 8, 9, 7), normal("w", 16, 8, 3, 3, scale=0.2), normal("b", 16)
    z = normal("z", 2, 16, 9, 7)
    same = _attrs([3, 3], pads=[1, 1, 1, 1])
    for layout in ("NCHW", "NHWC"):

        def lay(value: Array, layout: str = layout) -> Array:
            return value if layout == "NCHW" else np.ascontiguousarray(value.transpose(to_nhwc(value.ndim)))

        tag = layout.lower()
        yield Example(f"{tag}_plain", (lay(x), w), {**same, "layout": layout})
        yield Example(f"{tag}_bias_relu", (lay(x), w, b), {**same, "layout": layout, "activation": "Relu"})
        residual = {**same, "layout": layout, "activation": "Relu"}
        yield Example(f"{tag}_bias_residual_relu", (lay(x), w, b, lay(z)), residual)
        yield Example(f"{tag}_residual_no_bias", (lay(x), w, None, lay(z)), {**same, "layout": layout})
        strided = _attrs([3, 3], strides=[2, 1], pads=[1, 0, 0, 1], dilations=[1, 2])
        yield Example(f"{tag}_strided_dilated", (lay(x), w, b), {**strided, "layout": layout})
        depthwise = {**_attrs([3, 3], pads=[1] * 4, group=8), "layout": layout, "activation": "HardSwish"}
        yield Example(f"{tag}_depthwise_hardswish", (lay(x), w[:8, :1], b[:8]), depthwise)
        pointwise = {**_attrs([1, 1]), "layout": layout, "activation": "Clip", "activation_params": [0.0, 6.0]}
        yield Example(f"{tag}_1x1_clip", (lay(x), w[:, :, :1, :1], b), pointwise)
        grouped = {**_attrs([3, 3], pads=[1] * 4, group=2), "layout": layout, "activation": "Swish"}
        yield Example(f"{tag}_grouped_swish", (lay(x), w[:, :4], b), grouped)
    yield Example("one_dimension", (normal("x1", 2, 4, 15), normal("w1", 6, 4, 5, scale=0.2)), _attrs([5], pads=[2, 2]))
    values = {"LeakyRelu": [0.1], "Elu": [1.0], "Clip": [-0.5, 0.75], "HardSigmoid": [0.2, 0.5]}
    for name in activations.PARAMS:
        if name:
            attrs = {**same, "activation": name, "activation_params": values.get(name, [])}
            yield Example(f"act_{name}", (x, w, b), attrs, opset=9)


SPEC = OpSpec(
    name="FusedConv",
    doc="Y = activation(conv(X, W) + B + Z). Pads are resolved: no auto_pad. With layout NHWC the tensors X, Z and Y "
    "themselves are [N, spatial..., C]; W is always [O, I / group, kernel...]. Sums are float32 for 16-bit tensors and "
    "rounded once, where the body rounds after each op.",
    inputs=(
        Input("X", "[N, C, spatial...] or [N, spatial..., C]", "input"),
        Input("W", "[O, C / group, kernel...]", "weight"),
        Input("B", "[O]", "bias", optional=True),
        Input("Z", "the shape of Y", "residual", optional=True),
    ),
    outputs=(Output("Y", "[N, O, spatial...] or [N, spatial..., O]", "result"),),
    attributes=(
        Attribute("kernel_shape", ir.AttributeType.INTS, "kernel size, one entry a spatial dimension"),
        Attribute("strides", ir.AttributeType.INTS, "strides"),
        Attribute("pads", ir.AttributeType.INTS, "zeros added: all begins, then all ends"),
        Attribute("dilations", ir.AttributeType.INTS, "dilations"),
        Attribute("group", ir.AttributeType.INT, "groups", default=1),
        Attribute(
            "activation", ir.AttributeType.STRING, activations.DOC, default="", allowed=tuple(activations.PARAMS)
        ),
        Attribute("activation_params", ir.AttributeType.FLOATS, "parameters of the activation", default=()),
        Attribute("layout", ir.AttributeType.STRING, "layout of X, Z and Y", default="NCHW", allowed=("NCHW", "NHWC")),
    ),
    body=_body,
    infer=_infer,
    reference=_reference,
    examples=_examples,
    check=_check,
)
