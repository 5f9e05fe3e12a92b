"""Runs rules over a model: a worklist driven by an index from root operator to rules.

Cost: every node is visited once per sweep and tried only against the rules rooted at its operator. A rewrite queues
its surroundings again, so that chains of rewrites finish within the sweep; sweeps repeat until nothing fires. Nothing
here depends on hash order: the same model gives the same bytes.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Sequence

import onnx_ir as ir

from cuvil_onnx.errors import RewriteError
from cuvil_onnx.rewrite import walk
from cuvil_onnx.rewrite.apply import apply, check_match, detach, detach_orphans, label, match_outputs
from cuvil_onnx.rewrite.graph import GraphContext
from cuvil_onnx.rewrite.provenance import origins, stamp
from cuvil_onnx.rewrite.rule import Match, OpId, Refusal, Rule
from cuvil_onnx.rewrite.sketch import Picture, sketch
from cuvil_onnx.rewrite.trace import Trace

MAX_SWEEPS = 8
MAX_REQUEUED_USERS = 64
"""A value with more readers than this does not queue them after a rewrite; the next sweep sees them."""

STRICT_VARIABLE = "CUVIL_STRICT"
"""Set to 1 (tests do): a defect in a rule raises instead of leaving the place unfused with a warning."""


class Driver:
    """Applies a set of rules to the model of a context until nothing changes."""

    def __init__(self, rules: Sequence[Rule], ctx: GraphContext, trace: Trace) -> None:
        self._ctx = ctx
        self._trace = trace
        self._index: dict[OpId, list[Rule]] = {}
        for rule in sorted(rules, key=lambda r: (-r.priority, r.name)):
            for root in rule.roots:
                self._index.setdefault(root, []).append(rule)
        self._queue: deque[ir.Node] = deque()
        self._queued: set[ir.Node] = set()
        self._budget = 0

    def run(self) -> int:
        """Sweeps until nothing fires; returns the number of rewrites.

        Raises:
            RewriteError: (strict mode) a rule broke its contract.
        """
        total = 0
        nodes = sum(len(graph) for graph in self._ctx.graphs)
        self._budget = 4 * nodes + 1000  # every rewrite should shrink the graph; a rule that undoes another must end
        for _ in range(MAX_SWEEPS):
            fired = self._sweep()
            total += fired
            if not fired or self._budget <= 0:
                break
        if self._budget <= 0:
            self._trace.warn(f"rewriting stopped after {total} rewrites: two rules undo each other")
        return total

    def _sweep(self) -> int:
        fired = 0
        for graph in self._ctx.graphs:
            self._push(graph)
        while self._queue and self._budget > 0:
            node = self._queue.popleft()
            self._queued.discard(node)
            if node.graph is None:
                continue
            for rule in self._index.get((node.domain, node.op_type), ()):
                if self._try(rule, node):
                    fired += 1
                    self._budget -= 1
                    break
        return fired

    def _push(self, nodes: Iterable[ir.Node]) -> None:
        index, queued, queue = self._index, self._queued, self._queue
        for node in nodes:
            if node not in queued and (node.domain, node.op_type) in index and node.graph is not None:
                queued.add(node)
                queue.append(node)

    def _try(self, rule: Rule, node: ir.Node) -> bool:
        """Matches and rewrites one rule at one node; False when nothing was changed."""
        ctx = self._ctx
        match: Match | Refusal | None = None
        try:
            match = rule.match(node, ctx)
            if isinstance(match, Match):
                match = check_match(match, ctx) or match
            if isinstance(match, Match):
                return self._rewrite(rule, match)
        except Exception as error:  # a defect of one rule must cost its fusion, not the user's model
            touched = match.nodes if isinstance(match, Match) else (node,)
            detach_orphans(v for n in touched for v in (*n.inputs, *n.outputs))
            if os.environ.get(STRICT_VARIABLE) == "1":
                raise RewriteError(f"rule {rule.name} at {label(node)}: {type(error).__name__}: {error}") from error
            self._trace.warn(f"rule {rule.name} failed at {label(node)}: {type(error).__name__}: {error}")
            return False
        if isinstance(match, Refusal):
            self._trace.add_refused(rule.name, node, match.reason, match.culprit)
        return False

    def _rewrite(self, rule: Rule, match: Match) -> bool:
        ctx = self._ctx
        inputs = list(dict.fromkeys(v for n in match.nodes for v in n.inputs if v is not None))
        ordered = sorted(match.nodes, key=ctx.order.key) or [match.root]
        replacement = rule.rewrite(match, ctx)
        if isinstance(replacement, Refusal):
            detach_orphans(inputs)
            self._trace.add_refused(rule.name, match.root, replacement.reason, replacement.culprit)
            return False
        old_names = origins(ordered)
        listed = self._trace.lists_fired
        shape = _shape_text(match_outputs(match), ctx) if listed else ""
        stamp(replacement.nodes, old_names, rule.name)
        drawn = None if rule.name in self._trace.pictures else sketch(ordered, match_outputs(match))
        problem = apply(match, replacement, ctx)
        if problem is not None:
            detach(replacement.nodes)
            self._trace.add_refused(rule.name, match.root, problem.reason, problem.culprit)
            return False
        result = tuple(f"{n.op_type}({n.name})" for n in replacement.nodes) if listed else ()
        self._trace.add_fired(rule.name, rule.exactness, old_names, result, shape)
        if drawn is not None:
            self._trace.pictures[rule.name] = Picture(drawn, sketch(replacement.nodes, replacement.values))
        self._requeue(replacement.nodes, replacement.values, inputs)
        return True

    def _requeue(self, nodes: Sequence[ir.Node], values: Sequence[ir.Value | None], inputs: Iterable[ir.Value]) -> None:
        """Queues what the rewrite may have made possible: the new nodes, their readers, the producers and siblings."""
        near = list(nodes)
        for value in (*values, *inputs):
            if value is None:
                continue
            producer = value.producer()
            if producer is not None:
                near.append(producer)
            if walk.use_count(value) <= MAX_REQUEUED_USERS:
                near.extend(walk.each_user(value))
        self._push(near)


def _shape_text(values: Sequence[ir.Value], ctx: GraphContext) -> str:
    shape = ctx.shape(values[0]) if values else None
    return "" if shape is None else "[" + ", ".join("?" if d is None else str(d) for d in shape) + "]"
