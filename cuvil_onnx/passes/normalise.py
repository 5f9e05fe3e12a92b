"""Brings a freshly loaded model into the form all passes expect (exact)."""

from __future__ import annotations

import onnx_ir as ir

from cuvil_onnx.passes.base import KNOWN_DOMAINS
from cuvil_onnx.rewrite import walk
from cuvil_onnx.rewrite.graph import GraphContext, named, names_a_size
from cuvil_onnx.rewrite.trace import Trace

MIN_IR_VERSION = 10
"""Function overloads and node metadata exist since IR 10; every ONNX Runtime this package supports reads it."""


TYPED_BY_SCALES = frozenset({"MatMulNBits", "GatherBlockQuantized"})
"""Operators of com.microsoft whose results have the type of their third input."""


def normalise(ctx: GraphContext, trace: Trace) -> int:
    """Drops declared types of computed values, turns Constant nodes into initializers, lifts the IR version.

    Declared shapes of computed values may be stale (nothing checks them), so only inferred ones are trusted; values of
    operators that nobody can infer keep what the file says.

    Before IR 4 every initializer had to be listed as a graph input; those inputs go, so that weights are constants.
    """
    graph = ctx.model.graph
    changes = 0
    if ctx.model.ir_version < 4:
        kept = [v for v in graph.inputs if not v.is_initializer()]
        changes += len(graph.inputs) - len(kept)
        graph.inputs.clear()
        graph.inputs.extend(kept)
    ctx.model.ir_version = max(ctx.model.ir_version, MIN_IR_VERSION)
    for value in graph.inputs:
        if value.shape is not None:
            value.shape = ir.Shape([_plain(d) for d in value.shape])
    for inner, holder in ctx.owners.items():
        if holder is not None and holder.op_type == "Loop" and not holder.domain:
            for value in inner.inputs[2:]:
                value.shape = None  # of the first iteration: what a loop carries may grow; Signature restores it
    for inner in ctx.graphs:
        for node in inner:
            if node.domain in KNOWN_DOMAINS and node.domain != "com.microsoft":
                for value in node.outputs:
                    value.shape = None
    changes += _lift_constants(ctx)
    _type_quantized(ctx)
    return changes


def _type_quantized(ctx: GraphContext) -> None:
    """Gives results of quantized operators that onnx does not know the type of their scales."""
    for graph in ctx.graphs:
        for node in graph:
            if node.domain == "com.microsoft" and node.op_type in TYPED_BY_SCALES and node.outputs[0].type is None:
                dtype = ctx.dtype(node.inputs[2])
                node.outputs[0].type = None if dtype is None else ir.TensorType(dtype)


def _plain(dim: int | ir.SymbolicDim) -> int | ir.SymbolicDim | None:
    """A free size without a name when the file writes it as -1, "?" or the like: equal ones need not be equal sizes."""
    if isinstance(dim, int):
        return dim if dim >= 0 else None
    return dim if names_a_size(dim.value) else None


def forget_inferred(ctx: GraphContext) -> None:
    """Leaves types and shapes of computed values to whoever reads the model, the interface excepted.

    Readers infer them anyway, and ONNX Runtime refuses a model whose value_info contradicts its own inference.
    """
    for graph in ctx.graphs:
        for node in graph:
            if node.domain in KNOWN_DOMAINS and node.domain != "com.microsoft":
                for value in node.outputs:
                    if not value.is_graph_output():
                        value.shape = value.type = None


def _lift_constants(ctx: GraphContext) -> int:
    lifted = 0
    for graph in ctx.graphs:
        for node in list(graph):
            if node.op_type != "Constant" or node.domain or not node.outputs:
                continue
            output = node.outputs[0]
            tensor = ctx.tensor(output)
            if tensor is None or output.is_graph_output():
                continue
            value = _same_name_initializer(tensor, output, ctx) if graph is ctx.model.graph else None
            value = value or ctx.initializer(tensor, output.name or "const")
            for user, index in output.uses():
                user.replace_input_with(index, value)
            graph.remove(node)
            lifted += 1
    ctx.order.invalidate()
    return lifted


def _same_name_initializer(tensor: ir.TensorProtocol, output: ir.Value, ctx: GraphContext) -> ir.Value | None:
    """An initializer that takes over the name of a Constant's output, which is about to go."""
    name = output.name
    if not name:
        return None
    value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(tensor.shape.numpy()))
    value.const_value = named(tensor, name)
    output.name = None
    ctx.model.graph.register_initializer(value)
    return value


def sort_graphs(model: ir.Model) -> None:
    """Puts the nodes of every graph in topological order when they are not.

    Raises:
        ValueError: there is a cycle.
    """
    for graph, _ in walk.all_graphs(model.graph):
        seen: set[ir.Node] = set()
        for node in graph:
            readers = [node]
            if node.attributes.data:
                for inner in walk.subgraphs(node):
                    readers.extend(walk.all_nodes(inner))
            for reader in readers:
                for value in reader.inputs:
                    producer = None if value is None else value.producer()
                    if producer is not None and producer not in seen and producer.graph is graph:
                        model.graph.sort()
                        return
            seen.add(node)
