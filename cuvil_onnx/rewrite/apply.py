"""Checks a match and puts its replacement into the graph."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import onnx_ir as ir

from cuvil_onnx.errors import RewriteError
from cuvil_onnx.rewrite import walk
from cuvil_onnx.rewrite.graph import GraphContext
from cuvil_onnx.rewrite.order import Key
from cuvil_onnx.rewrite.rule import Match, Refusal, Replacement


def match_outputs(match: Match) -> tuple[ir.Value, ...]:
    """The values a replacement has to provide."""
    if match.outputs:
        return tuple(match.outputs)
    return tuple(v for v in match.root.outputs if walk.use_count(v) or v.is_graph_output()) or tuple(
        match.root.outputs[:1]
    )


def check_match(match: Match, ctx: GraphContext) -> Refusal | None:
    """The conditions every match must meet, whatever the rule; None when it may be rewritten."""
    graph = match.root.graph
    members = set(match.nodes)
    kept = set(match_outputs(match))
    for node in match.nodes:
        if node.graph is not graph:
            return Refusal("the match spans a subgraph boundary", node)
        for value in node.outputs:
            if value in kept:
                continue
            if value.is_graph_output():
                return Refusal(f"{value.name!r} is a graph output", value)
            for user in walk.each_user(value):
                if user not in members:
                    where = "" if user.graph is graph else " in a subgraph"
                    return Refusal(f"{value.name!r} is also read by {label(user)}{where}", user)
    return None


def late_nodes(match: Match, last: ir.Node, ctx: GraphContext) -> list[ir.Node] | Refusal:
    """The nodes that must move behind the replacement because they read an output of the match and stand before it.

    The replacement stands where the ``last`` matched node stood. A match with several outputs can have
    readers before that place. When such a reader leads back into the match, the match is not convex and fusing it
    would close a cycle: a Refusal.
    """
    graph = match.root.graph
    assert graph is not None
    members = set(match.nodes)
    anchor = ctx.order.key(last)
    late: dict[ir.Node, Key] = {}
    # Nothing before the last node reads what that computes.
    stack = [v for v in match_outputs(match) if v.producer() in members and v.producer() is not last]
    while stack:
        value = stack.pop()
        for reader in walk.each_user(value):
            node = ctx.holder(reader, graph)
            if node is None or node in late:
                continue
            if node in members:
                if value.producer() in members:
                    continue  # an edge inside the match
                return Refusal("a path leaves the match and enters it again", value)
            key = ctx.order.key(node)
            if key < anchor:
                late[node] = key
                stack.extend(node.outputs)
    return sorted(late, key=lambda n: late[n])


def apply(match: Match, replacement: Replacement, ctx: GraphContext) -> Refusal | None:
    """Replaces the match; returns a Refusal, with the graph untouched, when that is impossible.

    Raises:
        RewriteError: the rule broke its contract (number of values, element types, inputs from nowhere).
    """
    graph = match.root.graph
    assert graph is not None
    old_values = match_outputs(match)
    if len(old_values) != len(replacement.values):
        raise RewriteError(
            f"{label(match.root)}: the replacement gives {len(replacement.values)} values, {len(old_values)} required"
        )
    last = max(match.nodes, key=ctx.order.key, default=match.root)
    anchor = ctx.order.key(last)
    late = late_nodes(match, last, ctx)
    if isinstance(late, Refusal):
        detach(replacement.nodes)
        return late
    problem = _check_replacement(match, old_values, replacement, anchor, ctx)
    if problem is not None:
        detach(replacement.nodes)
        return problem

    members = set(match.nodes)
    new_nodes = list(replacement.nodes)
    graph.insert_after(last, new_nodes)
    keyed = list(new_nodes)
    if late:
        graph.remove(late)
        graph.insert_after(new_nodes[-1] if new_nodes else last, late)
    for old, new in zip(old_values, replacement.values, strict=True):
        if new is None:
            continue
        keyed.extend(substitute(old, new, ctx, members, graph, new_nodes, last))
    keyed.extend(late)
    for function in replacement.functions:
        ctx.add_function(function)
    for node in new_nodes:
        ctx.adopt(node)
    for node in match.nodes:
        ctx.abandon(node)
    detach(match.nodes)
    graph.remove(match.nodes)
    ctx.order.forget(match.nodes, graph)
    ctx.order.place(graph, anchor, keyed)
    return None


def substitute(
    old: ir.Value,
    new: ir.Value,
    ctx: GraphContext,
    members: set[ir.Node],
    graph: ir.Graph,
    fresh: Sequence[ir.Node],
    last: ir.Node,
) -> list[ir.Node]:
    """Lets every reader of ``old`` read ``new``; returns the nodes (an Identity, or none) that this needed.

    The new value takes over the old name where it can: graph outputs must keep theirs, and for the rest users find
    their tensors again. A graph output cannot be an input, an initializer, a value of another graph or an output
    twice: then an Identity carries the name.
    """
    created: list[ir.Node] = []
    is_output = old.is_graph_output()
    own = new.producer() is not None and new.producer() in fresh
    if new.type is None:
        new.type = old.type
    if (own or is_output) and new.shape is None and old.shape is not None:
        new.shape = old.shape.copy()
    name = old.name
    target = new
    if is_output and not can_take_over(old, new, members):
        identity = ctx.node("Identity", [new], like=old)
        graph.insert_after(fresh[-1] if fresh else last, identity)
        created.append(identity)
        target = identity.outputs[0]
    if (own or is_output) and name:
        old.name = ctx.fresh_name(f"{name}_replaced")
        target.name = name
    untouched = members.union(fresh, created)
    for user, index in old.uses():
        if user not in untouched:
            walk.replace_input(user, index, target)
    if is_output:
        owner = old.graph
        assert owner is not None
        for i, output in enumerate(owner.outputs):
            if output is old:
                owner.outputs[i] = target
    return created


def can_take_over(old: ir.Value, new: ir.Value, removed: Collection[ir.Node] = ()) -> bool:
    """Whether ``new`` can become the graph output in place of ``old`` without an Identity in between.

    Inputs, initializers, values of other graphs and values that already are an output cannot.
    """
    producer = new.producer()
    if producer is None or producer in removed or new.is_graph_output() or new.is_graph_input():
        return False
    return producer.graph is None or producer.graph is old.graph


def replace_node(
    node: ir.Node, new_nodes: Sequence[ir.Node], values: Sequence[ir.Value | None], ctx: GraphContext
) -> bool:
    """Replaces one node (all its outputs) outside of any rule, for passes; False when that is impossible."""
    match = Match(node, nodes=(node,), outputs=node.outputs)
    return apply(match, Replacement(new_nodes, values), ctx) is None


def _check_replacement(
    match: Match, old_values: Sequence[ir.Value], replacement: Replacement, anchor: Key, ctx: GraphContext
) -> Refusal | None:
    """Reasons not to apply; RewriteError when the rule broke its contract."""
    graph = match.root.graph
    fresh = set(replacement.nodes)
    members = set(match.nodes)
    for node in replacement.nodes:
        for value in node.inputs:
            producer = None if value is None else value.producer()
            if producer is None or producer in fresh:
                continue
            if producer in members:
                raise RewriteError(
                    f"{label(match.root)}: new node {label(node)} reads a value that the rewrite removes"
                )
            if producer.graph is None:
                raise RewriteError(f"{label(match.root)}: new node {label(node)} reads a value that is in no graph")
            if producer.graph is graph and ctx.order.key(producer) > anchor:
                return Refusal("an operand is computed after the last matched node", producer)
    for old, new in zip(old_values, replacement.values, strict=True):
        if new is None:
            if walk.use_count(old) or old.is_graph_output():
                raise RewriteError(f"{label(match.root)}: nothing replaces {old.name!r}, which is used")
            continue
        maker = new.producer()
        if maker is not None and maker not in fresh and maker.graph is graph and ctx.order.key(maker) > anchor:
            return Refusal("the value that takes over is computed after the last matched node", maker)
        old_type, new_type = ctx.dtype(old), ctx.dtype(new)
        if old_type is not None and new_type is not None and old_type != new_type:
            raise RewriteError(
                f"{label(match.root)}: {old.name!r} has element type {old_type.name}, its replacement {new_type.name}"
            )
        old_shape, new_shape = ctx.static_shape(old), ctx.static_shape(new)
        if old_shape is not None and new_shape is not None and old_shape != new_shape:
            raise RewriteError(
                f"{label(match.root)}: {old.name!r} has shape {list(old_shape)}, its replacement {list(new_shape)}"
            )
    return None


def detach(nodes: Iterable[ir.Node]) -> None:
    """Makes nodes that are to go forget their inputs, so that they count as users of nothing; empties subgraphs."""
    for node in nodes:
        walk.drop_inputs(node)
        for graph in walk.subgraphs(node) if node.attributes.data else ():
            for inner, _ in walk.all_graphs(graph):
                members = list(inner)
                for member in members:
                    walk.drop_inputs(member)
                inner.remove(members)


def detach_orphans(values: Iterable[ir.Value | None]) -> None:
    """Detaches nodes that a failed rewrite built: they are in no graph but count as users of their inputs."""
    for value in values:
        if value is not None:
            for user in walk.users(value):
                if user.graph is None:
                    detach([user])


def label(node: ir.Node) -> str:
    """How messages name a node."""
    kind = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
    return f"{kind} {node.name!r}"
