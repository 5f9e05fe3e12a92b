"""Recognises selections by GatherND that are something simpler.

Before: GatherND(x, Unsqueeze(i, -1)), the rows that one index each selects; or GatherND(x [M, N], (a, b)) where a
        counts the rows and b the columns along two axes of the result: torch's mask[batch, position].
After:  Gather(x, i); or x itself, its first rows and columns, with axes of size 1 between them. A Cast of x is done
        behind the selection.
Exactness: exact.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from cuvil_onnx.passes.simplify.unsqueeze import axes_of
from cuvil_onnx.rewrite.graph import GraphContext
from cuvil_onnx.rewrite.rule import Exactness, Match, Phase, Refusal, Replacement, Rule
from cuvil_onnx.rules._arange import Arange, arange, selected
from cuvil_onnx.rules._common import dims

LOWEST_OPSET = 13  # axes as inputs


class GatherNd(Rule):
    """See the module's text."""

    name = "gather_nd"
    phase = Phase.STRUCTURAL
    exactness = Exactness.EXACT
    roots = (("", "GatherND"),)

    def match(self, node: ir.Node, ctx: GraphContext) -> Match | Refusal | None:
        if ctx.attr(node, "batch_dims", 0) or ctx.opset() < LOWEST_OPSET:
            return None
        x, index = node.inputs[:2]
        last = ctx.producer(index, "Unsqueeze")
        rank = ctx.rank(index)
        if last is not None and rank is not None and axes_of(last, ctx) == [rank - 1]:
            return Match(node, (node,), values={"x": x, "index": last.inputs[0]})
        join = ctx.producer(index, "Concat")
        if join is None or rank is None or len(join.inputs) != 2 or ctx.attr(join, "axis") not in (-1, rank - 1):
            return None
        rows, columns = (_counted(v, ctx) for v in join.inputs)
        if rows is None or columns is None or rows.axis >= columns.axis or ctx.rank(x) != 2:
            return None
        shape = dims(join.inputs[0], ctx)
        for count, axis in ((rows, rows.axis), (columns, columns.axis)):
            size = (dims(count.source, ctx) or (None,) * rank)[axis]
            if shape is None or size is None or shape[axis] != size:
                return Refusal("the shape of the index is not known", join)
        assert shape is not None
        if any(size != 1 for axis, size in enumerate(shape) if axis not in (rows.axis, columns.axis)):
            return Refusal("the index repeats what it counts", join)
        cast = ctx.producer(x, "Cast")
        values = {"x": x if cast is None else cast.inputs[0]}
        attrs = {"counts": (rows, columns), "rank": rank - 1, "to": None if cast is None else ctx.attr(cast, "to")}
        return Match(node, (node,), values=values, attrs=attrs)

    def rewrite(self, match: Match, ctx: GraphContext) -> Replacement | Refusal:
        x, index, like = match.values["x"], match.values.get("index"), match.root.outputs[0]
        assert x is not None
        if index is not None:
            made = ctx.node("Gather", [x, index], {"axis": 0}, like=like)
            known = (dims(index, ctx), dims(x, ctx))
            if known[0] is not None and known[1] is not None:
                made.outputs[0].shape = ir.Shape([*known[0], *known[1][1:]])
            return Replacement((made,), made.outputs)
        counts: Sequence[Arange] = match.attrs["counts"]
        nodes, value = selected(x, counts, match.attrs["rank"], ctx)
        if match.attrs["to"] is not None:
            nodes.append(ctx.node("Cast", [value], {"to": match.attrs["to"]}, like=like))
            value = nodes[-1].outputs[0]
        return Replacement(nodes, (value,))


def _counted(value: ir.Value | None, ctx: GraphContext) -> Arange | None:
    """One column [.., 1] of an index: numbers that count along an axis, and are repeated along others."""
    node = ctx.producer(value, "Unsqueeze")
    rank = ctx.rank(value)
    if node is None or rank is None or axes_of(node, ctx) != [rank - 1]:
        return None
    source = node.inputs[0]
    expand = ctx.producer(source, "Expand")
    found = arange(source if expand is None else expand.inputs[0], ctx)
    return found if found is not None and found.rank == rank - 1 else None
