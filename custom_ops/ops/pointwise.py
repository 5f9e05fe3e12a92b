"""cuvil::Pointwise: any region of elementwise nodes as one kernel."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from custom_ops import activations
from custom_ops.body import Body
from custom_ops.shapes import broadcast
from custom_ops.spec import Array, Attribute, Call, Example, Inferred, Input, OpError, OpSpec, Output, normal


def _body(body: Body, call: Call, inputs: Sequence[ir.Value | None]) -> Sequence[ir.Value]:
    raise OpError("cuvil::Pointwise needs `body`: the nodes that it replaces")


def _infer(call: Call) -> Sequence[Inferred]:
    shapes = [v.shape for v in call.inputs if v is not None]
    known = [s for s in shapes if s is not None]
    return [(None, broadcast(known) if len(known) == len(shapes) else None)] * call.num_outputs


def _reference(inputs: Sequence[Array | None], attrs: Mapping[str, Any]) -> Sequence[Array]:
    raise OpError("each example of cuvil::Pointwise has its own reference")


def _sigmoid(x: Array) -> Array:
    return 0.5 * (1 + np.tanh(x / 2))


def _add_relu(body: Body, x: Sequence[ir.Value]) -> Sequence[ir.Value]:
    return [body.op("Relu", body.op("Add", x[0], x[1]))]


def _cast_add_relu(body: Body, x: Sequence[ir.Value]) -> Sequence[ir.Value]:
    up = body.op("Cast", x[0], to=int(ir.DataType.FLOAT))
    total = body.op("Add", up, body.op("Cast", x[1], to=int(ir.DataType.FLOAT)))
    return [body.op("Relu", total)]


def _swish_two_outputs(body: Body, x: Sequence[ir.Value]) -> Sequence[ir.Value]:
    gate = body.op("Sigmoid", x[0])
    return [body.op("Mul", x[0], gate), gate]


def _hard_swish(body: Body, x: Sequence[ir.Value]) -> Sequence[ir.Value]:
    shifted = body.op("Add", x[0], body.constant(3.0, body.dtype))
    clipped = body.clip(shifted, 0.0, 6.0, body.dtype)
    return [body.op("Div", body.op("Mul", x[0], clipped), body.constant(6.0, body.dtype))]


def _select(body: Body, x: Sequence[ir.Value]) -> Sequence[ir.Value]:
    chosen = body.op("Where", body.op("Greater", x[0], x[1]), x[0], x[1])
    return [body.op("Mul", body.op("Tanh", chosen), body.op("HardSigmoid", x[0], alpha=0.25, beta=0.5))]


def _transcendental(body: Body, x: Sequence[ir.Value]) -> Sequence[ir.Value]:
    total = body.op("Add", body.op("Exp", x[0]), body.op("Sin", x[1]))
    return [body.op("Div", total, body.op("Sqrt", body.op("Add", body.op("Mul", x[0], x[0]), x[1])))]


def _activations(body: Body, x: Sequence[ir.Value]) -> Sequence[ir.Value]:
    leaky = body.op("LeakyRelu", x[0], alpha=0.1)
    elu = body.op("Elu", body.op("Sub", leaky, x[1]), alpha=0.5)
    return [body.op("Max", elu, body.op("Softplus", x[1]))]


def _examples() -> Iterable[Example]:
    x, y = normal("x", 2, 8, 5, 7, scale=2.0), normal("y", 2, 8, 5, 7)
    channel, row, scalar = normal("c", 1, 8, 1, 1), normal("r", 7), normal("s", 1)

    def case(name: str, inputs: Sequence[Array], region: Any, formula: Any, **more: Any) -> Example:
        return Example(name, tuple(inputs), region=region, reference=lambda v, _: formula(*v), **more)

    def relu_sum(a: Array, b: Array) -> list[Array]:
        return [np.maximum(a + b, 0)]

    yield case("add_relu", (x, y), _add_relu, relu_sum)
    yield case("add_relu_channel", (x, channel), _add_relu, relu_sum)
    yield case("add_relu_row", (x, row), _add_relu, relu_sum)
    yield case("add_relu_scalar", (scalar, x), _add_relu, relu_sum)
    yield case("add_relu_outer", (normal("o", 6, 1), normal("p", 1, 5)), _add_relu, relu_sum)
    yield case("add_relu_rank0", (x[0, 0, 0, 0].reshape(()), y[0, 0, 0, 0].reshape(())), _add_relu, relu_sum)
    yield case("add_relu_empty", (normal("e", 0, 5), normal("e2", 5)), _add_relu, relu_sum)
    yield case("add_relu_odd", (normal("odd", 1031), normal("odd2", 1031)), _add_relu, relu_sum)
    yield case("cast_add_relu", (x, y), _cast_add_relu, relu_sum, opset=9)
    yield case("swish_two_outputs", (x,), _swish_two_outputs, lambda a: [a * _sigmoid(a), _sigmoid(a)], num_outputs=2)
    yield case("hard_swish", (x,), _hard_swish, lambda a: [activations.reference("HardSwish", [], a)])
    yield case(
        "select",
        (x, y),
        _select,
        lambda a, b: [np.tanh(np.maximum(a, b)) * np.clip(0.25 * a + 0.5, 0, 1)],
        opset=9,
    )
    yield case(
        "transcendental",
        (x, np.abs(y) + 1),
        _transcendental,
        lambda a, b: [(np.exp(a) + np.sin(b)) / np.sqrt(a * a + b)],
    )

    def mixed(a: Array, b: Array) -> list[Array]:
        leaky = np.where(a < 0, 0.1 * a, a)
        return [np.maximum(activations.reference("Elu", [0.5], leaky - b), np.logaddexp(0, b))]

    yield case("activations", (x, row), _activations, mixed, opset=8)


SPEC = OpSpec(
    name="Pointwise",
    doc="""A region of elementwise nodes, with NumPy broadcasting between the inputs.
