"""Keeps the interface of a model as the caller declared it."""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from cuvil_onnx.errors import RewriteError
from cuvil_onnx.rewrite import walk


@dataclasses.dataclass(frozen=True)
class Signature:
    """The interface as loaded: shapes of the inputs, names, types and shapes of the outputs, inputs of subgraphs."""

    inputs: dict[str | None, ir.Shape | None]
    outputs: tuple[tuple[str | None, ir.TypeProtocol | None, ir.Shape | None], ...]
    carried: tuple[tuple[ir.Value, ir.Shape | None], ...]

    @staticmethod
    def of(model: ir.Model) -> Signature:
        """Records the signature."""
        return Signature(
            {v.name: None if v.shape is None else v.shape.copy() for v in model.graph.inputs},
            tuple((v.name, v.type, None if v.shape is None else v.shape.copy()) for v in model.graph.outputs),
            tuple((v, v.shape) for graph, holder in walk.all_graphs(model.graph) if holder for v in graph.inputs),
        )

    def restore(self, model: ir.Model) -> None:
        """Declares the interface as before.

        Raises:
            RewriteError: a name or an element type changed: a defect of a pass.
        """
        for value, shape in self.carried:
            value.shape = shape
        for value in model.graph.inputs:
            value.shape = self.inputs[value.name]
        for value, (name, type_, shape) in zip(model.graph.outputs, self.outputs, strict=True):
            if value.name != name:
                raise RewriteError(f"graph output {name!r} became {value.name!r}")
            if type_ is not None and value.type is not None and value.type != type_:
                raise RewriteError(f"graph output {name!r} became {value.type}")
            value.type = type_ or value.type
            if value.const_value is None:
                value.shape = shape
