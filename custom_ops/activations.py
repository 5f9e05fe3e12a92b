"""The activations that FusedConv and FusedMatMul apply to their result."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from custom_ops.spec import Array, Call, OpError

if TYPE_CHECKING:
    from custom_ops.body import Body

# Name -> the meaning of `activation_params`.
PARAMS: dict[str, tuple[str, ...]] = {
    "": (),
    "Relu": (),
    "Sigmoid": (),
    "Tanh": (),
    "LeakyRelu": ("alpha",),
    "Elu": ("alpha",),
    "Clip": ("min", "max"),
    "HardSigmoid": ("alpha", "beta"),
    "HardSwish": (),
    "Swish": (),
    "Gelu": (),
    "GeluTanh": (),
    "Softplus": (),
    "Mish": (),
}
# Composite activations, and the opset from which on they are one ONNX op that ONNX Runtime's CPU provider runs (it has
# no kernel for Swish-24).
_SINCE = {"HardSwish": 14, "Mish": 18, "Gelu": 20, "GeluTanh": 20, "Swish": 1 << 30}

DOC = (
    "activation applied last; its parameters are in `activation_params`: "
    + ", ".join(f"{name} [{', '.join(params)}]" for name, params in PARAMS.items() if params)
    + ", none for the others"
)


def check(call: Call) -> None:
    """Raises OpError unless `activation_params` holds what `activation` needs."""
    name, params = call.attrs["activation"], call.attrs["activation_params"]
    wanted = PARAMS[name]
    if len(params) != len(wanted):
        raise call.fail(
            f"activation '{name}' takes {len(wanted)} activation_params ({', '.join(wanted)}), got {len(params)}"
        )


def write(body: Body, name: str, params: Sequence[float], x: ir.Value, dtype: ir.DataType) -> ir.Value:
    """Appends the nodes of activation `name` on `x` of type `dtype` and returns the result."""
    if name == "":
        return x
    if name in _SINCE:
        if body.opset >= _SINCE[name] and dtype != ir.DataType.BFLOAT16:
            if name == "GeluTanh":
                return body.op("Gelu", x, approximate="tanh")
            return body.op(name, x)
        # Written out in float32, since each step of a chain in 16 bits would round.
        wide = ir.DataType.FLOAT if dtype in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16) else dtype
        return body.cast(_composite(body, name, body.cast(x, wide, dtype), wide), dtype, wide)
    if name == "Clip":
        return body.clip(x, params[0], params[1], dtype)
    return body.op(name, x, **{key: float(value) for key, value in zip(PARAMS[name], params, strict=True)})


def gelu(body: Body, x: ir.Value, dtype: ir.DataType, *, tanh: bool) -> ir.Value:
    """GELU in basic ops: x * 0.5 * (1 + erf(x / sqrt 2)), or its tanh approximation."""
    half, one = body.constant(0.5, dtype), body.constant(1.0, dtype)
    if tanh:
        cube = body.op("Mul", body.op("Mul", x, x), x)
        inner = body.op("Add", x, body.op("Mul", cube, body.constant(0.044715, dtype)))
        gate = body.op("Tanh", body.op("Mul", inner, body.constant(math.sqrt(2.0 / math.pi), dtype)))
    else:
        if body.opset < 9:
            raise OpError(f"GELU needs opset 9 (Erf) for its body, the model has {body.opset}")
        gate = body.op("Erf", body.op("Div", x, body.constant(math.sqrt(2.0), dtype)))
    return body.op("Mul", body.op("Mul", x, body.op("Add", gate, one)), half)


def _composite(body: Body, name: str, x: ir.Value, dtype: ir.DataType) -> ir.Value:
    if name in ("Gelu", "GeluTanh"):
        return gelu(body, x, dtype, tanh=name == "GeluTanh")
    gate = {
        "HardSwish": lambda: body.op("HardSigmoid", x, alpha=1.0 / 6.0, beta=0.5),
        "Swish": lambda: body.op("Sigmoid", x),
        "Mish": lambda: body.op("Tanh", body.op("Softplus", x)),
    }[name]()
    return body.op("Mul", x, gate)


def reference(name: str, params: Sequence[float], x: Array) -> Array:
    """The activation in the precision of `x`, for tests."""
    erf = np.vectorize(math.erf, otypes=[np.float64])
    softplus = np.logaddexp(0.0, x)
    result: dict[str, Array] = {
        "": x,
        "Relu": np.maximum(x, 0),
        "Sigmoid": 0.5 * (1 + np.tanh(x / 2)),
        "Tanh": np.tanh(x),
        "HardSwish": x * np.clip(x / 6 + 0.5, 0, 1),
        "Swish": x * 0.5 * (1 + np.tanh(x / 2)),
        "Gelu": 0.5 * x * (1 + erf(x / math.sqrt(2))),
        "GeluTanh": 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
        "Softplus": softplus,
        "Mish": x * np.tanh(softplus),
    }
    if name == "LeakyRelu":
        return np.where(x < 0, params[0] * x, x)
    if name == "Elu":
        return np.where(x < 0, params[0] * np.expm1(np.minimum(x, 0)), x)
    if name == "Clip":
        return np.clip(x, params[0], params[1])
    if name == "HardSigmoid":
        return np.clip(params[0] * x + params[1], 0, 1)
    return result[name]
