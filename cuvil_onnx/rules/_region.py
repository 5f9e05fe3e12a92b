"""Grows regions of elementwise nodes that one kernel can compute."""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from custom_ops.program import Operand, Program, UnsupportedError, compile_node, is_elementwise
from cuvil_onnx.rewrite import walk
from cuvil_onnx.rewrite.graph import Dim, GraphContext
from cuvil_onnx.rules._common import dims, fit

MAX_NODES = 48
MAX_INPUTS = 16
MAX_OUTPUTS = 8
MAX_INSTRUCTIONS = 128
MAX_SEARCH = 2000
"""Nodes looked at to prove that no path leaves a region and enters it again; beyond that it counts as one."""

MAX_READERS = 64
"""A value with more readers does not draw them in: they would be listed again for every node that joins."""

HEAVY = frozenset({"Sin", "Cos", "Tan", "Pow", "Mod", "Softplus", "Mish", "Atanh", "Asinh", "Acosh"})
"""Functions that cost more than reading their result from memory would."""

_INTEGERS = (ir.DataType.INT64, ir.DataType.INT32, ir.DataType.BOOL)


class Facts:
    """What does not change while one region grows, looked up once for all the regions that are tried."""

    def __init__(self, ctx: GraphContext) -> None:
        self.ctx = ctx
        self._shapes: dict[ir.Value, tuple[Dim, ...] | None] = {}
        self._operands: dict[ir.Node, list[ir.Value]] = {}

    def shape(self, value: ir.Value) -> tuple[Dim, ...] | None:
        """The dimensions as `dims` gives them."""
        if value not in self._shapes:
            self._shapes[value] = dims(value, self.ctx)
        return self._shapes[value]

    def operands(self, node: ir.Node) -> list[ir.Value]:
        """The inputs of a node that do not become part of the program."""
        known = self._operands.get(node)
        if known is None:
            known = [v for v in node.inputs if v is not None and not _immediate(v, node, self.ctx)]
            self._operands[node] = known
        return known


class Region:
    """A connected set of elementwise nodes of one graph, with its inputs and outputs in topological order."""

    def __init__(self, nodes: Iterable[ir.Node], ctx: GraphContext, facts: Facts | None = None) -> None:
        self.ctx = ctx
        self._facts = facts or Facts(ctx)
        self.nodes = sorted(nodes, key=ctx.order.key)
        self.members = set(self.nodes)
        inputs: dict[ir.Value, None] = {}
        self.outputs: list[ir.Value] = []
        for node in self.nodes:
            for value in self._facts.operands(node):
                if value.producer() not in self.members:
                    inputs[value] = None
            (output,) = node.outputs
            if output.is_graph_output() or any(u not in self.members for u in walk.users(output)):
                self.outputs.append(output)
        self.inputs = list(inputs)

    def allowed(self) -> bool:
        """Whether one kernel can compute it: the size, the shapes of the outputs, the place in the graph."""
        sizes = (len(self.nodes), len(self.inputs), len(self.outputs))
        if any(size > limit for size, limit in zip(sizes, (MAX_NODES, MAX_INPUTS, MAX_OUTPUTS), strict=True)):
            return False
        return bool(self.inputs) and self._one_shape() and not self._repeats_work() and self._convex()

    def extended(self, node: ir.Node) -> Region | None:
        """The region with one more node, when one kernel can compute that."""
        output = node.outputs[0]
        inputs = {v for v in self.inputs if v is not output}
        inputs.update(v for v in self._facts.operands(node) if v.producer() not in self.members)
        if len(inputs) > MAX_INPUTS:
            return None
        larger = Region([*self.nodes, node], self.ctx, self._facts)
        return larger if larger.allowed() else None

    def neighbours(self) -> list[ir.Node]:
        """The nodes of the same graph next to the region: producers of inputs, then readers of outputs."""
        graph = self.nodes[0].graph
        found: dict[ir.Node, None] = {}
        for value in self.inputs:
            producer = value.producer()
            if producer is not None:
                found[producer] = None
        for value in self.outputs:
            if self.ctx.use_count(value) <= MAX_READERS:
                found.update(dict.fromkeys(self.ctx.users(value)))
        return [n for n in found if n not in self.members and n.graph is graph]

    def _one_shape(self) -> bool:
        """Whether every output is known to have the shape that all inputs broadcast to.

        An output that depends on all inputs has it by the rules of broadcasting, whatever the sizes are.
        """
        depends = {value: 1 << index for index, value in enumerate(self.inputs)}  # a bit for each input
        for node in self.nodes:
            bits = 0
            for value in self._facts.operands(node):
                bits |= depends.get(value, 0)
            depends[node.outputs[0]] = bits
        every = (1 << len(self.inputs)) - 1
        for output in self.outputs:
            if depends[output] == every:
                continue
            full = self._shape(output)
            others = [v for v in self.inputs if not depends[output] & depends[v]]
            if full is None or not all(fit(self._shape(v), full) for v in others):
                return False
        return True

    def _repeats_work(self) -> bool:
        """Whether an expensive function of a smaller tensor would be computed anew for every element of the result."""
        full = self._shape(self.outputs[0]) if self.outputs else None
        heavy = [node.outputs[0] for node in self.nodes if node.op_type in HEAVY]
        return full is not None and any(self._shape(v) not in (full, None) for v in heavy)

    def _shape(self, value: ir.Value) -> tuple[Dim, ...] | None:
        return self._facts.shape(value)

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


