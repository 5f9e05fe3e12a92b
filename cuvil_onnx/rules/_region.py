"""Grows regions of elementwise nodes that one kernel can compute.

Growing by one node costs what that node reads and the few inputs and outputs of the region, not what is in it already.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Collection, Iterable

import onnx_ir as ir

from cuvil_onnx.rewrite import walk
from cuvil_onnx.rewrite.order import Key
from cuvil_onnx.rules._common import fit
from cuvil_onnx.rules._region_facts import MAX_INSTRUCTIONS, Facts

MAX_NODES = 48
MAX_INPUTS = 16
MAX_OUTPUTS = 8
MAX_SEARCH = 2000
"""Uses looked at to prove that no path leaves a region and enters it again; beyond that it counts as one."""

MAX_READERS = 64
"""A value with more readers neither draws them in nor is drawn in by them: each of them would look at all others."""

HEAVY = frozenset({"Sin", "Cos", "Tan", "Pow", "Mod", "Softplus", "Mish", "Atanh", "Asinh", "Acosh"})
"""Functions that cost more than reading their result from memory would."""

Place = tuple[Key, int]
"""Where a value is read first: the node's place in the graph and the number of the operand."""


class Region:
    """A connected set of elementwise nodes of one graph.

    Attributes:
        nodes: in topological order.
        members: the same as a set.
    """

    def __init__(self, root: ir.Node, facts: Facts) -> None:
        self.nodes: list[ir.Node] = []
        self.members: set[ir.Node] = set()
        self._facts = facts
        self._keys: list[Key] = []
        self._reads: dict[ir.Value, tuple[Place, int]] = {}  # inputs: first and number of readings
        self._left: dict[ir.Value, int] = {}  # outputs: number of readings outside
        self._heavy: list[ir.Value] = []
        self._instructions = 0
        self._commit(root, self._reads_with(root), self._left_with(root))

    @property
    def inputs(self) -> list[ir.Value]:
        """The values it reads, in the order in which its nodes do."""
        return sorted(self._reads, key=lambda v: self._reads[v][0])

    @property
    def outputs(self) -> list[ir.Value]:
        """The values that others read, in topological order."""
        return sorted(self._left, key=self._place)

    def take(self, node: ir.Node) -> bool:
        """Adds `node` when one kernel can compute the region with it: the sizes, the shapes, the place in the graph."""
        cost = self._facts.cost(node)
        if not cost or len(self.nodes) >= MAX_NODES or self._instructions + cost > MAX_INSTRUCTIONS:
            return False
        reads = self._reads_with(node)
        if not 0 < len(reads) <= MAX_INPUTS:
            return False
        left = self._left_with(node)
        if len(left) > MAX_OUTPUTS:
            return False
        if not self._one_shape(node, reads, left) or self._repeats_work(node, left) or not self._convex(node, left):
            return False
        self._commit(node, reads, left)
        return True

    def neighbours(self) -> list[ir.Node]:
        """The elementwise nodes of the same graph next to it: producers of inputs, then readers of outputs."""
        graph = self.nodes[0].graph
        found: dict[ir.Node, None] = {}
        for value in self.inputs:
            producer = value.producer()
            if producer is not None and walk.use_count(value) <= MAX_READERS:
                found[producer] = None
        for value in self.outputs:
            if walk.use_count(value) <= MAX_READERS:
                found.update(dict.fromkeys(self._facts.readers(value)))
        return [n for n in found if n not in self.members and n.graph is graph and self._facts.cost(n)]

    def _commit(self, node: ir.Node, reads: dict[ir.Value, tuple[Place, int]], left: dict[ir.Value, int]) -> None:
        key = self._facts.key(node)
        index = bisect(self._keys, key)
        self._keys.insert(index, key)
        self.nodes.insert(index, node)
        self.members.add(node)
        self._reads, self._left = reads, left
        self._instructions += self._facts.cost(node)  # with every load counted once a node: an upper bound
        if node.op_type in HEAVY:
            self._heavy.append(node.outputs[0])

    def _reads_with(self, node: ir.Node) -> dict[ir.Value, tuple[Place, int]]:
        """The inputs of the region with `node`."""
        reads = dict(self._reads)
        reads.pop(node.outputs[0], None)
        key = self._facts.key(node)
        for index, value in enumerate(self._facts.operands(node)):
            if value.producer() in self.members:
                continue
            place, count = reads.get(value, ((key, index), 0))
            reads[value] = (min(place, (key, index)), count + 1)
        return reads

    def _left_with(self, node: ir.Node) -> dict[ir.Value, int]:
        """The outputs of the region with `node`."""
        left = dict(self._left)
        for value in self._facts.operands(node):
            if value in left:
                left[value] -= 1
                if not left[value] and not value.is_graph_output():
                    del left[value]
        (output,) = node.outputs
        others = walk.use_count(output) - self._reads.get(output, (None, 0))[1]
        if others or output.is_graph_output():
            left[output] = others
        return left

    def _one_shape(self, node: ir.Node, inputs: Collection[ir.Value], outputs: Collection[ir.Value]) -> bool:
        """Whether every output is known to have the shape that all inputs broadcast to.

        An output that depends on all inputs has it by the rules of broadcasting, whatever the sizes are.
        """
        if self._all_fit(inputs, outputs):
            return True
        shape = self._facts.shape
        depends = {value: 1 << index for index, value in enumerate(inputs)}  # a bit for each input
        index = bisect(self._keys, self._facts.key(node))
        for member in (*self.nodes[:index], node, *self.nodes[index:]):
            bits = 0
            for value in self._facts.operands(member):
                bits |= depends.get(value, 0)
            depends[member.outputs[0]] = bits
        every = (1 << len(inputs)) - 1
        for output in outputs:
            full = shape(output)
            others = [v for v in inputs if not depends[output] & depends[v]]
            if depends[output] != every and (full is None or not all(fit(shape(v), full) for v in others)):
                return False
        return True

    def _all_fit(self, inputs: Collection[ir.Value], outputs: Collection[ir.Value]) -> bool:
        """Whether every input is known to broadcast to every output without enlarging it."""
        shape = self._facts.shape
        for full in {shape(output) for output in outputs}:
            if full is None:
                return False
            known = None not in full
            for value in inputs:
                own = shape(value)
                if not (known and own == full) and not fit(own, full):
                    return False
        return True

    def _repeats_work(self, node: ir.Node, outputs: Collection[ir.Value]) -> bool:
        """Whether an expensive function of a smaller tensor would be computed anew for every element of the result."""
        heavy = [*self._heavy, node.outputs[0]] if node.op_type in HEAVY else self._heavy
        if not heavy or not outputs:
            return False
        full = self._facts.shape(min(outputs, key=self._place))
        return full is not None and any(self._facts.shape(v) not in (full, None) for v in heavy)

    def _convex(self, added: ir.Node, outputs: Iterable[ir.Value]) -> bool:
        """Whether no path leaves the region and enters it again; then one node can take its place."""
        ctx, graph = self._facts.ctx, added.graph
        assert graph is not None
        last = max(self._keys[-1], self._facts.key(added))
        stack = [v for v in outputs if self._place(v) != last]
        if not stack:
            return True
        members = {*self.members, added}
        seen: set[ir.Node] = set()
        budget = MAX_SEARCH
        while stack:
            value = stack.pop()
            for user in walk.each_user(value):
                budget -= 1
                node = ctx.holder(user, graph)
                if node is None or node in seen:
                    continue
                if node in members:
                    if value.producer() not in members:
                        return False
                elif self._facts.key(node) < last:
                    if budget <= 0:
                        return False
                    seen.add(node)
                    stack.extend(node.outputs)
        return True

    def _place(self, output: ir.Value) -> Key:
        """Where the node that computes `output` stands."""
        node = output.producer()
        assert node is not None
        return self._facts.key(node)


def grow(root: ir.Node, facts: Facts) -> Region:
    """The region around `root`, extended one neighbour at a time for as long as one kernel can compute it."""
    region = Region(root, facts)
    rejected: dict[ir.Node, int] = {}  # and how large the region was then
    while True:
        while _extend(region, rejected):
            pass
        # What did not fit before may fit now, such as the other arm of a diamond: it gets one more chance.
        size = len(region.nodes)
        left = {node: then for node, then in rejected.items() if then == size}
        if len(left) == len(rejected):
            return region
        rejected = left


def _extend(region: Region, rejected: dict[ir.Node, int]) -> bool:
    """Adds one neighbour; False when none fits."""
    for node in region.neighbours():
        if node not in rejected:
            if region.take(node):
                return True
            rejected[node] = len(region.nodes)
    return False
