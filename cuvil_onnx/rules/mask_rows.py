"""Leaves out of an attention mask what is true for all queries and keys.

Before: cuvil::Attention with a mask made by elementwise operators, somewhere And(p >= 0, m), where p counts positions:
        torch writes that for attention in both directions, and the mask [B, 1, 1, T] becomes [B, 1, S, T].
After:  the same from m alone; attention broadcasts it, and its kernels are faster for a mask that all queries share.
Exactness: exact; the mask has the same elements, repeated or not.
"""

from __future__ import annotations

import onnx_ir as ir

from cuvil_onnx.rewrite.graph import GraphContext
from cuvil_onnx.rewrite.pattern import operands
from cuvil_onnx.rewrite.rule import Exactness, Match, Phase, Refusal, Replacement, Rule
from cuvil_onnx.rules._again import done_again
from cuvil_onnx.rules._arange import arange
from cuvil_onnx.rules._common import dims, make
from cuvil_onnx.rules.leading_axes import ELEMENTWISE

MAX_NODES = 16

_STEPS = (*ELEMENTWISE, "Not", "Cast", "Neg")


class MaskRows(Rule):
    """See the module's text."""

    name = "mask_rows"
    phase = Phase.STRUCTURAL
    exactness = Exactness.EXACT
    roots = (("cuvil", "Attention"),)

    def match(self, node: ir.Node, ctx: GraphContext) -> Match | Refusal | None:
        mask = node.inputs[3] if len(node.inputs) > 3 else None
        if mask is None or (dims(mask, ctx) or (1, 1))[-2:-1] == (1,):
            return None
        order, idle = _made_of(mask, ctx)
        if not idle:
            return None
        return Match(node, (node,), node.outputs, {"mask": mask}, {"order": order, "idle": idle})

    def rewrite(self, match: Match, ctx: GraphContext) -> Replacement | Refusal:
        node, mask = match.root, match.values["mask"]
        dtype = ctx.dtype(node.inputs[0])
        assert dtype is not None and mask is not None
        idle: dict[ir.Node, ir.Value] = match.attrs["idle"]
        made: dict[ir.Value, ir.Value] = {}
        nodes: list[ir.Node] = []
        for step in match.attrs["order"]:
            output = step.outputs[0]
            if step in idle:
                made[output] = made.get(idle[step], idle[step])
            elif any(v in made for v in step.inputs if v is not None):
                inputs = [v if v is None else made.get(v, v) for v in step.inputs]
                made[output] = done_again(step, inputs, nodes, ctx)
                made[output].shape = _broadcast(inputs, ctx)
        inputs = [*node.inputs[:3], made[mask], *node.inputs[4:]]
        attrs = {name: a.value for name, a in node.attributes.items()}
        fused, function = make("Attention", inputs, attrs, ctx, dtype, match.outputs)
        return Replacement((*nodes, fused), fused.outputs, (function,))


def _made_of(mask: ir.Value, ctx: GraphContext) -> tuple[list[ir.Node], dict[ir.Node, ir.Value]]:
    """The elementwise nodes that make the mask, in topological order, and of those that change nothing the operand."""
    found: dict[ir.Node, None] = {}
    idle: dict[ir.Node, ir.Value] = {}
    pending = [mask]
    while pending and len(found) < MAX_NODES:
        node = ctx.producer(pending.pop())
        if node is None or node.domain or node.op_type not in _STEPS:
            continue
        found.pop(node, None)  # behind all that read it
        found[node] = None
        kept = _idle(node, ctx)
        if kept is not None:
            idle[node] = kept
            pending.append(kept)
        else:
            pending.extend(v for v in node.inputs if v is not None)
    return list(found)[::-1], idle


def _idle(node: ir.Node, ctx: GraphContext) -> ir.Value | None:
    """The operand that And gives when the other one is always true."""
    if node.op_type != "And":
        return None
    for test, other in operands(node):
        if ctx.rank(other) is not None and ctx.rank(other) == ctx.rank(node.outputs[0]) and _is_true(test, ctx):
            return other
    return None


def _is_true(value: ir.Value, ctx: GraphContext) -> bool:
    """Whether every element is true in every run: a constant, positions that are compared with 0, or all of several."""
    pending = [value]
    for _ in range(MAX_NODES):
        if not pending:
            return True
        test = pending.pop()
        node = ctx.producer(test)
        if ctx.scalar(test) is True:
            continue
        if node is None or node.domain:
            return False
        if node.op_type == "And":
            pending.extend(v for v in node.inputs if v is not None)
            continue
        if node.op_type not in ("GreaterOrEqual", "LessOrEqual"):
            return False
        counted, bound = node.inputs if node.op_type == "GreaterOrEqual" else node.inputs[::-1]
        low = ctx.scalar(bound)
        if low is None or low > 0 or arange(counted, ctx) is None:
            return False
    return False


def _broadcast(inputs: list[ir.Value | None], ctx: GraphContext) -> ir.Shape | None:
    """The shape that operands have together, as far as that is known."""
    shapes = [dims(v, ctx) for v in inputs if v is not None]
    known = [s for s in shapes if s is not None]
    if len(known) != len(shapes):
        return None
    rank = max(len(s) for s in known)
    padded = [(1,) * (rank - len(s)) + tuple(s) for s in known]
    result = []
    for sizes in zip(*padded, strict=True):
        others = {size for size in sizes if size != 1}
        result.append(1 if not others else others.pop() if len(others) == 1 else None)
    return ir.Shape(result)
