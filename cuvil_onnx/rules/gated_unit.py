"""Computes a gated unit (SwiGLU, GeGLU, GLU) in one pass over one product.

Before: activation(g) * u, where g and u are the halves of one tensor (Split or Slice), or x Wg + bg and x Wu + bu with
        constant weights of one shape, in floats or quantized alike.
After:  cuvil::GatedUnit(x [Wg Wu] + [bg bu]): one product in place of two, and one pass that reads both halves where
        they are, instead of two that cut them out and a third.
Exactness: rounding; the larger product may sum in another order, and 16-bit types round once.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from cuvil_onnx.rewrite.graph import GraphContext
from cuvil_onnx.rewrite.rule import Exactness, Match, Phase, Refusal, Replacement, Rule
from cuvil_onnx.rules import _activation
from cuvil_onnx.rules._common import FLOATS, dims, make
from cuvil_onnx.rules._parts import contiguous
from cuvil_onnx.rules._projection import join, joinable, projection

LOWEST_OPSET = 11  # for the body


class GatedUnit(Rule):
    """See the module's text."""

    name = "gated_unit"
    phase = Phase.STRUCTURAL
    exactness = Exactness.ROUNDING
    roots = (("", "Split"), ("", "Slice"), ("", "MatMul"), ("cuvil", "MatMulInt4"), ("", "Add"))

    def match(self, node: ir.Node, ctx: GraphContext) -> Match | Refusal | None:
        for gate in node.outputs:
            found = self._gate(gate, ctx)
            if found is not None:
                return found
        return None

    def _gate(self, gate: ir.Value, ctx: GraphContext) -> Match | Refusal | None:
        activation = _activation.find(gate, ctx)
        product = None if activation is None else ctx.single_user(activation.output, "Mul")
        if activation is None or product is None:
            return None
        a, b = product.inputs
        up = b if a is activation.output else a
        if up is None or up is activation.output or up is gate or ctx.dtype(gate) not in FLOATS:
            return None
        attrs: dict[str, Any] = {"activation": activation.name, "activation_params": activation.params}
        nodes = [*activation.nodes, product]
        for order, gate_first in (((gate, up), 1), ((up, gate), 0)):
            cut = contiguous(order, ctx)
            if cut is not None and dims(gate, ctx) == dims(up, ctx):
                if ctx.opset() < LOWEST_OPSET:
                    return Refusal(f"gated units need opset {LOWEST_OPSET}, the model has {ctx.opset()}", product)
                attrs["gate_first"] = gate_first
                return Match(product, [*nodes, *cut[1]], product.outputs, {"x": cut[0]}, {"node": attrs, "parts": None})
        parts = [p for p in (projection(v, ctx) for v in (gate, up)) if p is not None]
        if len(parts) != 2 or parts[0].x is not parts[1].x:
            return None
        if dims(parts[0].weight, ctx) != dims(parts[1].weight, ctx) or not joinable(parts, ctx):
            return None
        if ctx.opset() < LOWEST_OPSET:
            return Refusal(f"gated units need opset {LOWEST_OPSET}, the model has {ctx.opset()}", product)
        if ctx.single_user(up) is not product or any(ctx.use_count(p.nodes[0].outputs[0]) > 2 for p in parts):
            return Refusal("a projection is read elsewhere too", up)
        attrs["gate_first"] = 1
        nodes += [n for p in parts for n in p.nodes]
        return Match(product, nodes, product.outputs, {}, {"node": attrs, "parts": parts})

    def rewrite(self, match: Match, ctx: GraphContext) -> Replacement | Refusal:
        parts = match.attrs["parts"]
        nodes = [] if parts is None else join(parts, "gate_up", ctx)
        x = match.values["x"] if parts is None else nodes[-1].outputs[0]
        dtype = ctx.dtype(x)
        assert dtype is not None
        fused, function = make("GatedUnit", [x], match.attrs["node"], ctx, dtype, match.outputs)
        return Replacement((*nodes, fused), fused.outputs, (function,))