Every output has the broadcast shape of all inputs. The body is the replaced nodes as they were (a multiplication and
an addition that were a BatchNormalization are one again); `program` says the same for the kernel: one instruction a
string, `<op>.<dtype> <operand>*`, where an operand is the index of an earlier instruction and dtype the result's
type. Each result is rounded to its dtype and nothing is contracted: the region computes what its nodes did.

- `load.T k` (input k), `const.T 0x<bits>`, `cast.T a`
- same type in and out: `add sub mul div pow mod fmod min max prelu(x, slope)`, `neg abs sqrt reciprocal exp log erf
  tanh sigmoid sin cos tan asin acos atan sinh cosh asinh acosh atanh floor ceil round sign relu softplus softsign
  hardswish gelu gelu_tanh silu mish identity`
- with constant operands, also of f32: `leaky_relu(x, alpha) elu(x, alpha) selu(x, alpha, gamma) celu(x, alpha)
  hard_sigmoid(x, alpha, beta) thresholded_relu(x, alpha) quick_gelu(x, alpha)`; `clip(x, low, high)` with any operands
- to bool: `equal less less_equal greater greater_equal`, `isnan isinf`; of bools: `and or xor not`;
  of integers: `bitand bitor bitxor bitnot shl shr`; `where(condition, a, b)`
- dtypes: `f32 f16 bf16 f64 i8 i16 i32 i64 u8 u16 u32 u64 bool`

min and max propagate NaN; a NaN stays NaN in clip, and low > high gives high; round is half to even; division of
integers truncates, mod follows the divisor's sign, and division of integers by zero gives 0.""",
    inputs=(Input("x", "any", "operands", "any numeric or bool", variadic=True),),
    outputs=(Output("y", "the broadcast of all inputs", "results", "any numeric or bool", variadic=True),),
    attributes=(
        Attribute("program", ir.AttributeType.STRINGS, "the instructions"),
        Attribute("outputs", ir.AttributeType.INTS, "for each output the instruction that computes it"),
    ),
    body=_body,
    infer=_infer,
    reference=_reference,
    examples=_examples,
)
