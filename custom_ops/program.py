"""Compiles ONNX elementwise nodes to the instructions of cuvil::Pointwise.

An instruction is `<op>.<dtype> <operand>*`; see the documentation of the op (ops/pointwise.py) for the vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

DTYPES: dict[ir.DataType, str] = {
    ir.DataType.FLOAT: "f32",
    ir.DataType.FLOAT16: "f16",
    ir.DataType.BFLOAT16: "bf16",
    ir.DataType.DOUBLE: "f64",
    ir.DataType.BOOL: "bool",
    ir.DataType.INT8: "i8",
    ir.DataType.INT16: "i16",
    ir.DataType.INT32: "i32",
    ir.DataType.INT64: "i64",
    ir.DataType.UINT8: "u8",
    ir.DataType.UINT16: "u16",
    ir.DataType.UINT32: "u32",
    ir.DataType.UINT64: "u64",
}
FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE})
_HALF = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16})


class UnsupportedError(ValueError):
    """A node that has no exact translation; the message says what about it."""


@dataclass(frozen=True)
class Operand:
    """The result of an instruction: its index, its type, and the number when it is a constant."""

    index: int
    dtype: ir.DataType
    constant: Any = None


@dataclass
class Program:
    """Instructions under construction; equal ones are shared."""

    instructions: list[str] = field(default_factory=list)
    _index: dict[str, int] = field(default_factory=dict)

    def emit(self, op: str, dtype: ir.DataType, *operands: Operand) -> Operand:
        """Appends `op` with result type `dtype`."""
        text = " ".join([f"{op}.{_name(dtype)}", *(str(o.index) for o in operands)])
        return Operand(self._add(text), dtype)

    def load(self, input_index: int, dtype: ir.DataType) -> Operand:
        """The node's input `input_index`."""
        return Operand(self._add(f"load.{_name(dtype)} {input_index}"), dtype)

    def constant(self, number: Any, dtype: ir.DataType) -> Operand:
        """A number, rounded to `dtype`, as its bit pattern."""
        name = _name(dtype)
        value = np.asarray(number).astype(dtype.numpy()).reshape(1)
        bits = int.from_bytes(value.tobytes(), "little")
        text = f"const.{name} 0x{bits:0{2 * value.itemsize}x}"
        return Operand(self._add(text), dtype, value[0])

    def _add(self, text: str) -> int:
        if text not in self._index:
            self._index[text] = len(self.instructions)
            self.instructions.append(text)
        return self._index[text]


def compile_node(program: Program, node: ir.Node, operands: Sequence[Operand | None]) -> Operand:
    """Appends the instructions of one elementwise node.

    Args:
        operands: one a node input, None where an optional input is absent.

    Raises:
        UnsupportedError: the node is not elementwise, or has no exact translation.
    """
    handler = _HANDLERS.get((node.domain, node.op_type))
    if handler is None or len(node.outputs) != 1:
        raise UnsupportedError(f"{node.op_type} is not elementwise")
    return handler(program, node, operands)


def is_elementwise(node: ir.Node) -> bool:
    """Whether the op of `node` is one that a program can express; its types and attributes may still forbid it."""
    return (node.domain, node.op_type) in _HANDLERS and len(node.outputs) == 1


def elementwise_ops() -> list[tuple[str, str]]:
    """(domain, type) of every op that a program can express."""
    return sorted(_HANDLERS)


Handler = Callable[[Program, ir.Node, Sequence[Operand | None]], Operand]


def _name(dtype: ir.DataType) -> str:
    if dtype not in DTYPES:
        raise UnsupportedError(f"elements of type {dtype.name.lower()}")
    return DTYPES[dtype]


def _present(operands: Sequence[Operand | None], count: int) -> list[Operand]:
    present = [o for o in operands if o is not None]
    if len(present) != count or len(operands) != count:
        raise UnsupportedError(f"{len(present)} inputs where {count} are needed")
    return present


def _float(node: ir.Node, name: str, default: float) -> float:
    return node.attributes.get_float(name, default)


def _unary(op: str, *, floats_only: bool = True) -> Handler:
    def handle(program: Program, node: ir.Node, operands: Sequence[Operand | None]) -> Operand:
        (x,) = _present(operands, 1)
        if floats_only and x.dtype not in FLOATS:
            raise UnsupportedError(f"{node.op_type} of {x.dtype.name.lower()}")
        return program.emit(op, x.dtype, x)

    return handle


