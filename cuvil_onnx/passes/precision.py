"""float32 -> fp16 or bf16 inside the model (approximate); inputs and outputs keep their types.

Nodes are divided into those that compute in 16 bits and those that stay in float32, so that few casts are needed and
none loses what matters:

* operators listed in ``precision_ops`` stay, and so do nodes with a constant that 16 bits cannot hold;
* cheap operators follow their operands; a division by a float32 result stays in float32;
* what becomes an angle, an index or a logarithm stays, back to where it was computed in 16 bits anyway;
* subgraphs stay in float32, with casts where they read values from outside;
* a value is cast once per direction, right behind its producer.

Mask constants such as -3.4e38 keep their nodes in float32; what leaves those nodes for fp16 is clipped to +-60000, so
that a masked score stays finite (-inf in a whole row would make softmax NaN) even after a score is added to it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from cuvil_onnx.errors import RewriteError
from cuvil_onnx.passes.base import Pass
from cuvil_onnx.passes.computed import computed
from cuvil_onnx.passes.precision_plan import FLOAT, Plan, plan_precision
from cuvil_onnx.rewrite.apply import replace_node
from cuvil_onnx.rewrite.graph import GraphContext
from cuvil_onnx.rewrite.provenance import RULE_KEY
from cuvil_onnx.rewrite.rule import Exactness

SATURATION = {ir.DataType.FLOAT16: 60000.0, ir.DataType.BFLOAT16: 3.0e38}
"""What values of nodes that exceed it are clipped to."""


def precision_pass(target: ir.DataType, keep: Collection[str] = ()) -> Pass:
    """The pass that converts to ``target`` (FLOAT16 or BFLOAT16) all but what computes values named in ``keep``."""
    return Pass("precision", Exactness.APPROXIMATE, lambda ctx, trace: _Converter(ctx, target, keep).run())


def narrow(array: npt.NDArray[Any], target: ir.DataType) -> npt.NDArray[Any]:
    """A float32 array in ``target``, rounded to nearest even."""
    return array.astype(np.float16 if target == ir.DataType.FLOAT16 else ml_dtypes.bfloat16)


class _Converter:
    def __init__(self, ctx: GraphContext, target: ir.DataType, keep: Collection[str]) -> None:
        self._ctx = ctx
        self._target = target
        self._keep = keep
        self._graph = ctx.model.graph
        self._constants: dict[ir.Value, ir.Value] = {}
        self._casts: dict[tuple[ir.Value, ir.DataType], ir.Value] = {}
        self._made: set[ir.Node] = set()

    def run(self) -> int:
        """Plans, then converts; returns the number of nodes that compute in 16 bits now."""
        plan = plan_precision(self._ctx, self._target, self._keep)
        nodes = list(self._graph)
        results = plan.results()
        for node in nodes:
            places = plan.half.get(node)
            if places is not None:
                for i in places.inputs:
                    node.replace_input_with(i, self._half(node.inputs[i], results, plan))
        for value in results:
            value.type = ir.TensorType(self._target)
        self._restore_float(nodes, plan, results)
        self._ctx.order.invalidate()  # casts went in by hand
        for node in nodes:
            if node in plan.half and node.domain == "cuvil":
                self._retype(node)
        self._ctx.order.invalidate()
        return len(plan.half)

    def _half(self, value: ir.Value | None, results: set[ir.Value], plan: Plan) -> ir.Value | None:
        """The 16-bit form of a float32 operand."""
        if value is None or value in results:
            return value
        if self._ctx.is_constant(value):
            return self._half_constant(value)
        return self._cast(value, self._target, clip=value in plan.saturating)

    def _half_constant(self, value: ir.Value) -> ir.Value:
        known = self._constants.get(value)
        if known is None:
            source = self._ctx.tensor(value)
            assert source is not None
            tensor = computed(source, lambda array: narrow(array, self._target), self._target)
            known = self._ctx.initializer(tensor, f"{value.name}_{self._target.name.lower()}")
            self._constants[value] = known
        return known

    def _cast(self, value: ir.Value, target: ir.DataType, clip: bool = False) -> ir.Value:
        """``value`` in another type, made once; the cast stands right behind the producer."""
        known = self._casts.get((value, target))
        if known is not None:
            return known
        ctx = self._ctx
        nodes = []
        source = value
        if clip:
            if ctx.opset() >= 11:
                limits = [np.array(sign * SATURATION[self._target], np.float32) for sign in (-1, 1)]
                bounds = [ctx.initializer(limit, "half_limit") for limit in limits]
                nodes.append(ctx.node("Clip", [value, *bounds], like=value))
            else:
                limit = SATURATION[self._target]
                nodes.append(ctx.node("Clip", [value], {"min": -limit, "max": limit}, like=value))
            source = nodes[-1].outputs[0]
        cast = ctx.node(
            "Cast", [source], {"to": int(target)}, like=value, name=f"{value.name}_to_{target.name.lower()}"
        )
        cast.outputs[0].type = ir.TensorType(target)
        nodes.append(cast)
        producer = value.producer()
        if producer is not None and producer.graph is self._graph:
            self._graph.insert_after(producer, nodes)
        elif len(self._graph):
            self._graph.insert_before(self._graph[0], nodes)
        for node in nodes:
            node.metadata_props[RULE_KEY] = "precision"
            self._made.add(node)
        self._casts[(value, target)] = cast.outputs[0]
        return cast.outputs[0]

    def _restore_float(self, nodes: list[ir.Node], plan: Plan, results: set[ir.Value]) -> None:
        """Gives float32 back to readers that need it: other nodes, subgraphs and graph outputs."""
        for node in nodes:
            for value in node.outputs:
                if value not in results:
                    continue
                for user, index in value.uses():
                    places = plan.half.get(user)
                    takes = places is not None and index in places.inputs
                    if not takes and user not in self._made and not _is_cast(user):
                        user.replace_input_with(index, self._cast(value, FLOAT))
                if value.is_graph_output():
                    self._export(value)

    def _export(self, value: ir.Value) -> None:
        """A graph output keeps its name and float32."""
        cast = self._cast(value, FLOAT)
        name = value.name
        value.name = self._ctx.fresh_name(f"{name}_{self._target.name.lower()}")
        cast.name = name
        for i, output in enumerate(self._graph.outputs):
            if output is value:
                self._graph.outputs[i] = cast

    def _retype(self, node: ir.Node) -> None:
        """Makes a fused node anew for the 16-bit type: its function has another body."""
        import custom_ops

        new, function = custom_ops.retype(node, {}, opset=self._ctx.opset(), dtype=self._target)
        new.name = self._ctx.fresh_name(node.name or node.op_type)
        for old, made in zip(node.outputs, new.outputs, strict=True):
            made.name = made.name or self._ctx.fresh_name(f"{old.name}_half")
            made.type, made.shape = old.type, old.shape
        new.metadata_props.update(node.metadata_props)
        self._ctx.add_function(function)
        if not replace_node(node, (new,), new.outputs, self._ctx):
            raise RewriteError(f"{node.op_type} {node.name!r} cannot be made anew for {self._target.name}")


def _is_cast(node: ir.Node) -> bool:
    """A Cast reads any type; the value it gets is the same one."""
    return node.op_type == "Cast" and not node.domain
