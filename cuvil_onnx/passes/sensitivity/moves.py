"""Units that only move numbers or choose among them: they round nothing that was rounded before."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from cuvil_onnx.passes.precision_plan import Plan

_SINGLE = frozenset(
    {
        *("Abs", "DepthToSpace", "Dropout", "Expand", "Flatten", "Gather", "GatherElements", "GatherND", "Identity"),
        *("MaxPool", "Neg", "Pad", "Relu", "Reshape", "Slice", "SpaceToDepth", "Split", "Squeeze", "Tile"),
        *("Transpose", "Unsqueeze"),
    }
)
"""One tensor in; for the rest of the graph it is as if the rounding happened behind."""

_JOINING = frozenset({"Concat"})
"""Several tensors in, each rounded on its way."""


class Moves:
    """Which units move what, in a plan."""

    def __init__(self, plan: Plan, units: Sequence[tuple[ir.Node, ...]], unit_of: dict[ir.Node, int]) -> None:
        self._plan = plan
        self._units = units
        self._unit_of = unit_of
        self._source: dict[int, ir.Value] = {}
        self._joining: set[int] = set()
        self._before: dict[int, frozenset[int]] = {}
        self._behind: dict[int, frozenset[int]] = {}
        for index, nodes in enumerate(units):  # in the order in which they run
            self._sort(index, nodes)

    def _sort(self, index: int, nodes: tuple[ir.Node, ...]) -> None:
        (node, *others) = nodes
        if others or node.domain:
            return
        computed = [v for i in self._plan.half[node].inputs if (v := node.inputs[i]) is not None and not _given(v)]
        if any(v in self._plan.saturating for v in computed):
            return  # clipped on its way, which is more than a rounding
        if node.op_type in _JOINING:
            self._joining.add(index)
        elif node.op_type in _SINGLE and len(computed) == 1:
            producer = self._producer(computed[0])
            if producer is not None and producer in self._joining:
                self._joining.add(index)  # hands on what was rounded on its way into a Concat
            else:
                self._source[index] = computed[0]
                known = self._before.get(producer, frozenset()) if producer is not None else frozenset()
                self._before[index] = known if producer is None else known | {producer}

    def _producer(self, value: ir.Value) -> int | None:
        node = value.producer()
        return None if node is None else self._unit_of.get(node)

    def passes(self, unit: int) -> bool:
        """Whether numbers that enter are rounded behind the unit, for each of its readers."""
        return unit in self._source

    def joins(self, unit: int) -> bool:
        """Whether what leaves was rounded when it entered this or an earlier unit."""
        return unit in self._joining

    def before(self, unit: int) -> frozenset[int]:
        """The units that the numbers of a unit that passes them on went through since they were computed."""
        return self._before.get(unit, frozenset())

    def behind(self, unit: int) -> frozenset[int]:
        """All that read, moved or not, what a joining unit puts out."""
        if unit not in self._joining:
            return frozenset()
        if unit not in self._behind:
            found: set[int] = set()
            pending = [unit]
            while pending:
                for value in (v for node in self._units[pending.pop()] for v in node.outputs):
                    for user, place in value.uses():
                        places = self._plan.half.get(user)
                        reader = self._unit_of.get(user)
                        if places is None or reader is None or place not in places.inputs or reader in found:
                            continue
                        found.add(reader)
                        if reader in self._joining or reader in self._source:
                            pending.append(reader)
            self._behind[unit] = frozenset(found)
        return self._behind[unit]


def _given(value: ir.Value) -> bool:
    return value.const_value is not None
