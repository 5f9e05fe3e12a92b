"""The driver: what it rewrites, what it refuses on every rule's behalf, and what it leaves behind."""

from __future__ import annotations

import json
import time

import onnx
import onnx_ir as ir
import pytest

from cuvil_onnx.errors import RewriteError
from cuvil_onnx.rewrite import GraphContext, Match, Refusal, Replacement
from tests.rewrite.engine_testing import DoubleNeg, ExactRule, ExpLog, context, drive, op_types


def test_rewrites_and_records() -> None:
    ctx = context("(float[4] x) => (float[4] y) { a = Neg(x) b = Neg(a) y = Exp(b) }")
    trace = drive(ctx, DoubleNeg())
    assert op_types(ctx.model.graph) == ["Exp"]
    assert trace.counts == {"double_neg": 1}
    assert trace.fired[0].nodes == ("Neg:a", "Neg:b")


def test_chains_end_within_one_run() -> None:
    text = " ".join(f"v{i + 1} = Neg(v{i})" for i in range(9))
    ctx = context(f"(float[4] v0) => (float[4] y) {{ {text} y = Exp(v9) }}")
    drive(ctx, DoubleNeg())
    assert op_types(ctx.model.graph) == ["Neg", "Exp"]


def test_an_inner_value_with_another_reader_is_refused() -> None:
    ctx = context("(float[4] x) => (float[4] y) { a = Neg(x) b = Neg(a) y = Add(a, b) }")
    trace = drive(ctx, DoubleNeg())
    assert op_types(ctx.model.graph) == ["Neg", "Neg", "Add"]
    assert "'a' is also read by" in trace.refused[0].reason


def test_an_inner_value_that_is_a_graph_output_is_refused() -> None:
    ctx = context("(float[4] x) => (float[4] a, float[4] y) { a = Neg(x) b = Neg(a) y = Exp(b) }")
    trace = drive(ctx, DoubleNeg())
    assert trace.refused[0].reason == "'a' is a graph output"


BRANCHES = """(float[4] x, bool c) => (float[4] y) {{
  a = Neg(x) b = Neg(a)
  y = If(c) <then_branch = t () => (float[4] r) {{ {then} }}, else_branch = e () => (float[4] s) {{ s = Exp(b) }}>
}}"""


def test_an_inner_value_that_a_subgraph_reads_is_refused() -> None:
    ctx = context(BRANCHES.format(then="r = Exp(a)"))
    trace = drive(ctx, DoubleNeg())
    assert trace.refused[0].reason.endswith("in a subgraph")


def test_subgraphs_are_rewritten_and_read_what_takes_over() -> None:
    ctx = context(BRANCHES.format(then="p = Neg(x) q = Neg(p) r = Exp(q)"))
    trace = drive(ctx, DoubleNeg())
    assert trace.counts == {"double_neg": 2}
    assert op_types(ctx.model.graph) == ["If"]
    assert [op_types(g) for g in ctx.graphs[1:]] == [["Exp"], ["Exp"]]


def test_a_match_across_graphs_is_refused() -> None:
    text = "(float[4] x, bool c) => (float[4] y) { a = Neg(x) y = If(c) <then_branch = t () => (float[4] r)"
    ctx = context(text + " { r = Neg(a) }, else_branch = e () => (float[4] s) { s = Exp(x) }> }")
    trace = drive(ctx, DoubleNeg())
    assert trace.refused[0].reason == "the match spans a subgraph boundary"


@pytest.mark.parametrize("readers", ["y = Neg(b)", "y = Identity(b)"])
def test_graph_outputs_keep_their_names(readers: str) -> None:
    ctx = context(f"(float[4] x) => (float[4] b, float[4] y) {{ t = Exp(x) a = Neg(t) b = Neg(a) {readers} }}")
    drive(ctx, DoubleNeg())
    assert [v.name for v in ctx.model.graph.outputs] == ["b", "y"]


def test_an_output_that_becomes_an_input_needs_an_identity() -> None:
    ctx = context("(float[4] x) => (float[4] y) { a = Neg(x) y = Neg(a) }")
    drive(ctx, DoubleNeg())
    assert op_types(ctx.model.graph) == ["Identity"]


def test_readers_between_two_outputs_move_behind_the_new_nodes() -> None:
    ctx = context("(float[4] x) => (float[4] y) { e = Exp(x) r = Relu(e) s = Relu(r) l = Log(x) y = Add(s, l) }")
    trace = drive(ctx, ExpLog())
    assert trace.counts == {"exp_log": 1}
    assert op_types(ctx.model.graph) == ["Softplus", "Softplus", "Relu", "Relu", "Add"]


class ExpMul(ExactRule):
    """Takes an Exp and a Mul of its result by way of another node: never convex."""

    name = "exp_mul"
    roots = (("", "Mul"),)

    def match(self, node: ir.Node, ctx: GraphContext) -> Match | Refusal | None:
        exp = ctx.producer(node.inputs[0], "Exp")
        return None if exp is None else Match(node, (node, exp), outputs=(exp.outputs[0], node.outputs[0]))

    def rewrite(self, match: Match, ctx: GraphContext) -> Replacement | Refusal:
        exp, mul = match.nodes[1], match.nodes[0]
        node = ctx.node("Split", [exp.inputs[0], mul.inputs[1]], like=match.outputs)
        return Replacement((node,), node.outputs)


