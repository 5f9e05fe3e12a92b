"""Computes channels in the order in which they are read, instead of reordering them in every run.

Before: Gather along the last axis by a constant permutation (what the act-order of GPTQ needs) of a projection with
        constant weights, of its activation, or of cuvil::GatedUnit over one.
After:  the same with the columns of the weight, and the bias, reordered.
Exactness: exact.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from cuvil_onnx.rewrite.graph import GraphContext
from cuvil_onnx.rewrite.rule import Exactness, Match, Phase, Refusal, Replacement, Rule
from cuvil_onnx.rules._common import make
from cuvil_onnx.rules._projection import projection, reorder

MAX_CHANNELS = 1 << 20
_ACTIVATIONS = (("", "Relu"), ("", "Gelu"), ("", "Tanh"), ("", "Sigmoid"), ("", "Swish"), ("cuvil", "Gelu"))
"""Operators that treat every element alike; both kinds have one input."""


class OrderedChannels(Rule):
    """See the module's text."""

    name = "ordered_channels"
    phase = Phase.STRUCTURAL
    exactness = Exactness.EXACT
    roots = (("", "Gather"),)

    def match(self, node: ir.Node, ctx: GraphContext) -> Match | Refusal | None:
        x, indices = node.inputs
        rank = ctx.rank(x)
        order = ctx.constant(indices, max_elements=MAX_CHANNELS)
        if order is None or order.ndim != 1 or rank is None or rank < 2:
            return None
        if ctx.attr(node, "axis", 0) not in (-1, rank - 1) or not np.array_equal(np.sort(order), np.arange(order.size)):
            return None
        between = ctx.producer(x)
        if between is None or between.outputs[0] is not x:
            return None
        gated = (between.domain, between.op_type) == ("cuvil", "GatedUnit")
        if not gated and (between.domain, between.op_type) not in _ACTIVATIONS:
            between = None
        source = projection(x if between is None else between.inputs[0], ctx)
        if source is None:
            return None
        shape = ctx.shape(x)
        if shape is None or shape[-1] != order.size:
            return None  # a part of the channels, or more than there are
        nodes = [*source.nodes, *([] if between is None else [between])]
        if any(ctx.single_user(n.outputs[0]) is None for n in nodes):
            return Refusal("the channels are also read in their own order", x)
        columns = np.concatenate([order, order + order.size]) if gated else order
        attrs = {"source": source, "between": between, "columns": columns.astype(np.int64)}
        return Match(node, (*nodes, node), node.outputs, attrs=attrs)

    def rewrite(self, match: Match, ctx: GraphContext) -> Replacement | Refusal:
        columns: npt.NDArray[Any] = match.attrs["columns"]
        between: ir.Node | None = match.attrs["between"]
        nodes = reorder(match.attrs["source"], columns, "ordered", ctx)
        if between is None:
            return Replacement(nodes, nodes[-1].outputs)
        result = nodes[-1].outputs[0]
        attrs = {name: attr.value for name, attr in between.attributes.items()}
        if not between.domain:
            nodes.append(ctx.node(between.op_type, [result], attrs, like=match.outputs[0]))
            return Replacement(nodes, nodes[-1].outputs)
        dtype = ctx.dtype(result)
        assert dtype is not None
        made, function = make(between.op_type, [result], attrs, ctx, dtype, match.outputs)
        return Replacement((*nodes, made), made.outputs, (function,))
