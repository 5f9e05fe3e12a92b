"""Grows regions of elementwise nodes that one kernel can compute."""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from custom_ops.program import Operand, Program, UnsupportedError, compile_node, is_elementwise
from cuvil_onnx.rewrite.graph import GraphContext
from cuvil_onnx.rules._common import dims, fits

MAX_NODES = 48
MAX_INPUTS = 16
MAX_OUTPUTS = 8
MAX_INSTRUCTIONS = 64
MAX_SEARCH = 2000
"""Nodes looked at to prove that no path leaves a region and enters it again; beyond that it counts as one."""

MAX_READERS = 64
"""A value with more readers does not draw them in: they would be listed again for every node that joins."""

_INTEGERS = (ir.DataType.INT64, ir.DataType.INT32, ir.DataType.BOOL)


class Region:
    """A connected set of elementwise nodes of one graph, with its inputs and outputs in topological order."""

    def __init__(self, nodes: Iterable[ir.Node], ctx: GraphContext) -> None:
        self.ctx = ctx
        self.nodes = sorted(nodes, key=ctx.order.key)
        self.members = set(self.nodes)
        inputs: dict[ir.Value, None] = {}
        self.outputs: list[ir.Value] = []
        for node in self.nodes:
            for value in node.inputs:
                if value is not None and value.producer() not in self.members and not _immediate(value, node, ctx):
                    inputs[value] = None
            (output,) = node.outputs
            if output.is_graph_output() or any(u not in self.members for u in ctx.users(output)):
                self.outputs.append(output)
        self.inputs = list(inputs)

    def allowed(self) -> bool:
        """Whether one kernel can compute it: the size, the shapes of the outputs, the place in the graph."""
        sizes = (len(self.nodes), len(self.inputs), len(self.outputs))
        if any(size > limit for size, limit in zip(sizes, (MAX_NODES, MAX_INPUTS, MAX_OUTPUTS), strict=True)):
            return False
        return bool(self.inputs) and self._one_shape() and self._convex()

    def compiles(self) -> bool:
        """Whether every node has an exact translation and the program is not too long."""
        program = Program()
        known: dict[ir.Value, Operand] = {}
        try:
            for index, source in enumerate(self.inputs):
                dtype = self.ctx.dtype(source)
                if dtype is None:
                    return False
                known[source] = program.load(index, dtype)
            for node in self.nodes:
                for value in node.inputs:
                    tensor = None if value is None or value in known else self.ctx.tensor(value)
                    if value is not None and tensor is not None:
                        known[value] = program.constant(tensor.numpy(), tensor.dtype)
                result = compile_node(program, node, [None if v is None else known[v] for v in node.inputs])
                known[node.outputs[0]] = result
        except UnsupportedError:
            return False
        return len(program.instructions) <= MAX_INSTRUCTIONS

    def neighbours(self) -> list[ir.Node]:
        """The nodes next to the region that could join it: producers of inputs, then readers of outputs."""
        graph = self.nodes[0].graph
        found: dict[ir.Node, None] = {}
        for value in self.inputs:
            producer = value.producer()
            if producer is not None:
                found[producer] = None
        for value in self.outputs:
            if self.ctx.use_count(value) <= MAX_READERS:
                found.update(dict.fromkeys(self.ctx.users(value)))
        return [n for n in found if n not in self.members and n.graph is graph and eligible(n, self.ctx)]

    def _one_shape(self) -> bool:
        """Whether every output is known to have the shape that all inputs broadcast to.

        An output that depends on all inputs has it by the rules of broadcasting, whatever the sizes are.
        """
        depends: dict[ir.Value, set[ir.Value]] = {value: {value} for value in self.inputs}
        for node in self.nodes:
            depends[node.outputs[0]] = set().union(*(depends.get(v, set()) for v in node.inputs if v is not None))
        for output in self.outputs:
            others = [v for v in self.inputs if v not in depends[output]]
            full = dims(output, self.ctx) if others else ()
            if full is None or not all(fits(v, full, self.ctx) for v in others):
                return False
        return True

    def _convex(self) -> bool:
        """Whether no path leaves the region and enters it again; then one node can take its place."""
        if len(self.outputs) == 1 and len(self.nodes) == 1:
            return True
        ctx, graph = self.ctx, self.nodes[0].graph
        assert graph is not None
        last = ctx.order.key(self.nodes[-1])
        stack = [v for v in self.outputs if v is not self.nodes[-1].outputs[0]]
        seen: set[ir.Node] = set()
        while stack:
            for user in ctx.users(stack.pop()):
                node = ctx.holder(user, graph)
                if node is None or node in seen or node in self.members:
                    if node in self.members and user not in self.members:
                        return False
                    continue
                if ctx.order.key(node) > last:
                    continue
                if len(seen) >= MAX_SEARCH:
                    return False
                seen.add(node)
                if any(u in self.members for v in node.outputs for u in ctx.users(v)):
                    return False
                stack.extend(node.outputs)
        return True


def eligible(node: ir.Node, ctx: GraphContext) -> bool:
    """Whether a node is elementwise work on data: not shape arithmetic, and not something folding takes care of."""
    if not is_elementwise(node) or node.graph is None:
        return False
    if all(v is None or ctx.is_constant(v) for v in node.inputs):
        return False
    rank = ctx.rank(node.outputs[0])
    if rank == 0 or (ctx.dtype(node.outputs[0]) in _INTEGERS and (rank is None or rank <= 1)):
        return False
    return Region([node], ctx).compiles()


def grow(root: ir.Node, ctx: GraphContext) -> Region:
    """The region around `root`, extended one neighbour at a time for as long as one kernel can compute it."""
    region = Region([root], ctx)
    rejected: set[ir.Node] = set()
    while True:
        for node in region.neighbours():
            if node in rejected:
                continue
            larger = Region([*region.nodes, node], ctx)
            if larger.allowed() and larger.compiles():
                region = larger
                rejected.clear()  # what did not fit before may fit now: the other arm of a diamond
                break
            rejected.add(node)
        else:
            return region


def _immediate(value: ir.Value, node: ir.Node, ctx: GraphContext) -> bool:
    """Whether a constant of one element becomes part of the program; not where it would raise the result's rank."""
    tensor = ctx.tensor(value)
    if tensor is None or tensor.size != 1 or tensor.dtype == ir.DataType.STRING:
        return False
    rank = len(tensor.shape)
    others = [ctx.rank(v) for v in node.inputs if v is not None and not ctx.is_constant(v)]
    return rank == 0 or any(r is not None and r >= rank for r in others)
