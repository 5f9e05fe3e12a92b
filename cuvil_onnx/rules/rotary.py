"""Recognises rotary position embeddings written out.

Before: x [B, N, S, H], transposed from [B, S, N, H], or that itself: x * cos + turned(x) * sin, where turned(x) is
        Concat(-x[H/2:], x[:H/2]) (rotate_half, by Slice or Split) or the pairs of neighbours swapped (Unsqueeze,
        Concat, Reshape); or Concat(a * cos - b * sin, b * cos + a * sin) of the halves or of neighbours (Gather of
        [.., R/2, 2]). Only the first R elements of each head may be rotated: x is then Slice or Split of the heads,
        the rest is joined again by Concat. Cosines and sines may come from anywhere: computed, or gathered from a
        cache.
After:  cuvil::RotaryEmbedding(x [B, S, N * H], cos, sin), split and transposed again for whoever needs that: attention
        takes the merged heads as they are. Cosines and sines stay, computed once for all layers.
Why an op of its own: an element meets another one of its head, which no pointwise region can express. Around the slices
and the concatenation there would be three kernels and a second copy of all heads instead of one pass in place; and the
transpose before and after could not go.
Exactness: rounding; for 16-bit types the products are not rounded before they are added.
"""

from __future__ import annotations

import onnx_ir as ir

from cuvil_onnx.rewrite.graph import GraphContext
from cuvil_onnx.rewrite.rule import Exactness, Match, Phase, Refusal, Replacement, Rule
from cuvil_onnx.rules._common import dims
from cuvil_onnx.rules._heads import removable
from cuvil_onnx.rules._rotary import turn_of
from cuvil_onnx.rules._rotated_heads import factor_rows, heads_of, rotated, whole_heads


class Rotary(Rule):
    """See the module's text."""

    name = "rotary"
    phase = Phase.STRUCTURAL
    exactness = Exactness.ROUNDING
    roots = (("", "Add"), ("", "Concat"), ("", "Reshape"))

    def match(self, node: ir.Node, ctx: GraphContext) -> Match | Refusal | None:
        turn = turn_of(node, ctx)
        if turn is None or ctx.rank(turn.x) != 4:
            return None
        shape = dims(turn.x, ctx)
        dim = None if shape is None else shape[-1]
        if not isinstance(dim, int) or dim % 2:
            return Refusal("the number of rotated elements is not known", turn.x)
        if any((dims(v, ctx) or (None,))[-1] != (dim // 2 if turn.per_pair else dim) for v in (turn.cos, turn.sin)):
            return Refusal("cosines and sines do not have one element for each one that is rotated", turn.cos)
        if ctx.dtype(turn.cos) != ctx.dtype(turn.x) or dims(turn.cos, ctx) != dims(turn.sin, ctx):
            return Refusal("cosines and sines have other types or shapes", turn.cos)
        whole, core, extra = whole_heads(turn, ctx)
        heads = heads_of(whole, turn.cos, ctx)
        if isinstance(heads, Refusal):
            return heads
        nodes = removable(core, [*turn.nodes, *extra, *heads.nodes], ctx)
        values = {"cos": turn.cos, "sin": turn.sin}
        ints = {"rotary_dim": dim, "interleaved": int(turn.interleaved), "per_pair": int(turn.per_pair)}
        return Match(node, nodes, core[-1].outputs, values, {"ints": ints, "heads": heads})

    def rewrite(self, match: Match, ctx: GraphContext) -> Replacement | Refusal:
        before: list[ir.Node] = []
        heads = match.attrs["heads"]
        factors = []
        for name in ("cos", "sin"):
            value = match.values[name]
            assert value is not None
            factors.append(factor_rows(value, heads.axis, before, ctx))
        return rotated(heads, factors[0], factors[1], match.attrs["ints"], before, match.outputs[0], ctx)
