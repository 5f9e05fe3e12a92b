"""Recognises a written-out normalization over the last axis, from its square root outwards."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from cuvil_onnx.rewrite.graph import GraphContext
from cuvil_onnx.rewrite.pattern import operands
from cuvil_onnx.rewrite.rule import Match, Refusal, Replacement
from cuvil_onnx.rules._common import (
    FLOATS,
    HALF,
    dims,
    flat,
    last_axis_only,
    make,
    number_beside,
    scalar_term,
    vector,
)

LAYER_NORMALIZATION_OPSET = 17
RMS_NORMALIZATION_OPSET = 23


@dataclass
class Norm:
    """A normalization under construction: `value` is its result so far.

    Attributes:
        x: what is normalized.
        centred: whether the mean is subtracted.
    """

    x: ir.Value
    centred: bool
    epsilon: float
    value: ir.Value
    nodes: list[ir.Node]
    scale: ir.Value | None = None
    bias: ir.Value | None = None


def find(root: ir.Node, ctx: GraphContext) -> Norm | Refusal | None:
    """Reads y = d / sqrt(mean(d * d) + epsilon), d = x or x - mean(x), and what follows it."""
    exponent = number_beside(root.inputs[1], root.inputs[0], ctx) if root.op_type == "Pow" else 0.5
    if exponent not in (0.5, -0.5):
        return None
    shifted = ctx.producer(root.inputs[0])
    term = None if shifted is None else scalar_term(shifted, ctx)
    reduced = None if term is None else ctx.producer(term[0], "ReduceMean")
    if shifted is None or term is None or reduced is None:
        return None
    square = ctx.producer(reduced.inputs[0])
    d = None if square is None else squared(square, ctx)
    if square is None or d is None:
        return None
    quotient = _quotient(root, d, ctx)
    if quotient is None:
        return None
    problem = last_axis_only(reduced, ctx)
    if problem is not None:
        return Refusal(problem, reduced)
    if term[1] < 0:
        return Refusal(f"epsilon is {term[1]:g}", shifted)
    norm = Norm(d, False, term[1], quotient[-1].outputs[0], [reduced, square, shifted, root, *quotient])
    subtract = ctx.producer(d, "Sub")
    mean = None if subtract is None else ctx.producer(subtract.inputs[1], "ReduceMean")
    if (
        subtract is not None
        and mean is not None
        and mean.inputs[0] is subtract.inputs[0]
        and mean.inputs[0] is not None
    ):
        problem = last_axis_only(mean, ctx)
        if problem is not None:
            return Refusal(problem, mean)
        norm.x, norm.centred = mean.inputs[0], True
        norm.nodes += [mean, subtract]
    if ctx.dtype(norm.x) not in FLOATS:
        return Refusal("the element type of the input is not known", norm.x)
    return _absorb(norm, ctx)


def match(node: ir.Node, ctx: GraphContext, *, centred: bool) -> Match | Refusal | None:
    """A match of the rule for centred or for root-mean-square normalization."""
    norm = find(node, ctx)
    if not isinstance(norm, Norm):
        # Before the square root is understood it is not known which rule it belongs to: the one for LayerNorm reports.
        return norm if centred else None
    if norm.centred != centred:
        return None
    if norm.scale is None and not isinstance((dims(norm.x, ctx) or (None,))[-1], int):
        return Refusal("there is no scale, and the size of the last axis is not known", norm.x)
    values = {"x": norm.x, "scale": norm.scale, "bias": norm.bias}
    return Match(node, norm.nodes, outputs=(norm.value,), values=values, attrs={"epsilon": norm.epsilon})


def rewrite(match: Match, ctx: GraphContext, *, centred: bool) -> Replacement | Refusal:
    """ONNX's own operator where the opset has it, else cuvil::LayerNorm."""
    x, (output,) = match.values["x"], match.outputs
    assert x is not None
    dtype = ctx.dtype(x)
    assert dtype is not None
    scale = _parameter(match.values["scale"], dtype, ctx, "scale")
    bias = _parameter(match.values["bias"], dtype, ctx, "bias")
    if scale is None:
        size = (dims(x, ctx) or (None,))[-1]
        assert isinstance(size, int)
        scale = ctx.initializer(ir.Tensor(np.ones(size, dtype.numpy()), dtype=dtype), "ones")
    epsilon = match.attrs["epsilon"]
    if centred and ctx.opset() >= LAYER_NORMALIZATION_OPSET:
        inputs = [x, scale] if bias is None else [x, scale, bias]
        node = ctx.node("LayerNormalization", inputs, {"axis": -1, "epsilon": epsilon}, like=output)
        return Replacement((node,), node.outputs)
    if not centred and bias is None and ctx.opset() >= RMS_NORMALIZATION_OPSET:
        node = ctx.node("RMSNormalization", [x, scale], {"axis": -1, "epsilon": epsilon}, like=output)
        return Replacement((node,), node.outputs)
    attrs = {"epsilon": epsilon, "rms": int(not centred)}
    node, function = make("LayerNorm", [x, scale, bias], attrs, ctx, dtype, [output])
    return Replacement((node,), node.outputs, (function,))