def instructions(node: ir.Node, ctx: GraphContext) -> int:
    """How many instructions a node takes in a program; 0 when it must not be in one.

    That is for what is not elementwise or has no exact translation, for shape arithmetic, and for what constant folding
    takes care of.
    """
    if not is_elementwise(node) or node.graph is None:
        return 0
    if all(v is None or ctx.is_constant(v) for v in node.inputs):
        return 0
    rank = ctx.rank(node.outputs[0])
    if rank == 0 or (ctx.dtype(node.outputs[0]) in _INTEGERS and (rank is None or rank <= 1)):
        return 0
    program = Program()
    operands: list[Operand | None] = []
    try:
        for index, value in enumerate(node.inputs):
            dtype = ctx.dtype(value)
            if value is None:
                operands.append(None)
            elif _immediate(value, node, ctx):
                tensor = ctx.tensor(value)
                assert tensor is not None
                operands.append(program.constant(tensor.numpy(), tensor.dtype))
            elif dtype is None:
                return 0
            else:
                operands.append(program.load(index, dtype))
        compile_node(program, node, operands)
    except UnsupportedError:
        return 0
    return len(program.instructions)


def grow(root: ir.Node, ctx: GraphContext) -> Region:
    """The region around `root`, extended one neighbour at a time for as long as one kernel can compute it."""
    region = Region([root], ctx)
    costs: dict[ir.Node, int] = {root: instructions(root, ctx)}
    total = costs[root]  # with every load counted once a node: an upper bound
    rejected: set[ir.Node] = set()
    grown = True
    while grown:
        # What did not fit before may fit now, such as the other arm of a diamond: one more round after each that grew.
        grown = False
        rejected.clear()
        while True:
            larger = _extended(region, total, costs, rejected, ctx)
            if larger is None:
                break
            region, total = larger
            grown = True
    return region


def _extended(
    region: Region, total: int, costs: dict[ir.Node, int], rejected: set[ir.Node], ctx: GraphContext
) -> tuple[Region, int] | None:
    """`region` with one more node, and the instructions then; None when no neighbour fits."""
    for node in region.neighbours():
        if node in rejected:
            continue
        if node not in costs:
            costs[node] = instructions(node, ctx)
        if costs[node] and total + costs[node] <= MAX_INSTRUCTIONS:
            larger = region.extended(node)
            if larger is not None:
                return larger, total + costs[node]
        rejected.add(node)
    return None


def _immediate(value: ir.Value, node: ir.Node, ctx: GraphContext) -> bool:
    """Whether a constant of one element becomes part of the program; not where it would raise the result's rank."""
    tensor = ctx.tensor(value)
    if tensor is None or tensor.size != 1 or tensor.dtype == ir.DataType.STRING:
        return False
    rank = len(tensor.shape)
    others = [ctx.rank(v) for v in node.inputs if v is not None and not ctx.is_constant(v)]
    return rank == 0 or any(r is not None and r >= rank for r in others)
