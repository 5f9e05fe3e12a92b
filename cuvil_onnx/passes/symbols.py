"""Gives equal sizes equal names (exact: shapes of intermediate values only).

ONNX's inference gives up on the sum of two tensors of symbolic shape and on shape arithmetic, and hands out a new
symbol each time; no rule can then prove that a residual has the shape of what it is added to. One sweep in topological
order evaluates shapes and the integer vectors that shapes are made of, symbolically. Results are what the sizes are in
every run that ends without an error.
"""

from __future__ import annotations

import onnx_ir as ir

from cuvil_onnx.passes._dims import Dims, Names
from cuvil_onnx.passes._shape_rules import propagate
from cuvil_onnx.passes._sizes import Sizes
from cuvil_onnx.rewrite.graph import GraphContext
from cuvil_onnx.rewrite.trace import Trace


def name_dimensions(ctx: GraphContext, trace: Trace) -> int:
    """Renames the symbolic dimensions of computed values; returns how many shapes changed.

    Shapes of graph inputs stay as declared; `Signature` restores those of the outputs in the end.
    """
    sizes = analyse(ctx)
    changed = 0
    for graph in ctx.graphs:
        for node in graph:
            for value in node.outputs:
                dims = sizes.dims.get(value)
                if dims is None or ctx.shape(value) == dims:
                    continue
                value.shape = ir.Shape(dims)
                changed += 1
    return changed


def analyse(ctx: GraphContext) -> Sizes:
    """The shapes of all values and the elements of shape vectors, in numbers and symbols."""
    sizes = Sizes(ctx, Names())
    for graph in ctx.graphs:  # outer before inner: what a subgraph captures is known by then
        for value in (*graph.inputs, *graph.initializers.values()):
            _declare(value, sizes)
        for node in graph:
            found = propagate(node, sizes)
            for index, value in enumerate(node.outputs):
                _merge(value, found[index] if index < len(found) else None, sizes)
    return sizes


def _declare(value: ir.Value, sizes: Sizes) -> None:
    shape = sizes.ctx.shape(value)
    if shape is not None:
        sizes.dims[value] = tuple(
            d if isinstance(d, int) and d >= 0 else sizes.symbol(d, value, axis) for axis, d in enumerate(shape)
        )


def _merge(value: ir.Value, dims: Dims | None, sizes: Sizes) -> None:
    """Combines what was found here with what inference found: a number beats a symbol."""
    inferred = sizes.ctx.shape(value)
    if dims is None or (inferred is not None and len(inferred) != len(dims)):
        _declare(value, sizes)
        return
    if inferred is None:
        sizes.dims[value] = dims
        return
    merged = tuple(old if isinstance(old, int) and old >= 0 else new for old, new in zip(inferred, dims, strict=True))
    if any(isinstance(d, int) and d != m for d, m in zip(dims, merged, strict=True)):
        _declare(value, sizes)  # inference contradicts: the declared shape stays the truth
        return
    sizes.dims[value] = merged