def squared(node: ir.Node, ctx: GraphContext) -> ir.Value | None:
    """d when the node computes d * d."""
    if node.domain != "" or len(node.inputs) != 2:
        return None
    if node.op_type == "Mul" and node.inputs[0] is node.inputs[1]:
        return node.inputs[0]
    x, exponent = node.inputs
    return x if node.op_type == "Pow" and number_beside(exponent, x, ctx) == 2 else None


def inverts(node: ir.Node, x: ir.Value, ctx: GraphContext) -> bool:
    """Whether the node computes 1 / x."""
    if node.domain != "" or node.op_type not in ("Reciprocal", "Div"):
        return False
    return node.op_type == "Reciprocal" or (node.inputs[1] is x and number_beside(node.inputs[0], x, ctx) == 1)


def _quotient(root: ir.Node, d: ir.Value, ctx: GraphContext) -> list[ir.Node] | None:
    """The nodes from the deviation to d / deviation: Div, or Reciprocal (also written 1 / x) and Mul."""
    deviation = root.outputs[0]
    user = ctx.single_user(deviation)
    if user is None or user.domain != "":
        return None
    if user.op_type == "Div" and user.inputs[1] is deviation and user.inputs[0] is d:
        return [user]
    if root.op_type == "Pow" and ctx.scalar(root.inputs[1]) == -0.5:
        return [user] if user.op_type == "Mul" and d in user.inputs else None
    one_over = inverts(user, deviation, ctx)
    product = ctx.single_user(user.outputs[0], "Mul") if one_over else None
    return [user, product] if product is not None and d in product.inputs else None


def _absorb(norm: Norm, ctx: GraphContext) -> Norm:
    """Takes in the multiplication with a scale and the addition of a bias, with the casts around everything."""
    narrow = _narrow_input(norm, ctx)
    if narrow is not None:
        assert narrow.inputs[0] is not None
        whole, cast_back = _follow(norm, ctx.dtype(narrow.inputs[0]), ctx)
        if cast_back and _representable(whole, narrow, ctx):
            whole.x = narrow.inputs[0]
            if set(ctx.users(narrow.outputs[0])) <= set(whole.nodes):
                whole.nodes.append(narrow)
            return whole
    return _follow(norm, None, ctx)[0]


def _follow(norm: Norm, cast_to: ir.DataType | None, ctx: GraphContext) -> tuple[Norm, bool]:
    """`norm` with the scale and the bias after it, and one cast to `cast_to` before, between or after them.

    Returns:
        The extended norm, and whether there was such a cast.
    """
    result = replace(norm, nodes=list(norm.nodes))
    size, rank = (dims(norm.x, ctx) or (None,))[-1], ctx.rank(norm.x)
    cast_seen = False
    for op in ("Cast", "Mul", "Cast", "Add", "Cast"):
        user = ctx.single_user(result.value, op)
        if user is None:
            continue
        if op == "Cast":
            if cast_seen or cast_to is None or ctx.attr(user, "to") != cast_to:
                continue
            cast_seen = True
        else:
            parameter = next((p for v, p in operands(user) if v is result.value), None)
            if parameter is None or not vector(parameter, size, ctx, rank=rank):
                break
            if ctx.rank(parameter) != 1 and not ctx.is_constant(parameter):
                break
            if op == "Mul":
                result.scale = parameter
            else:
                result.bias = parameter
        result.nodes.append(user)
        result.value = user.outputs[0]
    return result, cast_seen


def _narrow_input(norm: Norm, ctx: GraphContext) -> ir.Node | None:
    """The cast from a 16-bit type to float32 that feeds the norm: statistics are float32 in the fused op anyway."""
    cast = ctx.producer(norm.x, "Cast")
    if cast is None or ctx.dtype(cast.outputs[0]) != ir.DataType.FLOAT or ctx.dtype(cast.inputs[0]) not in HALF:
        return None
    return cast


def _representable(norm: Norm, narrow: ir.Node, ctx: GraphContext) -> bool:
    """Whether float32 scale and bias keep their values in the type of the narrow input."""
    dtype = ctx.dtype(narrow.inputs[0])
    assert dtype is not None
    for parameter in (norm.scale, norm.bias):
        if parameter is None or ctx.dtype(parameter) == dtype:
            continue
        array = ctx.constant(parameter, max_elements=None)
        if array is None or not np.array_equal(array, array.astype(dtype.numpy()).astype(array.dtype)):
            return False
    return True


def _parameter(value: ir.Value | None, dtype: ir.DataType, ctx: GraphContext, hint: str) -> ir.Value | None:
    """Scale or bias as a tensor of rank 1 and of the op's type."""
    if value is None:
        return None
    if ctx.dtype(value) == dtype:
        return flat(value, ctx, hint)
    array = ctx.constant(value, max_elements=None)
    assert array is not None
    return ctx.initializer(ir.Tensor(array.reshape(-1).astype(dtype.numpy()), dtype=dtype), hint)
