"""What is known of the sizes in a model while they are being worked out."""

from __future__ import annotations

import onnx_ir as ir

from cuvil_onnx.passes._dims import Dim, Dims, Names
from cuvil_onnx.rewrite.graph import GraphContext, names_a_size

MAX_VECTOR = 16
"""Integer tensors with more elements are not shapes."""

Vector = tuple[Dim | bool | None, ...]


class Sizes:
    """What is known: `dims` of values, and `vectors`, the elements of small integer tensors of rank 0 or 1."""

    def __init__(self, ctx: GraphContext, names: Names) -> None:
        self.ctx = ctx
        self.names = names
        self.dims: dict[ir.Value, Dims] = {}
        self.vectors: dict[ir.Value, Vector] = {}

    def symbol(self, declared: Dim | None, value: ir.Value, axis: int) -> str:
        """A declared symbol; files also write "-1", "?" or nothing for sizes that need not be equal."""
        if isinstance(declared, str) and names_a_size(declared):
            return declared
        return self.names.formula(f"{value.name}.{axis}")

    def of(self, value: ir.Value | None) -> Dims | None:
        """The shape of a value, when its rank is known."""
        return None if value is None else self.dims.get(value)

    def vector(self, value: ir.Value | None) -> Vector | None:
        """The elements of a small integer tensor; None in it is an element that is not known."""
        if value is None:
            return None
        if value not in self.vectors:
            tensor = self.ctx.tensor(value)
            if tensor is None or tensor.size > MAX_VECTOR or tensor.dtype not in (ir.DataType.INT64, ir.DataType.INT32):
                return None
            if tensor.size > 1 and not self.is_row(value):
                return None
            self.vectors[value] = tuple(int(i) for i in tensor.numpy().reshape(-1))
        return self.vectors[value]

    def is_row(self, value: ir.Value) -> bool:
        """Whether a tensor is known to be of rank 0 or 1: the elements of a table need not keep their order."""
        return self.ctx.rank(value) in (0, 1)

    def ints(self, node: ir.Node, name: str, index: int) -> list[int] | None:
        """An attribute that became an input (axes, ...): its integers, None when absent or unknown."""
        given = self.ctx.attr(node, name)
        if given is not None:
            return [int(i) for i in given]
        return self.ctx.ints(node.inputs[index]) if index < len(node.inputs) else None

    def ints_or(self, node: ir.Node, name: str, index: int, default: list[int]) -> list[int] | None:
        """The same; `default` when absent, None when it is computed."""
        absent = self.ctx.attr(node, name) is None and (index >= len(node.inputs) or node.inputs[index] is None)
        return default if absent else self.ints(node, name, index)
