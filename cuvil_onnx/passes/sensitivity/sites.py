"""Where a 16-bit execution rounds, and which nodes must stay in float32 to spare each of these roundings."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

import onnx_ir as ir

from cuvil_onnx.passes.precision import narrow
from cuvil_onnx.passes.precision_plan import FLOAT, SMALL_CONSTANT, Plan
from cuvil_onnx.passes.sensitivity.moves import Moves
from cuvil_onnx.rewrite.graph import GraphContext


@dataclasses.dataclass(frozen=True)
class Site:
    """One rounding: of all weights of a unit, or of a value on its way to one reader.

    Attributes:
        needs: the units that must all stay in float32 to spare it.
        weights: the constants that are rounded; empty for a value.
        value: the computed value or graph input that is rounded.
        producer: the unit that computes it; None for inputs and what is float32 in any case.
        reader: the unit that reads it; None for everything that stays in float32 in any case.
    """

    needs: frozenset[int]
    weights: tuple[ir.Value, ...] = ()
    value: ir.Value | None = None
    producer: int | None = None
    reader: int | None = None


@dataclasses.dataclass(frozen=True)
class Sites:
    """All roundings of a plan.

    Attributes:
        units: nodes that become one kernel and stay or change together, in the order in which they run.
        unit_of: the unit of each node of the plan.
        all: every site, in the order in which they happen.
    """

    units: tuple[tuple[ir.Node, ...], ...]
    unit_of: dict[ir.Node, int]
    all: tuple[Site, ...]

    def active(self, kept: Collection[int]) -> list[int]:
        """The sites that still round while some units stay in float32."""
        return [i for i, site in enumerate(self.all) if not site.needs.issubset(kept)]


def find_sites(ctx: GraphContext, plan: Plan, target: ir.DataType, swallowed: Collection[str]) -> Sites:
    """The roundings of ``plan``; values named in ``swallowed`` never leave a fused kernel and are not rounded."""
    units, unit_of = _units(plan, swallowed)
    results = plan.results()
    moves = Moves(plan, units, unit_of)
    sites: list[Site] = []
    seen: set[ir.Value] = set()
    for index, nodes in enumerate(units):
        read = dict.fromkeys(v for node in nodes for i in plan.half[node].inputs if (v := node.inputs[i]) is not None)
        weights = tuple(v for v in read if ctx.is_constant(v) and _changes(v, target, ctx))
        for value in read:
            if not ctx.is_constant(value) and value not in seen and value not in results:
                sites += _of_value(value, None, plan, unit_of, moves)
                seen.add(value)
        if weights:
            sites.append(Site(frozenset({index}), weights=weights))
        for value in (v for node in nodes for v in node.outputs):
            if value in results and value.name not in swallowed:
                sites += _of_value(value, index, plan, unit_of, moves)
    return Sites(units, unit_of, tuple(sites))


def _units(plan: Plan, swallowed: Collection[str]) -> tuple[tuple[tuple[ir.Node, ...], ...], dict[ir.Node, int]]:
    """Groups nodes with the readers of what they compute within a kernel (union-find)."""
    parent = {node: node for node in plan.half}

    def root(node: ir.Node) -> ir.Node:
        while parent[node] is not node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    for node in plan.half:
        for value in node.outputs:
            if value.name in swallowed:
                for user in value.consumers():
                    if user in parent:
                        parent[root(user)] = root(node)
    groups: dict[ir.Node, list[ir.Node]] = {}
    for node in plan.half:
        groups.setdefault(root(node), []).append(node)
    units = tuple(tuple(nodes) for nodes in groups.values())
    return units, {node: index for index, nodes in enumerate(units) for node in nodes}


def _of_value(
    value: ir.Value, producer: int | None, plan: Plan, unit_of: dict[ir.Node, int], moves: Moves
) -> list[Site]:
    """A value is rounded for a reader unless the reader and the producer are both in float32.

    What only moves numbers rounds none that were rounded before: such roundings count once, where the numbers enter a
    Concat or reach the first reader that computes, and to spare one the moving units between stay in float32 too.
    """
    if producer is not None and moves.joins(producer):
        return []
    readers: dict[int | None, None] = {}
    if producer is not None and value.is_graph_output():
        readers[None] = None
    for user, place in value.uses():
        places = plan.half.get(user)
        if places is not None and place in places.inputs:
            readers[unit_of[user]] = None
        elif producer is not None:
            readers[None] = None
    before = frozenset(() if producer is None else (producer, *moves.before(producer)))
    return [
        Site(
            before if reader is None else before | {reader, *moves.behind(reader)},
            value=value,
            producer=producer,
            reader=reader,
        )
        for reader in readers
        if reader is None or not moves.passes(reader)
    ]


def _changes(value: ir.Value, target: ir.DataType, ctx: GraphContext) -> bool:
    """Whether rounding a constant to 16 bits gives other numbers; large ones are taken for granted."""
    array = ctx.constant(value, SMALL_CONSTANT)
    return array is None or bool((narrow(array, target).astype(array.dtype) != array).any())


def float_values(ctx: GraphContext, plan: Plan) -> list[ir.Value]:
    """The float32 values, constants excepted, that nodes of the plan read or compute."""
    found: dict[ir.Value, None] = {}
    for node in plan.half:
        for value in (*node.inputs, *node.outputs):
            if value is not None and ctx.dtype(value) == FLOAT and not ctx.is_constant(value):
                found[value] = None
    return list(found)
