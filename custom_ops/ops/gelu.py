"""cuvil::Gelu, for models whose opset has no Gelu (it came with 20)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from custom_ops import activations
from custom_ops.body import Body
from custom_ops.spec import Array, Attribute, Call, Example, Inferred, Input, OpSpec, Output, normal


def _body(body: Body, call: Call, inputs: Sequence[ir.Value | None]) -> Sequence[ir.Value]:
    (x,) = inputs
    assert x is not None
    name = "GeluTanh" if call.attrs["approximate"] == "tanh" else "Gelu"
    return [body.activation(name, [], x, body.dtype)]


def _infer(call: Call) -> Sequence[Inferred]:
    return [(call.dtype, call.shape(0))]


def _reference(inputs: Sequence[Array | None], attrs: Mapping[str, Any]) -> Sequence[Array]:
    (x,) = inputs
    assert x is not None
    return [activations.reference("GeluTanh" if attrs["approximate"] == "tanh" else "Gelu", [], x)]


def _examples() -> Iterable[Example]:
    yield Example("erf", (normal("erf", 2, 37, scale=3.0),), {"approximate": "none"}, opset=9)
    yield Example("tanh", (normal("tanh", 2, 37, scale=3.0),), {"approximate": "tanh"})
    yield Example("scalar", (np.array(0.5, np.float32),), {"approximate": "none"}, opset=9)
    yield Example("empty", (normal("empty", 0, 4),), {"approximate": "none"}, opset=9)


SPEC = OpSpec(
    name="Gelu",
    doc="Y = x * 0.5 * (1 + erf(x / sqrt 2)), or its tanh approximation, computed in float32 for 16-bit tensors. "
    "The same function as ONNX Gelu, for opsets below 20.",
    inputs=(Input("X", "any", "input"),),
    outputs=(Output("Y", "the shape of X", "result"),),
    attributes=(
        Attribute("approximate", ir.AttributeType.STRING, "which formula", default="none", allowed=("none", "tanh")),
    ),
    body=_body,
    infer=_infer,
    reference=_reference,
    examples=_examples,
)
