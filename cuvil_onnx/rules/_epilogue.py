"""Follows what is done to the result of a product or convolution: bias, residual, activation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from cuvil_onnx.rewrite.graph import GraphContext
from cuvil_onnx.rewrite.pattern import operands
from cuvil_onnx.rewrite.rule import Refusal
from cuvil_onnx.rules import _activation
from cuvil_onnx.rules._common import fits, same_shape


@dataclass
class Epilogue:
    """What follows a node, as far as one fused op can take it.

    Attributes:
        output: the last value taken in.
        nodes: the nodes taken in.
        biases: values added along the channels; constants, when there are several.
        nearly: why an addition was not taken in.
    """

    output: ir.Value
    nodes: list[ir.Node] = field(default_factory=list)
    biases: list[ir.Value] = field(default_factory=list)
    residual: ir.Value | None = None
    activation: str = ""
    params: tuple[float, ...] = ()
    nearly: Refusal | None = None


def follow(
    result: ir.Value,
    is_bias: Callable[[ir.Value], bool],
    ctx: GraphContext,
    bias: ir.Value | None = None,
    residual: ir.Value | None = None,
) -> Epilogue:
    """Takes in additions of a bias and of one residual, in any order, and then an activation.

    Args:
        result: the output of the product or convolution.
        is_bias: whether a value varies along the channels only and has the right size.
        bias: the bias that the node has already.
        residual: the residual that the node has already.
    """
    epilogue = Epilogue(result, biases=[] if bias is None else [bias], residual=residual)
    while True:
        add = ctx.single_user(epilogue.output)
        if add is None or not _is_addition(add) or not _take(epilogue, add, is_bias, ctx):
            break
        epilogue.nodes.append(add)
        epilogue.output = add.outputs[0]
    activation = _activation.find(epilogue.output, ctx)
    if activation is not None:
        epilogue.activation, epilogue.params = activation.name, activation.params
        epilogue.nodes += activation.nodes
        epilogue.output = activation.output
    return epilogue


def _is_addition(node: ir.Node) -> bool:
    """Add, or Caffe2's way to write it."""
    return node.domain == "" and node.op_type in ("Add", "Sum") and len(node.inputs) == 2


def merged_bias(biases: list[ir.Value], ctx: GraphContext, hint: str) -> ir.Value | None:
    """One bias of rank 1: None, the value itself, or a new constant."""
    if not biases:
        return None
    if len(biases) == 1 and ctx.rank(biases[0]) == 1:
        return biases[0]
    arrays = [ctx.constant(b, max_elements=None) for b in biases]
    flat = [a.reshape(-1) for a in arrays if a is not None]
    assert len(flat) == len(biases)
    dtype = ctx.dtype(biases[0])
    # Summed in float64: the constants of 16-bit models are rounded once.
    total = sum((a.astype(np.float64) for a in flat[1:]), flat[0].astype(np.float64))
    return ctx.initializer(ir.Tensor(np.asarray(total).astype(flat[0].dtype), dtype=dtype), hint)


def _take(epilogue: Epilogue, add: ir.Node, is_bias: Callable[[ir.Value], bool], ctx: GraphContext) -> bool:
    for value, other in operands(add):
        if value is not epilogue.output:
            continue
        if is_bias(other):
            constant = ctx.is_constant(other) and all(ctx.is_constant(b) for b in epilogue.biases)
            if constant or (not epilogue.biases and ctx.rank(other) == 1):
                epilogue.biases.append(other)
                return True
        if epilogue.residual is None and not ctx.is_constant(other):
            if same_shape(value, other, ctx) and ctx.dtype(value) == ctx.dtype(other):
                epilogue.residual = other
                return True
            shape = ctx.shape(value)
            if shape is None or not fits(other, shape, ctx):
                epilogue.nearly = Refusal("the addend is not known to have the shape of the result", other)
        return False
    return False