def test_a_match_that_would_close_a_cycle_is_refused() -> None:
    ctx = context("(float[4] x) => (float[4] y) { e = Exp(x) r = Relu(e) y = Mul(e, r) }")
    trace = drive(ctx, ExpMul())
    assert trace.refused[0].reason == "a path leaves the match and enters it again"
    assert op_types(ctx.model.graph) == ["Exp", "Relu", "Mul"]


class WrongType(DoubleNeg):
    name = "wrong_type"

    def rewrite(self, match: Match, ctx: GraphContext) -> Replacement | Refusal:
        node = ctx.node("Cast", [match.values["x"]], {"to": 10}, like=match.root.outputs[0])
        node.outputs[0].type = ir.TensorType(ir.DataType.FLOAT16)
        return Replacement((node,), node.outputs)


class Raises(DoubleNeg):
    name = "raises"

    def rewrite(self, match: Match, ctx: GraphContext) -> Replacement | Refusal:
        ctx.node("Exp", [match.values["x"]])
        raise KeyError("oops")


@pytest.mark.parametrize("rule", [WrongType(), Raises()])
def test_a_defect_of_a_rule_costs_only_its_fusion(rule: DoubleNeg, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "(float[4] x) => (float[4] y) { z = Exp(x) a = Neg(z) y = Neg(a) }"
    monkeypatch.delenv("CUVIL_STRICT", raising=False)
    ctx = context(text)
    trace = drive(ctx, rule)
    assert op_types(ctx.model.graph) == ["Exp", "Neg", "Neg"]
    assert rule.name in trace.warnings[0]
    assert ctx.use_count(ctx.model.graph[0].outputs[0]) == 1, "what the rule built must not count as a reader"
    monkeypatch.setenv("CUVIL_STRICT", "1")
    with pytest.raises(RewriteError, match=rule.name):
        drive(context(text), rule)


class PingPong(ExactRule):
    """Relu -> Relu, for ever."""

    name = "ping_pong"
    roots = (("", "Relu"),)

    def match(self, node: ir.Node, ctx: GraphContext) -> Match | Refusal | None:
        return Match(node, (node,))

    def rewrite(self, match: Match, ctx: GraphContext) -> Replacement | Refusal:
        node = ctx.node("Relu", match.root.inputs, like=match.root.outputs[0])
        return Replacement((node,), node.outputs)


def test_rules_that_never_end_are_stopped() -> None:
    ctx = context("(float[4] x) => (float[4] y) { y = Relu(x) }")
    assert "undo each other" in drive(ctx, PingPong()).warnings[0]


def test_provenance_names_the_first_nodes() -> None:
    ctx = context("(float[4] x) => (float[4] y) { e = Exp(x) l = Log(x) y = Add(e, l) }")
    drive(ctx, ExpLog())
    drive(ctx, PingPong())
    props = ctx.model.graph[0].metadata_props
    assert props["cuvil.rule"] == "exp_log"
    assert json.loads(props["cuvil.from"]) == ["Exp:e", "Log:l"]


def _long_chain(nodes: int) -> GraphContext:
    """Add(previous, one shared scalar), Neg, Neg, ..."""
    protos = []
    last = "x"
    for i in range(nodes // 4):
        for op, out in (("Add", f"a{i}"), ("Neg", f"b{i}"), ("Neg", f"c{i}"), ("Relu", f"d{i}")):
            protos.append(onnx.helper.make_node(op, [last, "s"] if op == "Add" else [last], [out]))
            last = out
    infos = [onnx.helper.make_tensor_value_info(n, 1, [4]) for n in ("x", last)]
    scalar = onnx.helper.make_tensor("s", 1, [], [1.0])
    graph = onnx.helper.make_graph(protos, "g", infos[:1], infos[1:], [scalar])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9)
    return GraphContext(ir.from_proto(model))


def _never(index: int) -> ExactRule:
    class Never(ExactRule):
        name = f"never_{index}"
        roots = (("", "Add"), ("", "Neg"), ("", "Relu"))

        def match(self, node: ir.Node, ctx: GraphContext) -> Match | Refusal | None:
            return Match(node, (node,)) if ctx.producer(node.inputs[0], "Mul") else None

        def rewrite(self, match: Match, ctx: GraphContext) -> Replacement | Refusal:
            raise AssertionError

    return Never()


@pytest.mark.slow
def test_time_grows_with_the_nodes_and_not_with_their_square() -> None:
    rules = [DoubleNeg(), *(_never(i) for i in range(40))]
    seconds = []
    for nodes in (5_000, 20_000):
        ctx = _long_chain(nodes)
        start = time.process_time()
        assert drive(ctx, *rules).counts["double_neg"] == nodes // 4
        seconds.append(time.process_time() - start)
    # Four times the nodes; 8 leaves room for noise and still fails at the 16 of quadratic growth.
    assert seconds[1] < 8 * max(seconds[0], 0.1), seconds


def test_the_same_model_gives_the_same_bytes() -> None:
    texts = set()
    for _ in range(2):
        ctx = _long_chain(200)
        drive(ctx, DoubleNeg(), ExpLog())
        texts.add(ir.to_proto(ctx.model).SerializeToString(deterministic=True))
    assert len(texts) == 1
