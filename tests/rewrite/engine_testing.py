"""Small rules and models for the tests of the engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper, numpy_helper

from cuvil_onnx.rewrite import Exactness, GraphContext, Match, Phase, Refusal, Replacement, Rule
from cuvil_onnx.rewrite.driver import Driver
from cuvil_onnx.rewrite.trace import Trace


def context(text: str, **weights: Any) -> GraphContext:
    """A context over a graph in ONNX's text form."""
    graph = onnx.parser.parse_graph(f"g {text}")
    graph.initializer.extend(numpy_helper.from_array(np.asarray(array), name) for name, array in weights.items())
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    return GraphContext(ir.from_proto(model))


def drive(ctx: GraphContext, *rules: Rule) -> Trace:
    """Runs rules until nothing fires; a defect of a rule becomes a warning unless CUVIL_STRICT is set."""
    trace = Trace()
    Driver(rules, ctx, trace).run()
    onnx.checker.check_model(ir.to_proto(ctx.model))
    return trace


def op_types(graph: ir.Graph) -> list[str]:
    return [node.op_type for node in graph]


class ExactRule(Rule):
    """Defaults for the rules below."""

    name = "test"
    phase = Phase.STRUCTURAL
    exactness = Exactness.EXACT


class DoubleNeg(ExactRule):
    """Neg(Neg(x)) -> x."""

    name = "double_neg"
    roots = (("", "Neg"),)

    def match(self, node: ir.Node, ctx: GraphContext) -> Match | Refusal | None:
        inner = ctx.producer(node.inputs[0], "Neg")
        return None if inner is None else Match(node, (node, inner), values={"x": inner.inputs[0]})

    def rewrite(self, match: Match, ctx: GraphContext) -> Replacement | Refusal:
        return Replacement((), (match.values["x"],))


class ExpLog(ExactRule):
    """Exp and Log of one value -> Softplus of it twice: two roots, two outputs."""

    name = "exp_log"
    roots = (("", "Exp"),)

    def match(self, node: ir.Node, ctx: GraphContext) -> Match | Refusal | None:
        x = node.inputs[0]
        assert x is not None
        log = next((u for u in ctx.users(x) if u.op_type == "Log"), None)
        if log is None:
            return None
        return Match(node, (node, log), outputs=(node.outputs[0], log.outputs[0]), values={"x": x})

    def rewrite(self, match: Match, ctx: GraphContext) -> Replacement | Refusal:
        first = ctx.node("Softplus", [match.values["x"]], like=match.outputs[0])
        second = ctx.node("Softplus", [match.values["x"]], like=match.outputs[1])
        return Replacement((first, second), (first.outputs[0], second.outputs[0]))
