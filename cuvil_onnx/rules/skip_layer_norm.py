"""Takes the residual sum into the normalization after it.

Before: S = a + b (or a + b + bias); Y = LayerNormalization(S, scale, bias), RMSNormalization or cuvil::LayerNorm.
After:  Y, S = cuvil::LayerNorm(a, scale, bias, b); S only where something else reads it.
Exactness: rounding; the norm's sums are in another order, and for 16-bit tensors it reads the sum before it is rounded.

One operand must have the shape of the sum, in every run, and the other that shape too or, after leading ones, its last
dimensions: the kernel walks over the first and repeats the second.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from cuvil_onnx.rewrite.graph import Dim, GraphContext
from cuvil_onnx.rewrite.pattern import operands
from cuvil_onnx.rewrite.rule import Exactness, Match, Phase, Refusal, Replacement, Rule
from cuvil_onnx.rules._common import FLOATS, dims, equal_in_a_sum, flat, make, vector

_PRODUCTS = ("MatMul", "Gemm", "Conv")


class SkipLayerNorm(Rule):
    """See the module's text."""

    name = "skip_layer_norm"
    phase = Phase.STRUCTURAL
    exactness = Exactness.ROUNDING
    roots = (("", "LayerNormalization"), ("", "RMSNormalization"), ("cuvil", "LayerNorm"))

    def match(self, node: ir.Node, ctx: GraphContext) -> Match | Refusal | None:
        add = ctx.producer(node.inputs[0], "Add")
        if add is None or any(i is not None for i in node.inputs[3:]):
            return None
        total = add.outputs[0]
        problem = self._unusual(node, ctx)
        if problem is not None:
            return problem
        full = dims(total, ctx)
        if full is None or not vector(node.inputs[1] or total, full[-1], ctx, rank=1):
            return Refusal("the scale is not known to have the size of the last axis", node.inputs[1])
        bias = node.inputs[2] if len(node.inputs) > 2 else None
        if bias is not None and not vector(bias, full[-1], ctx, rank=1):
            return Refusal("the bias is not known to have the size of the last axis", bias)
        for x, skip in operands(add):
            if ctx.is_constant(x) or dims(x, ctx) != full or None in full or not _repeats(skip, full, ctx):
                continue
            if vector(skip, full[-1], ctx, rank=1) and ctx.is_constant(skip):
                maker = ctx.producer(x)
                if maker is not None and maker.op_type in _PRODUCTS:
                    return None  # a bias costs nothing in the epilogue of the product
                return self._done(node, add, x, None, skip, ctx)
            return self._with_bias(node, add, x, skip, ctx)
        return Refusal("neither operand of the sum is known to have its shape", total)

    def rewrite(self, match: Match, ctx: GraphContext) -> Replacement | Refusal:
        node, values = match.root, match.values
        x = values["x"]
        dtype = ctx.dtype(x)
        assert dtype is not None
        epsilon = float(ctx.attr(node, "epsilon", 1e-5))
        rms = int(ctx.attr(node, "rms", node.op_type == "RMSNormalization"))
        bias = node.inputs[2] if len(node.inputs) > 2 else None
        skip_bias = values["skip_bias"]
        if skip_bias is not None:
            skip_bias = flat(skip_bias, ctx, "skip_bias")
        inputs = [x, node.inputs[1], bias, values["skip"], skip_bias]
        attrs = {"epsilon": epsilon, "rms": rms}
        fused, function = make("LayerNorm", inputs, attrs, ctx, dtype, match.outputs)
        return Replacement((fused,), fused.outputs, (function,))

    def _unusual(self, node: ir.Node, ctx: GraphContext) -> Refusal | None:
        """What the fused op cannot say."""
        if ctx.dtype(node.inputs[0]) not in FLOATS:
            return Refusal("the element type is not known", node.inputs[0])
        if any(ctx.dtype(v) != ctx.dtype(node.inputs[0]) for v in node.inputs[1:] if v is not None):
            return Refusal("the scale has another element type than the input", node)
        if len(node.outputs) > 1 and any(ctx.use_count(v) or v.is_graph_output() for v in node.outputs[1:]):
            return Refusal("the mean or the deviation is used", node)
        rank = ctx.rank(node.inputs[0])
        if node.domain == "" and ctx.attr(node, "axis", -1) not in (-1, None if rank is None else rank - 1):
            return Refusal(f"the norm is over axes from {ctx.attr(node, 'axis')}, only the last is supported", node)
        if node.domain == "" and ctx.attr(node, "stash_type", 1) != 1:
            return Refusal("the statistics are not float32 (stash_type)", node)
        return None

    def _with_bias(
        self, node: ir.Node, add: ir.Node, x: ir.Value, skip: ir.Value, ctx: GraphContext
    ) -> Match | Refusal | None:
        """Looks for a bias that was added to one operand just before, unless a product can take it."""
        full = dims(add.outputs[0], ctx)
        assert full is not None
        for operand, other in ((x, skip), (skip, x)):
            inner = ctx.producer(operand, "Add")
            if inner is None or ctx.single_user(operand) is not add:
                continue
            for base, bias in operands(inner):
                maker = ctx.producer(base)
                if not ctx.is_constant(bias) or not vector(bias, full[-1], ctx, rank=len(full)):
                    continue
                if dims(base, ctx) != full or (maker is not None and maker.op_type in _PRODUCTS):
                    continue
                return self._done(node, add, base, other, bias, ctx, inner)
        return self._done(node, add, x, skip, None, ctx)

    def _done(
        self,
        node: ir.Node,
        add: ir.Node,
        x: ir.Value,
        skip: ir.Value | None,
        skip_bias: ir.Value | None,
        ctx: GraphContext,
        *inner: ir.Node,
    ) -> Match | Refusal:
        total = add.outputs[0]
        outputs = [node.outputs[0]]
        if ctx.use_count(total) > 1 or total.is_graph_output():
            outputs.append(total)
        values = {"x": x, "skip": skip, "skip_bias": skip_bias}
        return Match(node, (node, add, *inner), outputs=outputs, values=values)


def _repeats(skip: ir.Value, full: Sequence[Dim], ctx: GraphContext) -> bool:
    """Whether `skip` is `full`, or the end of it behind leading ones, in every run."""
    shape = list(dims(skip, ctx) or ())
    while len(shape) > 1 and shape[0] == 1:
        shape.pop(0)
    if not shape or len(shape) > len(full):
        return False
    return all(equal_in_a_sum(d, f) for d, f in zip(shape, full[len(full) - len(shape) :], strict=True))
