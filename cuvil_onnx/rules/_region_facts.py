"""What the growth of a region asks of single nodes and values; nothing of it changes while the region grows."""

from __future__ import annotations

import onnx_ir as ir

from custom_ops.program import Operand, Program, UnsupportedError, compile_node, is_elementwise
from cuvil_onnx.rewrite.graph import Dim, GraphContext
from cuvil_onnx.rewrite.order import Key
from cuvil_onnx.rules._common import dims

MAX_INSTRUCTIONS = 128

_INTEGERS = (ir.DataType.INT64, ir.DataType.INT32, ir.DataType.BOOL)


class Facts:
    """Looks everything up once."""

    def __init__(self, ctx: GraphContext) -> None:
        self.ctx = ctx
        self._shapes: dict[ir.Value, tuple[Dim, ...] | None] = {}
        self._operands: dict[ir.Node, list[ir.Value]] = {}
        self._keys: dict[ir.Node, Key] = {}
        self._costs: dict[ir.Node, int] = {}
        self._readers: dict[ir.Value, list[ir.Node]] = {}

    def shape(self, value: ir.Value) -> tuple[Dim, ...] | None:
        """The dimensions as `dims` gives them."""
        if value not in self._shapes:
            self._shapes[value] = dims(value, self.ctx)
        return self._shapes[value]

    def operands(self, node: ir.Node) -> list[ir.Value]:
        """The inputs of a node that do not become part of the program, as often as it reads them."""
        known = self._operands.get(node)
        if known is None:
            known = [v for v in node.inputs if v is not None and not _immediate(v, node, self.ctx)]
            self._operands[node] = known
        return known

    def key(self, node: ir.Node) -> Key:
        """The place of a node in its graph."""
        known = self._keys.get(node)
        if known is None:
            known = self._keys[node] = self.ctx.order.key(node)
        return known

    def cost(self, node: ir.Node) -> int:
        """See `instructions`."""
        known = self._costs.get(node)
        if known is None:
            known = self._costs[node] = instructions(node, self.ctx)
        return known

    def readers(self, value: ir.Value) -> list[ir.Node]:
        """The nodes that read a value, in any graph."""
        known = self._readers.get(value)
        if known is None:
            known = self._readers[value] = list(self.ctx.users(value))
        return known


def instructions(node: ir.Node, ctx: GraphContext) -> int:
    """How many instructions a node takes in a program; 0 when it must not be in one.

    That is for what is not elementwise or has no exact translation, for shape arithmetic, and for what constant folding
    takes care of.
    """
    if not is_elementwise(node) or node.graph is None or len(node.inputs) > MAX_INSTRUCTIONS:
        return 0
    if all(v is None or ctx.is_constant(v) for v in node.inputs):
        return 0
    rank = ctx.rank(node.outputs[0])
    if rank == 0 or ((rank is None or rank <= 1) and ctx.dtype(node.outputs[0]) in _INTEGERS):
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


def _immediate(value: ir.Value, node: ir.Node, ctx: GraphContext) -> bool:
    """Whether a constant of one element becomes part of the program; not where it would raise the result's rank."""
    tensor = ctx.tensor(value)
    if tensor is None or tensor.size != 1 or tensor.dtype == ir.DataType.STRING:
        return False
    rank = len(tensor.shape)
    if rank == 0:
        return True
    others = [ctx.rank(v) for v in node.inputs if v is not None and not ctx.is_constant(v)]
    return any(r is not None and r >= rank for r in others)
