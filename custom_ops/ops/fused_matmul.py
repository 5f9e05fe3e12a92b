"""cuvil::FusedMatMul: a matrix product with what follows it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import onnx_ir as ir

from custom_ops import activations
from custom_ops.body import Body
from custom_ops.shapes import Dim, shape, unknown
from custom_ops.spec import Array, Attribute, AttrValue, Call, Example, Inferred, Input, OpSpec, Output, normal


def _body(body: Body, call: Call, inputs: Sequence[ir.Value | None]) -> Sequence[ir.Value]:
    a, b, bias, z = (*inputs, None, None)[:4]
    assert a is not None and b is not None
    # ORT's CPU provider has no bfloat16 product, and float16 runs on the devices where the product is native.
    brain = body.dtype == ir.DataType.BFLOAT16
    dtype = ir.DataType.FLOAT if brain else body.dtype

    def up(x: ir.Value) -> ir.Value:
        return body.cast(x, dtype, body.dtype)

    weight = body.transpose(up(b), [1, 0]) if call.attrs["transB"] else up(b)
    y = body.op("MatMul", up(a), weight)
    for term in (bias, z):
        if term is not None:
            y = body.op("Add", y, up(term))
    y = body.activation(call.attrs["activation"], call.attrs["activation_params"], y, dtype)
    return [body.cast(y, body.dtype, dtype)]


def _check(call: Call) -> None:
    activations.check(call)
    b = call.shape(1)
    if b is not None and len(b) != 2:
        raise call.fail(f"input B must have rank 2, got shape {b}")


def _infer(call: Call) -> Sequence[Inferred]:
    a, b = call.shape(0), call.shape(1)
    if a is None or len(a) < 2:
        return [(call.dtype, None)]
    columns: Dim = unknown() if b is None else b[0 if call.attrs["transB"] else 1]
    return [(call.dtype, shape([*a[:-1], columns]))]


def _reference(inputs: Sequence[Array | None], attrs: Mapping[str, Any]) -> Sequence[Array]:
    a, b, bias, z = (*inputs, None, None)[:4]
    assert a is not None and b is not None
    y = a @ (b.T if attrs["transB"] else b) + (0 if bias is None else bias) + (0 if z is None else z)
    return [activations.reference(attrs["activation"], attrs["activation_params"], y)]


def _examples() -> Iterable[Example]:
    a, w = normal("a", 3, 5, 24, scale=0.5), normal("w", 24, 40, scale=0.3)
    bias, z = normal("bias", 40), normal("z", 3, 5, 40)
    yield Example("plain", (a, w))
    yield Example("trans_b", (a, w.T.copy()), {"transB": 1})
    yield Example("bias_residual", (a, w, bias, z))
    yield Example("residual_only", (a, w, None, z), {"activation": "Relu"})
    yield Example("matrix", (a[0], w, bias), {"activation": "Gelu"}, opset=9)
    yield Example("odd_sizes", (normal("ao", 1, 7, 13), normal("wo", 13, 11, scale=0.3), normal("bo", 11)))
    values = {"LeakyRelu": [0.1], "Elu": [1.0], "Clip": [-0.5, 0.75], "HardSigmoid": [0.2, 0.5]}
    for name in activations.PARAMS:
        if name:
            attrs: dict[str, AttrValue] = {"activation": name, "activation_params": values.get(name, [])}
            yield Example(f"act_{name}", (a, w, bias), attrs, opset=9)


SPEC = OpSpec(
    name="FusedMatMul",
    doc="Y = activation(A @ B + bias + Z); B is transposed first with `transB`. Sums are float32 for 16-bit tensors "
    "and rounded once, where the body rounds after each op.",
    inputs=(
        Input("A", "[..., M, K]", "left operand"),
        Input("B", "[K, N], [N, K] with transB", "right operand"),
        Input("bias", "[N], or broadcasting to it", "added to each row", optional=True),
        Input("Z", "the shape of Y", "residual", optional=True),
    ),
    outputs=(Output("Y", "[..., M, N]", "result"),),
    attributes=(
        Attribute("transB", ir.AttributeType.INT, "1: B is [N, K]", default=0, allowed=(0, 1)),
        Attribute(
            "activation", ir.AttributeType.STRING, activations.DOC, default="", allowed=tuple(activations.PARAMS)
        ),
        Attribute("activation_params", ir.AttributeType.FLOATS, "parameters of the activation", default=()),
    ),
    body=_body,
    infer=_infer,
    reference=_reference,
    examples=_examples,
    check=_check,
)
