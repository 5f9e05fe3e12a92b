"""Removes nodes, initializers and functions that nothing uses (exact)."""

from __future__ import annotations

import onnx_ir as ir

from cuvil_onnx.rewrite import walk
from cuvil_onnx.rewrite.apply import detach
from cuvil_onnx.rewrite.graph import GraphContext
from cuvil_onnx.rewrite.trace import Trace


def remove_dead_code(ctx: GraphContext, trace: Trace) -> int:
    """One pass from the last node to the first, inner graphs before outer ones; interface and graph outputs stay."""
    removed = 0
    for graph in reversed(ctx.graphs):
        dead = []
        for node in reversed(graph):
            for value in node.outputs:
                if walk.use_count(value) or value.is_graph_output():
                    break
            else:
                detach((node,))
                dead.append(node)
        if dead:
            graph.remove(dead)
            ctx.order.forget(dead, graph)
            removed += len(dead)
    for graph in ctx.graphs:
        for name, value in list(graph.initializers.items()):
            if not (walk.use_count(value) or value.is_graph_output() or value.is_graph_input()):
                del graph.initializers[name]
    if ctx.model.functions:
        _remove_unused_functions(ctx.model)
    if removed and len(ctx.graphs) > 1:
        ctx.find_graphs()
    return removed


def _remove_unused_functions(model: ir.Model) -> None:
    """Drops functions that no node reaches."""
    used: set[tuple[str, str, str]] = set()
    pending = [model.graph]
    while pending:
        for node in walk.all_nodes(pending.pop()):
            key = node.op_identifier()
            if key in model.functions and key not in used:
                used.add(key)
                pending.append(model.functions[key].graph)
    for key in [k for k in model.functions if k not in used]:
        del model.functions[key]
