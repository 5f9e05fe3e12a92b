"""What the growth of a region asks of single nodes and values; nothing of it changes while the region grows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from custom_ops.program import Operand, Program, UnsupportedError, compile_node, is_elementwise
from cuvil_onnx.rewrite import walk
from cuvil_onnx.rewrite.graph import Dim, GraphContext
from cuvil_onnx.rewrite.order import Key
from cuvil_onnx.rules._common import dims

MAX_INSTRUCTIONS = 128
MAX_OPERANDS = 64
"""No region has more inputs and nodes; a sum of hundreds is not looked at by all of its neighbours in turn."""

Given = ir.DataType | tuple[ir.DataType, bytes] | None
"""An operand: the element type of one that is loaded, that and the bytes of a constant, or an absent one."""

_INTEGERS = (ir.DataType.INT64, ir.DataType.INT32, ir.DataType.BOOL)


class Facts:
    """Looks everything up once."""

    def __init__(self, ctx: GraphContext) -> None:
        self.ctx = ctx
        self._shapes: dict[ir.Value, tuple[Dim, ...] | None] = {}
        self._keys: dict[ir.Node, Key] = {}
        self._uses: dict[ir.Node, tuple[int, list[ir.Value]]] = {}
        self._readers: dict[ir.Value, list[ir.Node]] = {}

    def shape(self, value: ir.Value) -> tuple[Dim, ...] | None:
        """The dimensions as `dims` gives them."""
        try:
            return self._shapes[value]
        except KeyError:
            known = self._shapes[value] = dims(value, self.ctx)
            return known

    def key(self, node: ir.Node) -> Key:
        """The place of a node in its graph."""
        try:
            return self._keys[node]
        except KeyError:
            known = self._keys[node] = self.ctx.order.key(node)
            return known

    def cost(self, node: ir.Node) -> int:
        """How many instructions a node takes in a program, every input loaded; 0 when it must not be in one."""
        return self._use(node)[0]

    def operands(self, node: ir.Node) -> list[ir.Value]:
        """The inputs of a node that do not become part of the program, as often as it reads them."""
        return self._use(node)[1]

    def readers(self, value: ir.Value) -> list[ir.Node]:
        """The nodes that read a value, in any graph."""
        known = self._readers.get(value)
        if known is None:
            known = self._readers[value] = walk.users(value)
        return known

    def _use(self, node: ir.Node) -> tuple[int, list[ir.Value]]:
        try:
            return self._uses[node]
        except KeyError:
            known = self._uses[node] = use(node, self.ctx)
            return known


def use(node: ir.Node, ctx: GraphContext) -> tuple[int, list[ir.Value]]:
    """How many instructions a node takes in a program and which inputs it then has; (0, []) when it must not be in one.

    That is for what is not elementwise or has no exact translation, for shape arithmetic, and for what constant folding
    takes care of.
    """
    never: tuple[int, list[ir.Value]] = 0, []
    if not is_elementwise(node) or node.graph is None or len(node.inputs) > MAX_OPERANDS:
        return never
    output = node.outputs[0]
    rank = ctx.rank(output)
    if rank == 0 or ((rank is None or rank <= 1) and ctx.dtype(output) in _INTEGERS):
        return never
    loaded: list[ir.Value] = []
    given: list[Given] = []
    computed = False
    for value in node.inputs:
        if value is None:
            given.append(None)
            continue
        tensor = ctx.tensor(value)
        computed |= tensor is None
        # A Constant node that is left makes a graph output; what it makes is loaded like any other value.
        if tensor is not None and value.is_initializer() and _immediate(tensor, node, ctx):
            given.append((tensor.dtype, tensor.tobytes()))
        else:
            dtype = ctx.dtype(value)
            if dtype is None:
                return never
            given.append(dtype)
            loaded.append(value)
    if not computed:
        return never
    # As text: 0.0 is not -0.0. Elementwise nodes have no tensors or graphs among their attributes.
    attributes = tuple([(a.name, repr(a.value)) for a in node.attributes.data.values()])
    key = ("pointwise", node.domain, node.op_type, attributes, tuple(given))
    cost: int | None = ctx.memo.get(key)
    if cost is None:
        cost = ctx.memo[key] = _instructions(node, given)
    return (cost, loaded) if cost else never


def _instructions(node: ir.Node, given: Sequence[Given]) -> int:
    """The length of a program for one node; 0 when there is none."""
    program = Program()
    operands: list[Operand | None] = []
    try:
        for index, one in enumerate(given):
            if one is None:
                operands.append(None)
            elif isinstance(one, tuple):
                dtype, data = one
                operands.append(program.constant(np.frombuffer(data, dtype.numpy()), dtype))
            else:
                operands.append(program.load(index, one))
        compile_node(program, node, operands)
    except UnsupportedError:
        return 0
    return len(program.instructions)


def _immediate(tensor: ir.TensorProtocol, node: ir.Node, ctx: GraphContext) -> bool:
    """Whether a constant of one element becomes part of the program; not where it would raise the result's rank."""
    rank = len(tensor.shape)
    if tensor.size != 1 or tensor.dtype == ir.DataType.STRING:
        return False
    if rank == 0:
        return True
    others = [ctx.rank(v) for v in node.inputs if v is not None and not ctx.is_constant(v)]
    return any(r is not None and r >= rank for r in others)
