"""What the two GELU rules share."""

from __future__ import annotations

import onnx_ir as ir

from cuvil_onnx.rewrite.graph import GraphContext
from cuvil_onnx.rewrite.rule import Match, Refusal, Replacement
from cuvil_onnx.rules._common import FLOATS, make
from cuvil_onnx.rules._gate import Polynomial, gates, matches

GELU_OPSET = 20
LOWEST_OPSET = 9  # Erf, in the function body


def match(node: ir.Node, argument: Polynomial, ctx: GraphContext) -> Match | Refusal | None:
    """Reads the surroundings of Erf or Tanh as a GELU whose inner polynomial is `argument`."""
    nearly = None
    for gate in gates(node, ctx):
        if not matches(gate, argument, ctx):
            text = " + ".join(f"{c:.6g} x^{p}" for p, c in sorted(gate.argument.items()))
            nearly = Refusal(f"x * (1 + {node.op_type}(...)) / 2 of {text}, which is not GELU's argument", node)
            continue
        if ctx.dtype(gate.x) not in FLOATS:
            return Refusal("the element type of the input is not known", gate.x)
        if ctx.opset() < LOWEST_OPSET:
            return Refusal(f"needs opset {LOWEST_OPSET}, the model has {ctx.opset()}", node)
        return Match(node, gate.nodes, outputs=(gate.output,), values={"x": gate.x})
    return nearly


def rewrite(match: Match, approximate: str, ctx: GraphContext) -> Replacement:
    """One Gelu node."""
    x, (output,) = match.values["x"], match.outputs
    assert x is not None
    if ctx.opset() >= GELU_OPSET:
        node = ctx.node("Gelu", [x], {"approximate": approximate}, like=output)
        return Replacement((node,), node.outputs)
    dtype = ctx.dtype(x)
    assert dtype is not None
    node, function = make("Gelu", [x], {"approximate": approximate}, ctx, dtype, [output])
    return Replacement((node,), node.outputs, (function,))