def _binary(op: str, result: ir.DataType | None = None) -> Handler:
    def handle(program: Program, node: ir.Node, operands: Sequence[Operand | None]) -> Operand:
        a, b = _present(operands, 2)
        if a.dtype != b.dtype:
            raise UnsupportedError(f"{node.op_type} of {a.dtype.name.lower()} and {b.dtype.name.lower()}")
        return program.emit(op, result or a.dtype, a, b)

    return handle


def _variadic(op: str) -> Handler:
    def handle(program: Program, node: ir.Node, operands: Sequence[Operand | None]) -> Operand:
        first, *rest = _present(operands, len(operands))
        if op == "add" and len(rest) > 1 and first.dtype in _HALF:
            raise UnsupportedError(f"Sum of {len(operands)} 16-bit tensors: whether partial sums round is not defined")
        for operand in rest:
            first = program.emit(op, first.dtype, first, operand)
        return first

    return handle


def _parametric(op: str, **defaults: float) -> Handler:
    """A float op whose attributes become constant operands, in the order of `defaults`."""

    def handle(program: Program, node: ir.Node, operands: Sequence[Operand | None]) -> Operand:
        (x,) = _present(operands, 1)
        if x.dtype not in FLOATS:
            raise UnsupportedError(f"{node.op_type} of {x.dtype.name.lower()}")
        # Attributes are float32; rounding them to a 16-bit type would change the function.
        dtype = ir.DataType.FLOAT if x.dtype in _HALF else x.dtype
        parameters = [program.constant(_float(node, name, value), dtype) for name, value in defaults.items()]
        return program.emit(op, x.dtype, x, *parameters)

    return handle


def _identity(program: Program, node: ir.Node, operands: Sequence[Operand | None]) -> Operand:
    (x,) = _present(operands, 1)
    return program.emit("identity", x.dtype, x)


def _cast(program: Program, node: ir.Node, operands: Sequence[Operand | None]) -> Operand:
    (x,) = _present(operands, 1)
    return program.emit("cast", ir.DataType(node.attributes.get_int("to", 0)), x)


def _pow(program: Program, node: ir.Node, operands: Sequence[Operand | None]) -> Operand:
    base, exponent = _present(operands, 2)
    if base.dtype not in FLOATS:
        raise UnsupportedError(f"Pow with a base of {base.dtype.name.lower()}")
    if exponent.dtype != base.dtype:
        if exponent.constant is None or float(exponent.constant) != float(
            np.asarray(exponent.constant).astype(base.dtype.numpy())
        ):
            raise UnsupportedError("Pow with an exponent of another type that is not an exactly representable constant")
        exponent = program.constant(exponent.constant, base.dtype)
    return program.emit("pow", base.dtype, base, exponent)


def _mod(program: Program, node: ir.Node, operands: Sequence[Operand | None]) -> Operand:
    fmod = node.attributes.get_int("fmod", 0)
    if not fmod and any(o is not None and o.dtype in FLOATS for o in operands):
        raise UnsupportedError("Mod of floats without fmod")
    return _binary("fmod" if fmod else "mod")(program, node, operands)


def _gelu(program: Program, node: ir.Node, operands: Sequence[Operand | None]) -> Operand:
    tanh = node.attributes.get_string("approximate", "none") == "tanh"
    return _unary("gelu_tanh" if tanh else "gelu")(program, node, operands)


def _swish(program: Program, node: ir.Node, operands: Sequence[Operand | None]) -> Operand:
    if _float(node, "alpha", 1.0) != 1.0:
        raise UnsupportedError("Swish with alpha other than 1")
    return _unary("silu")(program, node, operands)


def _clip(program: Program, node: ir.Node, operands: Sequence[Operand | None]) -> Operand:
    x, low, high = (*operands, None, None)[:3]
    assert x is not None
    # Before opset 11 the bounds are attributes whose defaults are the ends of float32.
    for name in ("min", "max"):
        if name in node.attributes:
            bound = program.constant(_float(node, name, 0.0), x.dtype)
            low, high = (bound, high) if name == "min" else (low, bound)
    if low is None and high is None:
        return program.emit("identity", x.dtype, x)
    if any(bound is not None and bound.dtype != x.dtype for bound in (low, high)):
        raise UnsupportedError("Clip with bounds of another type")
    ends: tuple[Any, Any] = (-np.inf, np.inf)
    if x.dtype not in FLOATS:
        limits = np.iinfo(x.dtype.numpy())
        ends = (limits.min, limits.max)
    low = program.constant(ends[0], x.dtype) if low is None else low
    high = program.constant(ends[1], x.dtype) if high is None else high
    return program.emit("clip", x.dtype, x, low, high)


