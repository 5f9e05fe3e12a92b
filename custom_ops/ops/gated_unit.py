"""cuvil::GatedUnit: activation(gate) * up, both halves of one tensor: SwiGLU, GeGLU, GLU."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from custom_ops import activations
from custom_ops.body import Body
from custom_ops.shapes import shape, unknown
from custom_ops.spec import Array, Attribute, Call, Example, Inferred, Input, OpSpec, Output, normal


def _body(body: Body, call: Call, inputs: Sequence[ir.Value | None]) -> Sequence[ir.Value]:
    (x,) = inputs[:1]
    assert x is not None
    halves = list(body.split(body.widen(x), 2, axis=-1))
    gate, up = halves if call.attrs["gate_first"] else halves[::-1]
    gate = body.activation(call.attrs["activation"], call.attrs["activation_params"], gate, body.wide)
    return [body.narrow(body.op("Mul", gate, up))]


def _check(call: Call) -> None:
    activations.check(call)
    if call.opset < 11:
        raise call.fail(f"the body needs opset 11 (Split of the last axis), the model has {call.opset}")
    found = call.shape(0)
    if found is not None and (len(found) < 1 or (isinstance(found[-1], int) and found[-1] % 2)):
        raise call.fail(f"the last axis of X must be even, got {found}")


def _infer(call: Call) -> Sequence[Inferred]:
    x = call.shape(0)
    if x is None:
        return [(call.dtype, None)]
    last = x[-1]
    return [(call.dtype, shape([*x[:-1], last // 2 if isinstance(last, int) else unknown()]))]


def _reference(inputs: Sequence[Array | None], attrs: Mapping[str, Any]) -> Sequence[Array]:
    (x,) = inputs[:1]
    assert x is not None
    halves = np.split(x, 2, axis=-1)
    gate, up = halves if attrs["gate_first"] else halves[::-1]
    return [activations.reference(attrs["activation"], attrs["activation_params"], gate) * up]


def _examples() -> Iterable[Example]:
    x = normal("gated", 2, 5, 64, scale=2.0)
    for name in ("Swish", "Gelu", "GeluTanh", "Sigmoid", "Relu", "Tanh"):
        yield Example(name.lower(), (x,), {"activation": name}, opset=11)
    yield Example("leaky", (x,), {"activation": "LeakyRelu", "activation_params": [0.1]}, opset=11)
    yield Example("up_first", (x,), {"activation": "Swish", "gate_first": 0}, opset=11)
    yield Example("odd", (normal("odd", 3, 2 * 7),), {"activation": "Gelu"}, opset=11)
    yield Example("vector", (normal("vector", 6),), {"activation": "Swish"}, opset=11)
    yield Example("large", (normal("large", 3, 40, 2 * 136),), {"activation": "Swish"}, opset=11)
    edges = np.array([[-90, -20, -0.0, 0, 20, 90, np.inf, np.nan, 1, 1, 2, 2, 1, 0.5, 1, 1]], np.float32)
    yield Example("edges", (edges,), {"activation": "Swish"}, opset=11)


SPEC = OpSpec(
    name="GatedUnit",
    doc="Y = activation(gate) * up, where gate and up are the halves of X: SwiGLU with Swish, GeGLU with Gelu, GLU "
    "with Sigmoid. Both come out of one product that way. Computed in float32 for 16-bit tensors and rounded once.",
    inputs=(Input("X", "[..., 2 * I]", "gate and up, next to each other"),),
    outputs=(Output("Y", "[..., I]", "result"),),
    attributes=(
        Attribute(
            "activation",
            ir.AttributeType.STRING,
            "activation of the gate, as in FusedMatMul",
            allowed=tuple(activations.PARAMS),
        ),
        Attribute("activation_params", ir.AttributeType.FLOATS, "parameters of the activation", default=()),
        Attribute("gate_first", ir.AttributeType.INT, "0: the gate is the second half", default=1, allowed=(0, 1)),
    ),
    body=_body,
    infer=_infer,
    reference=_reference,
    examples=_examples,
    check=_check,
)
