"""Recognises the activations that a fused product or convolution can apply, as one operator or written out."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import onnx_ir as ir

from cuvil_onnx.rewrite.graph import GraphContext
from cuvil_onnx.rules._common import digits, near, scalar_factor, scalar_term

_PLAIN = ("Relu", "Sigmoid", "Tanh", "HardSwish", "Softplus", "Mish")
_PARAMETERS = {"LeakyRelu": {"alpha": 0.01}, "Elu": {"alpha": 1.0}, "HardSigmoid": {"alpha": 0.2, "beta": 0.5}}


@dataclass(frozen=True)
class Activation:
    """`output` = name(params)(value), computed by `nodes`."""

    name: str
    params: tuple[float, ...]
    output: ir.Value
    nodes: tuple[ir.Node, ...]


def find(value: ir.Value, ctx: GraphContext) -> Activation | None:
    """The activation that is the only use of `value`; None when there is none."""
    if value.is_graph_output():
        return None
    user = ctx.single_user(value)
    if user is not None:
        return _single(user, value, ctx)
    users = ctx.users(value) if ctx.use_count(value) == 2 else ()
    if len(users) == 2 and all(u.graph is value.graph for u in users):
        for gate, product in ((users[0], users[1]), (users[1], users[0])):
            for recognise in (_swish, _hard_swish, _mish):
                found = recognise(gate, product, value, ctx)
                if found is not None:
                    return found
    return None


def _single(node: ir.Node, value: ir.Value, ctx: GraphContext) -> Activation | None:
    """One operator."""
    output = node.outputs[0]
    if node.domain not in ("", "cuvil") or node.inputs[0] is not value:
        return None
    if node.op_type == "Gelu":
        tanh = ctx.attr(node, "approximate", "none") == "tanh"
        return Activation("GeluTanh" if tanh else "Gelu", (), output, (node,))
    if node.domain != "":
        return None
    if node.op_type in _PLAIN:
        return Activation(node.op_type, (), output, (node,))
    if node.op_type == "Swish" and ctx.attr(node, "alpha", 1.0) == 1.0:
        return Activation("Swish", (), output, (node,))
    if node.op_type in _PARAMETERS:
        defaults = _PARAMETERS[node.op_type]
        params = tuple(float(ctx.attr(node, name, default)) for name, default in defaults.items())
        return Activation(node.op_type, params, output, (node,))
    bounds = clip_bounds(node, ctx) if node.op_type == "Clip" else None
    return None if bounds is None else Activation("Clip", bounds, output, (node,))


def clip_bounds(node: ir.Node, ctx: GraphContext) -> tuple[float, float] | None:
    """The constant bounds of a Clip, infinite where absent; None when one is computed, NaN, or above the other."""
    bounds = []
    for index, name, default in ((1, "min", -math.inf), (2, "max", math.inf)):
        given = node.inputs[index] if index < len(node.inputs) else None
        number = ctx.attr(node, name, default) if given is None else ctx.scalar(given)
        if number is None or math.isnan(number):
            return None
        bounds.append(float(number))
    return (bounds[0], bounds[1]) if bounds[0] <= bounds[1] else None


Recogniser = Callable[[ir.Node, ir.Node, ir.Value, GraphContext], "Activation | None"]


def _closes(product: ir.Node, a: ir.Value, b: ir.Value) -> bool:
    return product.op_type == "Mul" and product.domain == "" and list(product.inputs) in ([a, b], [b, a])


def _swish(gate: ir.Node, product: ir.Node, x: ir.Value, ctx: GraphContext) -> Activation | None:
    """x * Sigmoid(x)."""
    if gate.op_type != "Sigmoid" or gate.domain != "" or ctx.single_user(gate.outputs[0]) is not product:
        return None
    return (
        Activation("Swish", (), product.outputs[0], (gate, product)) if _closes(product, x, gate.outputs[0]) else None
    )


def _mish(gate: ir.Node, product: ir.Node, x: ir.Value, ctx: GraphContext) -> Activation | None:
    """x * Tanh(Softplus(x))."""
    tanh = ctx.single_user(gate.outputs[0], "Tanh") if gate.op_type == "Softplus" and gate.domain == "" else None
    if tanh is None or ctx.single_user(tanh.outputs[0]) is not product or not _closes(product, x, tanh.outputs[0]):
        return None
    return Activation("Mish", (), product.outputs[0], (gate, tanh, product))


def _hard_swish(gate: ir.Node, product: ir.Node, x: ir.Value, ctx: GraphContext) -> Activation | None:
    """x * HardSigmoid(x, 1/6, 1/2), or x * Clip(x + 3, 0, 6) / 6 with the division at any of its places."""
    if gate.op_type == "HardSigmoid" and gate.domain == "":
        slope, offset = ctx.attr(gate, "alpha", 0.2), ctx.attr(gate, "beta", 0.5)
        exact = near(slope, 1 / 6, 1e-6) and offset == 0.5 and ctx.single_user(gate.outputs[0]) is product
        closed = exact and _closes(product, x, gate.outputs[0])
        return Activation("HardSwish", (), product.outputs[0], (gate, product)) if closed else None
    term = scalar_term(gate, ctx)
    clip = ctx.single_user(gate.outputs[0], "Clip")
    if term is None or term[1] != 3.0 or clip is None or clip_bounds(clip, ctx) != (0.0, 6.0):
        return None
    inner, nodes = clip.outputs[0], [gate, clip]
    scaled = ctx.single_user(inner)
    factor = None if scaled is None else scalar_factor(scaled, ctx)
    if scaled is not None and factor is not None and near(factor[1], 1 / 6, digits(x, ctx)):
        inner, nodes = scaled.outputs[0], [*nodes, scaled]
    if ctx.single_user(inner) is not product or not _closes(product, x, inner):
        return None
    nodes.append(product)
    if len(nodes) == 4:
        return Activation("HardSwish", (), product.outputs[0], tuple(nodes))
    last = ctx.single_user(product.outputs[0])
    factor = None if last is None else scalar_factor(last, ctx)
    if last is None or factor is None or not near(factor[1], 1 / 6, digits(x, ctx)):
        return None
    return Activation("HardSwish", (), last.outputs[0], (*nodes, last))