def _isinf(program: Program, node: ir.Node, operands: Sequence[Operand | None]) -> Operand:
    (x,) = _present(operands, 1)
    negative, positive = (node.attributes.get_int(f"detect_{sign}", 1) for sign in ("negative", "positive"))
    if negative and positive:
        return program.emit("isinf", ir.DataType.BOOL, x)
    if not negative and not positive:
        raise UnsupportedError("IsInf that detects nothing")
    return program.emit("equal", ir.DataType.BOOL, x, program.constant(np.inf if positive else -np.inf, x.dtype))


def _predicate(op: str) -> Handler:
    def handle(program: Program, node: ir.Node, operands: Sequence[Operand | None]) -> Operand:
        (x,) = _present(operands, 1)
        return program.emit(op, ir.DataType.BOOL, x)

    return handle


def _shift(program: Program, node: ir.Node, operands: Sequence[Operand | None]) -> Operand:
    left = node.attributes.get_string("direction", "LEFT") == "LEFT"
    return _binary("shl" if left else "shr")(program, node, operands)


def _where(program: Program, node: ir.Node, operands: Sequence[Operand | None]) -> Operand:
    condition, a, b = _present(operands, 3)
    if condition.dtype != ir.DataType.BOOL or a.dtype != b.dtype:
        raise UnsupportedError("Where with a condition that is not bool or branches of different types")
    return program.emit("where", a.dtype, condition, a, b)


def _handlers() -> dict[tuple[str, str], Handler]:
    bool_ = ir.DataType.BOOL
    floats = (
        "Sqrt Reciprocal Exp Log Erf Tanh Sigmoid Sin Cos Tan Asin Acos Atan Sinh Cosh Asinh Acosh Atanh Floor Ceil "
        "Round Softplus Softsign HardSwish Mish"
    )
    table: dict[str, Handler] = {name: _unary(name.lower()) for name in floats.split()}
    table |= {name: _unary(name.lower(), floats_only=False) for name in ("Neg", "Abs", "Sign", "Relu")}
    table |= {name: _binary(name.lower()) for name in ("Add", "Sub", "Mul", "Div", "PRelu", "And", "Or", "Xor")}
    comparisons = {"Equal": "equal", "Less": "less", "LessOrEqual": "less_equal"}
    comparisons |= {"Greater": "greater", "GreaterOrEqual": "greater_equal"}
    table |= {name: _binary(op, bool_) for name, op in comparisons.items()}
    table |= {f"Bitwise{name}": _binary(f"bit{name.lower()}") for name in ("And", "Or", "Xor")}
    table |= {"Max": _variadic("max"), "Min": _variadic("min"), "Sum": _variadic("add")}
    table |= {"Not": _predicate("not"), "IsNaN": _predicate("isnan"), "BitwiseNot": _unary("bitnot", floats_only=False)}
    table |= {"LeakyRelu": _parametric("leaky_relu", alpha=0.01), "Elu": _parametric("elu", alpha=1.0)}
    table |= {"Celu": _parametric("celu", alpha=1.0), "ThresholdedRelu": _parametric("thresholded_relu", alpha=1.0)}
    table["HardSigmoid"] = _parametric("hard_sigmoid", alpha=0.2, beta=0.5)
    table["Selu"] = _parametric("selu", alpha=1.67326319217681884765625, gamma=1.05070102214813232421875)
    table |= {"Identity": _identity, "Cast": _cast, "Pow": _pow, "Mod": _mod, "Gelu": _gelu, "Swish": _swish}
    table |= {"Clip": _clip, "IsInf": _isinf, "BitShift": _shift, "Where": _where}
    handlers = {("", name): handler for name, handler in table.items()}
    handlers["com.microsoft", "QuickGelu"] = _parametric("quick_gelu", alpha=1.702)
    handlers["cuvil", "Gelu"] = _gelu
    return handlers


_HANDLERS = _handlers()
