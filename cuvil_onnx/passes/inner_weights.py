"""Weights of subgraphs (exact): in the main graph while the model is worked on, and back where ONNX Runtime wants them.

A weight of the main graph can be read everywhere, is mapped from its file and need not travel with what onnx infers
shapes of. But ONNX Runtime 1.31 fuses DequantizeLinear and MatMul only if the weight is an initializer of the graph
that they are in, and refuses the whole model otherwise ("Missing required weight").
"""

from __future__ import annotations

import onnx_ir as ir

from cuvil_onnx.passes.shapes import SMALL_TENSOR_BYTES
from cuvil_onnx.rewrite import walk
from cuvil_onnx.rewrite.graph import GraphContext, named

QUANTIZED = frozenset({("", "DequantizeLinear"), ("cuvil", "MatMulInt4")})
"""Operators that need their weights beside them."""


def hoist_weights(model: ir.Model) -> None:
    """Moves the weights of subgraphs to the main graph; names that branches share are made different."""
    graphs = [graph for graph, holder in walk.all_graphs(model.graph) if holder is not None]
    inner = [v for g in graphs for v in g.initializers.values() if v.const_value is not None]
    large = [v for v in inner if v.const_value is not None and v.const_value.nbytes > SMALL_TENSOR_BYTES]
    if not large:
        return
    used = set(model.graph.initializers) | {v.name for v in model.graph.inputs}
    used.update(v.name for n in walk.all_nodes(model.graph) for v in n.outputs)
    used.update(v.name for g in graphs for v in (*g.inputs, *g.initializers.values()))
    for number, value in enumerate(large):
        if value.is_graph_input() or value.is_graph_output():
            continue
        graph, name, tensor = value.graph, value.name or "weight", value.const_value
        assert isinstance(graph, ir.Graph) and tensor is not None
        del graph.initializers[name]
        twins = sum(name in g.initializers for g in graphs) or name in model.graph.initializers
        while twins and name in used:
            name = f"{name}_{number}"
        used.add(name)
        if value.name != name:
            value.const_value = None  # it would be renamed, and with it the caller's
            value.name = name
            value.const_value = named(tensor, name)
        model.graph.register_initializer(value)


def lower_quantized_weights(ctx: GraphContext) -> int:
    """Gives each subgraph the quantized weights that it reads; those that others read too are copied."""
    main, moved = ctx.model.graph, 0
    for graph in ctx.graphs:
        if graph is main:
            continue
        own: dict[ir.Value, ir.Value] = {}
        for node in graph:
            if (node.domain, node.op_type) not in QUANTIZED:
                continue
            for index, value in enumerate(node.inputs):
                if value is None or not value.is_initializer() or value.graph is not main or value.is_graph_input():
                    continue
                if value not in own:
                    own[value] = _lowered(value, graph, ctx)
                    moved += 1
                if own[value] is not value:
                    node.replace_input_with(index, own[value])
    return moved


def _lowered(value: ir.Value, graph: ir.Graph, ctx: GraphContext) -> ir.Value:
    """The weight in a subgraph: itself when nothing else reads it, else another one with the same elements."""
    name, tensor = value.name, value.const_value
    assert name is not None and tensor is not None
    if not value.is_graph_output() and all(user.graph is graph for user in walk.users(value)):
        del ctx.model.graph.initializers[name]
        graph.register_initializer(value)
        return value
    name = ctx.fresh_name(name)
    copy = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(tensor.shape.numpy()))
    copy.const_value = named(tensor, name)
    graph.register_initializer(copy)
    return copy
