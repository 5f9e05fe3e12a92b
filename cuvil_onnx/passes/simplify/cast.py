"""Casts that change nothing: to the same type, and pairs whose first member loses nothing."""

from __future__ import annotations

import onnx_ir as ir

from cuvil_onnx.passes.simplify._base import SimplifyRule, drop
from cuvil_onnx.rewrite.graph import GraphContext
from cuvil_onnx.rewrite.rule import Match, Refusal, Replacement

_T = ir.DataType
_FLOATS = (_T.FLOAT16, _T.BFLOAT16, _T.FLOAT, _T.DOUBLE)
_LOSSLESS: dict[ir.DataType, frozenset[ir.DataType]] = {
    _T.FLOAT16: frozenset({_T.FLOAT, _T.DOUBLE}),
    _T.BFLOAT16: frozenset({_T.FLOAT, _T.DOUBLE}),
    _T.FLOAT: frozenset({_T.DOUBLE}),
    _T.INT8: frozenset({_T.INT16, _T.INT32, _T.INT64, _T.FLOAT16, _T.FLOAT, _T.DOUBLE}),
    _T.UINT8: frozenset(
        {_T.INT16, _T.UINT16, _T.INT32, _T.UINT32, _T.INT64, _T.UINT64, _T.FLOAT16, _T.FLOAT, _T.DOUBLE}
    ),
    _T.INT16: frozenset({_T.INT32, _T.INT64, _T.FLOAT, _T.DOUBLE}),
    _T.UINT16: frozenset({_T.INT32, _T.UINT32, _T.INT64, _T.UINT64, _T.FLOAT, _T.DOUBLE}),
    _T.INT32: frozenset({_T.INT64, _T.DOUBLE}),
    _T.UINT32: frozenset({_T.INT64, _T.UINT64, _T.DOUBLE}),
    _T.BOOL: frozenset({_T.INT8, _T.UINT8, _T.INT16, _T.UINT16, _T.INT32, _T.UINT32, _T.INT64, _T.UINT64, *_FLOATS}),
}
"""Every value of the key type survives a round trip through each of the listed types."""


class Cast(SimplifyRule):
    """Exact.

    Before: Cast(x, to=type of x); Cast(Cast(x, to=wider), to=type of x); Cast(Cast(x, to=wider float), to=float).
    After:  x; x; Cast(x, to=float).

    A narrowing inner cast (double -> float -> double, int32 -> uint8 -> int32, float -> int -> bool) changes values
    and is kept.
    """

    name = "cast"
    roots = (("", "Cast"), ("", "CastLike"))

    def match(self, node: ir.Node, ctx: GraphContext) -> Match | Refusal | None:
        source, target = ctx.dtype(node.inputs[0]), _target(node, ctx)
        if source is None or target is None:
            return None
        if source == target:
            return drop(node, node.inputs[0])
        inner = ctx.producer(node.inputs[0], "Cast")
        if inner is None or node.op_type != "Cast":
            return None
        first = ctx.dtype(inner.inputs[0])
        if first is None or source not in _LOSSLESS.get(first, ()):
            return None
        if first == target:
            return drop(node, inner.inputs[0])
        if first in _FLOATS and target in _FLOATS:
            return Match(node, (node,), values={"x": inner.inputs[0]}, attrs={"to": int(target)})
        return None

    def rewrite(self, match: Match, ctx: GraphContext) -> Replacement | Refusal:
        if "to" not in match.attrs:
            return super().rewrite(match, ctx)
        cast = ctx.node("Cast", [match.values["x"]], {"to": match.attrs["to"]}, like=match.root.outputs[0])
        return Replacement((cast,), cast.outputs)


def _target(node: ir.Node, ctx: GraphContext) -> ir.DataType | None:
    if node.op_type == "CastLike":
        return ctx.dtype(node.inputs[1]) if len(node.inputs) > 1 else None
    to = ctx.attr(node, "to")
    return None if not isinstance(to, int) else ir.DataType(to)
