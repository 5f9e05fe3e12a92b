"""Writes the program and the function body of a cuvil::Pointwise node from the nodes that it replaces."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from custom_ops.body import Body
from custom_ops.program import Operand, Program, compile_node
from custom_ops.spec import DOMAIN, OpError

_PLAIN = frozenset(
    {
        *(ir.AttributeType.INT, ir.AttributeType.FLOAT, ir.AttributeType.STRING),
        *(ir.AttributeType.INTS, ir.AttributeType.FLOATS, ir.AttributeType.STRINGS),
    }
)


@dataclass(frozen=True)
class Region:
    """What a Pointwise node replaces.

    Attributes:
        nodes: in topological order.
        outputs: those of their values that the node provides.
        normalized: pairs Add(Mul(x, k), c) that were a BatchNormalization, as {Add: (Mul, x, k, c)}. `x` is [N, C, ...]
            and at least 3-D, `k` and `c` have one number a channel, and nothing else reads the product. The body says
            BatchNormalization again, which CPUs run in one pass instead of two; the program is the same.
    """

    nodes: Sequence[ir.Node]
    outputs: Sequence[ir.Value]
    normalized: Mapping[ir.Node, tuple[ir.Node, ir.Value, ir.Value, ir.Value]] = field(default_factory=dict)


@dataclass(frozen=True)
class Written:
    """A region in both languages.

    Attributes:
        program: the instructions.
        outputs: for each output of the region the instruction that computes it.
        dtypes: the element types of the outputs.
        body: the nodes of the function.
        results: the values of the body that are its outputs.
        domains: of the nodes in the body.
    """

    program: list[str]
    outputs: list[int]
    dtypes: list[ir.DataType]
    body: Body
    results: list[ir.Value]
    domains: list[str]


def write(
    region: Region, inputs: Sequence[ir.Value], formals: Sequence[ir.Value], opset: int, dtype: ir.DataType
) -> Written:
    """The program and the body of a region.

    Args:
        inputs: the values that the region reads; other operands must be constants of one element.
        formals: the function's inputs, one for each of `inputs`.
        opset: version of the default domain for the body.
        dtype: the element type of the region's first output.

    Raises:
        OpError: an operand that is neither an input nor a scalar constant.
        UnsupportedError: a node that has no exact translation.
    """
    program, body = Program(), Body(opset, dtype)
    mapped: dict[ir.Value, ir.Value] = dict(zip(inputs, formals, strict=True))
    operands: dict[ir.Value, Operand] = {
        value: program.load(index, _dtype(value)) for index, value in enumerate(inputs)
    }
    products = {product for product, *_ in region.normalized.values()}
    for node in region.nodes:
        for value in node.inputs:
            if value is not None and value not in operands:
                operands[value], mapped[value] = _scalar(program, body, value)
        result = compile_node(program, node, [None if v is None else operands[v] for v in node.inputs])
        operands[node.outputs[0]] = result
        if node in region.normalized:
            x, scale, shift = (mapped[v] for v in region.normalized[node][1:])
            mapped[node.outputs[0]] = _normalization(body, x, scale, shift, result)
        elif node not in products:
            mapped[node.outputs[0]] = _copy(body, node, [None if v is None else mapped[v] for v in node.inputs], result)
    results = [operands[v] for v in region.outputs]
    return Written(
        program.instructions,
        [r.index for r in results],
        [r.dtype for r in results],
        body,
        [mapped[v] for v in region.outputs],
        sorted({node.domain for node in region.nodes} - {"", DOMAIN}),
    )


def signature(
    region: Region, inputs: Sequence[ir.Value], opset: int, dtype: ir.DataType
) -> tuple[Hashable, ...] | None:
    """Regions with equal signatures have equal programs and bodies; None when that cannot be told."""
    places: dict[ir.Value, int] = {value: index for index, value in enumerate(inputs)}
    parts: list[Hashable] = [opset, dtype, tuple(_dtype(value) for value in inputs)]
    for node in region.nodes:
        parts += (node.domain, node.op_type, len(node.inputs), node in region.normalized)
        for value in node.inputs:
            place = -1 if value is None else places.get(value)
            if place is None:
                assert value is not None
                tensor = value.const_value
                if tensor is None or tensor.size != 1:
                    return None
                place = places[value] = len(places)
                parts += (tensor.dtype, len(tensor.shape), tensor.tobytes())
            parts.append(place)
        for attribute in node.attributes.values():
            if attribute.type not in _PLAIN or attribute.is_ref() or attribute.doc_string:
                return None
            # As text: 0.0 is not -0.0, and NaN is itself.
            parts += (attribute.name, attribute.type, repr(attribute.value))
        places[node.outputs[0]] = len(places)
    return (*parts, *(places[value] for value in region.outputs))


def _dtype(value: ir.Value) -> ir.DataType:
    if value.dtype is None:
        raise OpError(f"cuvil::Pointwise: the type of input '{value.name}' is not known")
    return value.dtype


def _copy(body: Body, node: ir.Node, inputs: Sequence[ir.Value | None], result: Operand) -> ir.Value:
    """Appends `node` as it is; cuvil::Gelu written out, since ONNX Runtime inlines no function inside a function."""
    if node.domain == DOMAIN:
        (x,) = inputs
        assert x is not None
        name = "GeluTanh" if node.attributes.get_string("approximate", "none") == "tanh" else "Gelu"
        return body.activation(name, [], x, result.dtype)
    output = ir.val(f"v{len(body.nodes)}")
    body.nodes.append(ir.Node(node.domain, node.op_type, inputs, list(node.attributes.values()), outputs=[output]))
    return output


def _normalization(body: Body, x: ir.Value, scale: ir.Value, shift: ir.Value, result: Operand) -> ir.Value:
    """Appends x * scale + shift as a BatchNormalization with mean 0, variance 1 and no epsilon."""
    scale, shift = (body.reshape(v, [-1]) for v in (scale, shift))
    channels = body.op("Shape", scale)
    mean, variance = (body.filled(channels, number, result.dtype) for number in (0.0, 1.0))
    return body.op("BatchNormalization", x, scale, shift, mean, variance, epsilon=0.0)


def _scalar(program: Program, body: Body, value: ir.Value) -> tuple[Operand, ir.Value]:
    tensor = value.const_value
    if tensor is None or tensor.size != 1:
        raise OpError(f"cuvil::Pointwise: '{value.name}' is neither an input nor a scalar constant")
    array = tensor.numpy()
    return program.constant(array, tensor.dtype), body.constant(array, tensor.dtype)
