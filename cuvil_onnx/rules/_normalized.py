"""Which products and sums of a region were a BatchNormalization, and can be one again in its function body."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from cuvil_onnx.rewrite.graph import GraphContext
from cuvil_onnx.rewrite.pattern import operands
from cuvil_onnx.rewrite.provenance import RULE_KEY
from cuvil_onnx.rules._region import Region

LOWEST_OPSET = 9  # before it, nothing fills a tensor of any shape

_TYPES = (ir.DataType.FLOAT, ir.DataType.DOUBLE)  # ONNX Runtime's CPU provider normalizes no others

Pair = tuple[ir.Node, ir.Value, ir.Value, ir.Value]


def normalizations(region: Region, ctx: GraphContext) -> Mapping[ir.Node, Pair]:
    """Each Add of a pair that the rule ``batch_norm`` made: the Mul, x, scale and shift.

    Other pairs stay: a BatchNormalization may round once where they round twice, which that rule declares and the rule
    ``pointwise`` does not.
    """
    if ctx.opset() < LOWEST_OPSET:
        return {}
    found = {}
    for node in region.nodes:
        pair = _pair(node, region, ctx) if node.op_type == "Add" and _restored(node) else None
        if pair is not None:
            found[node] = pair
    return found


def _restored(node: ir.Node) -> bool:
    return node.metadata_props.get(RULE_KEY) == "batch_norm"


def _pair(node: ir.Node, region: Region, ctx: GraphContext) -> Pair | None:
    for product, shift in operands(node):
        mul = ctx.producer(product, "Mul")
        if mul is None or mul not in region.members or not _restored(mul) or ctx.single_user(product) is not node:
            continue
        for x, scale in operands(mul):
            shape = ctx.shape(x)
            if shape is None or len(shape) < 3 or ctx.dtype(x) not in _TYPES:
                continue
            if all(_per_channel(v, shape[1], len(shape), ctx) for v in (scale, shift)):
                return mul, x, scale, shift
    return None


def _per_channel(value: ir.Value, channels: object, rank: int, ctx: GraphContext) -> bool:
    """Whether a constant is [C, 1, ...] of one dimension less than what it is applied to, and not a lone number."""
    shape = ctx.shape(value)
    return ctx.is_constant(value) and shape == (channels, *[1] * (rank - 2)) and channels != 1
