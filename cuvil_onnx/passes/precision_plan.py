"""Which nodes of a model compute in 16 bits: those that may, that lose nothing they need, and that are worth a cast."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from cuvil_onnx.passes.precision_ops import COMPARISONS, LIGHT, SOURCES_OF_LOGS, Places, convertible, demanded
from cuvil_onnx.rewrite.graph import GraphContext

LARGEST = {ir.DataType.FLOAT16: 65504.0, ir.DataType.BFLOAT16: 2.0**127 * (2 - 2.0**-7)}
"""The largest finite numbers. The lowest float32, with which masks hide, is out of the range of bf16 as well."""

FP16_TINY = 2.0**-25
"""Half of the smallest fp16 number: anything below rounds to 0."""

SMALL_CONSTANT = 64
"""Constants up to this size are parameters (epsilons) whose underflow matters; in larger ones tiny weights do not."""

FLOAT = ir.DataType.FLOAT


@dataclasses.dataclass
class Plan:
    """Decisions: the nodes that change with the places that do, and the values that must be clipped on their way."""

    half: dict[ir.Node, Places]
    saturating: set[ir.Value]

    def results(self) -> set[ir.Value]:
        """The values that are computed in 16 bits."""
        return {node.outputs[i] for node, places in self.half.items() for i in places.outputs}


def plan_precision(ctx: GraphContext, target: ir.DataType, keep: Collection[str] = ()) -> Plan:
    """Decides for every node of the main graph; those that compute a value named in ``keep`` stay in float32."""
    return _Planner(ctx, target, frozenset(keep)).plan()


class _Planner:
    def __init__(self, ctx: GraphContext, target: ir.DataType, keep: frozenset[str]) -> None:
        self._ctx = ctx
        self._target = target
        self._graph = ctx.model.graph
        self._keep = keep
        self._overflow: dict[ir.Value, bool] = {}

    def plan(self) -> Plan:
        ctx = self._ctx
        plan = Plan({}, set())
        kept: set[ir.Node] = set()  # nodes with float32 results on purpose, which cheap readers follow
        exact = demanded(list(self._graph), ctx)
        for node in self._graph:
            floats = [v for v in node.inputs if v is not None and ctx.dtype(v) == FLOAT]
            places = convertible(node, self._target, ctx)
            if places is not None and _is_masked(node) and node.inputs[3] in plan.saturating:
                # Clipped to fp16's range a mask no longer hides every key of a row alike, as the lowest float32 does.
                places = Places(tuple(i for i in places.inputs if i != 3), places.outputs)
            flows = [v for v in floats if not ctx.is_constant(v)]
            stays = places is None or any(v.name in self._keep for v in node.outputs)
            stays = stays or self._follows(node, flows, kept) or self._stays_exact(node, flows, plan, exact)
            unfit = places is not None and any(self._unfit(node.inputs[i]) for i in places.inputs)
            if places is not None and not stays and not unfit:
                plan.half[node] = places
                continue
            if _is_float_result(node, ctx):
                kept.add(node)
            overflows = any(self._overflows(v) for v in floats)
            if overflows or (node.op_type in LIGHT and plan.saturating.intersection(flows)):
                plan.saturating.update(node.outputs)
        return plan

    def _follows(self, node: ir.Node, flows: list[ir.Value], kept: set[ir.Node]) -> bool:
        """Whether a cheap node stays with its float32 operands."""
        if node.domain or node.op_type not in LIGHT or not flows:
            return False
        if node.op_type == "Div" and node.inputs[1] is not None and node.inputs[1].producer() in kept:
            return True
        return all(v.producer() in kept for v in flows)

    def _stays_exact(self, node: ir.Node, flows: list[ir.Value], plan: Plan, exact: set[ir.Node]) -> bool:
        """Whether the node would be the first to lose bits that a reader needs, or the only one to be converted."""
        if node.domain:
            return False
        rounded = [v.producer() in plan.half for v in flows]
        if node.op_type in COMPARISONS:
            return not all(rounded)
        if node in exact and (node.op_type in LIGHT or node.op_type in SOURCES_OF_LOGS or not any(rounded)):
            return True
        alone = all(not self._ctx.use_count(v) for v in node.outputs)  # only graph outputs, which are float32
        return node.op_type in LIGHT and alone and not any(rounded)

    def _unfit(self, value: ir.Value | None) -> bool:
        """Whether a constant loses its meaning in 16 bits: too large, or a small parameter that becomes 0."""
        if self._overflows(value):
            return True
        if self._target != ir.DataType.FLOAT16 or value is None:
            return False
        array = self._ctx.constant(value, SMALL_CONSTANT)
        return array is not None and bool(np.any((array != 0) & (np.abs(array) < FP16_TINY)))

    def _overflows(self, value: ir.Value | None) -> bool:
        if value is None or not self._ctx.is_constant(value):
            return False
        if value not in self._overflow:
            tensor = self._ctx.tensor(value)
            assert tensor is not None
            self._overflow[value] = _exceeds(tensor.numpy(), LARGEST[self._target])
            if isinstance(tensor, ir.ExternalTensor):
                tensor.release()  # or the whole file of a large model stays mapped
        return self._overflow[value]


def _is_masked(node: ir.Node) -> bool:
    """Whether a node is fused attention, whose mask may stay in float32."""
    return (node.domain, node.op_type) == ("cuvil", "Attention") and len(node.inputs) > 3


def _exceeds(array: npt.NDArray[Any], largest: float) -> bool:
    """Whether a finite element is beyond `largest`; infinities stay what they are."""
    if array.size == 0 or array.dtype != np.float32:
        return False
    low, high = array.min(), array.max()
    if np.isfinite(low) and np.isfinite(high):
        return bool(low < -largest or high > largest)
    finite = array[np.isfinite(array)]
    return bool(finite.size and np.abs(finite).max() > largest)


def _is_float_result(node: ir.Node, ctx: GraphContext) -> bool:
    return any(ctx.dtype(v) == FLOAT for v in node.outputs)
