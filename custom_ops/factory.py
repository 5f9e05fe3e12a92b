"""Makes nodes of domain `cuvil`, each with the function that defines it."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterable, Mapping, MutableMapping, Sequence
from typing import Any

import onnx_ir as ir

from custom_ops import region as regions
from custom_ops.body import Body
from custom_ops.region import Region
from custom_ops.registry import get
from custom_ops.spec import DOMAIN, VERSION, Call, Inferred, OpError, OpSpec

_INT, _FLOAT, _STRING = ir.AttributeType.INT, ir.AttributeType.FLOAT, ir.AttributeType.STRING
_INTS, _FLOATS, _STRINGS = ir.AttributeType.INTS, ir.AttributeType.FLOATS, ir.AttributeType.STRINGS


def make(
    op: str,
    inputs: Sequence[ir.Value | None],
    num_outputs: int,
    attrs: Mapping[str, Any],
    *,
    opset: int,
    dtype: ir.DataType,
    body: Region | None = None,
    cache: MutableMapping[Hashable, Any] | None = None,
) -> tuple[ir.Node, ir.Function]:
    """A node of domain `cuvil` and the model-local function it calls.

    Args:
        op: name of the op, such as "LayerNorm".
        inputs: the node's inputs; None is an absent optional one.
        num_outputs: how many outputs the node has.
        attrs: attributes; those with a default may be left out, and are written on the node all the same.
        opset: the model's version of the default domain, for which the body is written.
        dtype: the element type of the op's tensors.
        body: Pointwise only: what the node replaces. `attrs` is then empty.
        cache: what was made before for the same model; equal functions are then made once.

    Returns:
        The node, whose outputs have types and shapes as far as they follow from the inputs', and the function. Equal
        functions have equal names (the overload is a hash), so a model keeps one of them.

    Raises:
        OpError: an op, attribute or input that the specification does not allow.
    """
    spec = get(op)
    if body is not None:
        return _make_pointwise(spec, list(inputs), body, opset, dtype, cache)
    values = list(inputs)
    while values and values[-1] is None:
        values.pop()
    call = Call(op, tuple(values), num_outputs, _complete(spec, attrs), opset, dtype)
    _check(spec, call)
    key = _signature(call)
    known = None if cache is None else cache.get(key)
    if known is None:
        known = _attributes(spec, call.attrs), _write(spec, call)
        if cache is not None:
            cache[key] = known
    attributes, function = known
    return _node(call, attributes, function, spec.infer(call)), function


def retype(node: ir.Node, attrs: Mapping[str, Any], *, opset: int, dtype: ir.DataType) -> tuple[ir.Node, ir.Function]:
    """The same op on the same inputs for another element type, or with other attributes merged over the node's.

    Raises:
        OpError: a Pointwise node, whose body is not known here, or attributes that the op does not allow.
    """
    if node.domain != DOMAIN:
        raise OpError(f"'{node.name}' is {node.domain}::{node.op_type}, not an op of domain {DOMAIN}")
    if node.op_type == "Pointwise":
        raise OpError("cuvil::Pointwise cannot be made for another type: its body is the nodes it replaced")
    merged = {name: attribute.value for name, attribute in node.attributes.items()} | dict(attrs)
    return make(node.op_type, node.inputs, len(node.outputs), merged, opset=opset, dtype=dtype)


def install(model: ir.Model, functions: Iterable[ir.Function]) -> None:
    """Adds `functions` to a model with what they need: the opset import and IR version 10 (overloads)."""
    for function in functions:
        model.functions.setdefault(function.identifier(), function)
        for domain, version in function.opset_imports.items():
            model.opset_imports.setdefault(domain, version)
        model.opset_imports[DOMAIN] = VERSION
    model.ir_version = max(model.ir_version, 10)


def _write(spec: OpSpec, call: Call) -> ir.Function:
    """The function that defines one use of an op."""
    writer = Body(call.opset, call.dtype)
    formals = _formals(spec, call.inputs)
    # A body must not read an absent input, so it is given None for that; the function still has the formal.
    given = [formal if call.has(i) else None for i, formal in enumerate(formals)]
    results = spec.body(writer, call, [*given, *[None] * (len(spec.inputs) - len(given))][: len(spec.inputs)])
    return _function(spec, writer, formals, results, call.opset)


def _signature(call: Call) -> Hashable:
    """Calls with equal signatures have equal functions: a body sees nothing else of a call."""
    inputs = tuple(None if v is None else (v.dtype, None if v.shape is None else v.shape.dims) for v in call.inputs)
    attrs = tuple((name, repr(value)) for name, value in call.attrs.items())  # as text: 0.0 is not -0.0
    return ("custom_ops", call.op, inputs, call.num_outputs, attrs, call.opset, call.dtype)


def _make_pointwise(
    spec: OpSpec,
    inputs: list[ir.Value | None],
    region: Region,
    opset: int,
    dtype: ir.DataType,
    cache: MutableMapping[Hashable, Any] | None,
) -> tuple[ir.Node, ir.Function]:
    values = [v for v in inputs if v is not None]
    if len(values) != len(inputs):
        raise OpError("cuvil::Pointwise has no optional inputs")
    key = regions.signature(region, values, opset, dtype)
    known = None if cache is None or key is None else cache.get(("custom_ops", key))
    if known is None:
        formals = _formals(spec, values)
        written = regions.write(region, values, formals, opset, dtype)
        attrs = _complete(spec, {"program": written.program, "outputs": written.outputs})
        _check(spec, Call(spec.name, tuple(values), len(region.outputs), attrs, opset, dtype))
        function = _function(spec, written.body, formals, written.results, opset, written.domains)
        known = attrs, _attributes(spec, attrs), written.dtypes, function
        if cache is not None and key is not None:
            cache["custom_ops", key] = known
    attrs, attributes, dtypes, function = known
    call = Call(spec.name, tuple(values), len(region.outputs), attrs, opset, dtype)
    shapes = [value.shape for value in region.outputs]
    if any(shape is None for shape in shapes):
        shapes = [old or new for old, (_, new) in zip(shapes, spec.infer(call), strict=True)]
    return _node(call, attributes, function, list(zip(dtypes, shapes, strict=True))), function


def _formals(spec: OpSpec, inputs: Sequence[ir.Value | None]) -> list[ir.Value]:
    return [ir.val(name) for name in spec.formal_inputs(len(inputs))]


def _complete(spec: OpSpec, attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Every attribute of the spec, given or default, as a plain Python value that is legal."""
    for name in attrs:
        spec.attribute(name)
    result: dict[str, Any] = {}
    for attribute in spec.attributes:
        value = attrs.get(attribute.name, attribute.default)
        if value is None:
            raise OpError(f"cuvil::{spec.name} needs attribute '{attribute.name}' ({attribute.doc})")
        value = _normalize(attribute.type, value)
        if attribute.allowed is not None and value not in attribute.allowed:
            raise OpError(f"cuvil::{spec.name}: {attribute.name} must be one of {attribute.allowed}, got {value!r}")
        result[attribute.name] = value
    return result


def _normalize(kind: ir.AttributeType, value: Any) -> Any:
    convert = {_INT: int, _FLOAT: float, _STRING: str, _INTS: int, _FLOATS: float, _STRINGS: str}[kind]
    return [convert(v) for v in value] if kind in (_INTS, _FLOATS, _STRINGS) else convert(value)


def _check(spec: OpSpec, call: Call) -> None:
    required = sum(not p.optional for p in spec.inputs)
    most = len(spec.inputs)
    variadic = bool(spec.inputs and spec.inputs[-1].variadic)
    if len(call.inputs) > most and not variadic:
        raise call.fail(f"takes at most {most} inputs, got {len(call.inputs)}")
    for index in range(required):
        if not call.has(index):
            raise call.fail(f"needs input {spec.formal_inputs(max(required, 1))[index]}")
    if not 1 <= call.num_outputs <= (call.num_outputs if spec.outputs[-1].variadic else len(spec.outputs)):
        raise call.fail(f"has at most {len(spec.outputs)} outputs, got {call.num_outputs}")
    if call.opset < 7:
        raise call.fail(f"bodies need opset 7, the model has {call.opset}")
    if spec.check is not None:
        spec.check(call)


def fingerprint(function: ir.Function) -> str:
    """The overload of a function of this domain: a hash of what it computes.

    Descriptions and metadata, which tools add, do not count.
    """
    proto = ir.serde.serialize_function(function)
    for name in ("overload", "doc_string", "value_info", "metadata_props"):
        proto.ClearField(name)
    for node in proto.node:
        node.ClearField("doc_string")
        node.ClearField("metadata_props")
    return hashlib.sha256(proto.SerializeToString(deterministic=True)).hexdigest()[:10]


def _function(
    spec: OpSpec,
    body: Body,
    inputs: Sequence[ir.Value],
    outputs: Sequence[ir.Value],
    opset: int,
    domains: Iterable[str] = (),
) -> ir.Function:
    """The function of a body whose nodes are of the default domain or of `domains`."""
    for value, name in zip(outputs, spec.formal_outputs(len(outputs)), strict=True):
        value.name = name
    for index, node in enumerate(body.nodes):
        node.name = f"n{index}"
    imports = {"": opset} | dict.fromkeys(domains, 1)
    graph = ir.Graph(inputs, outputs, nodes=body.nodes, opset_imports=imports, name=spec.name)
    # Declared without values: every attribute is on the node, and the body has been written for those.
    declared = [ir.Attr(a.name, ir.AttributeType.UNDEFINED, None) for a in spec.attributes]
    function = ir.Function(DOMAIN, spec.name, graph=graph, attributes=declared)
    function.overload = fingerprint(function)
    return function


def _node(call: Call, attributes: Sequence[ir.Attr], function: ir.Function, inferred: Sequence[Inferred]) -> ir.Node:
    node = ir.Node(DOMAIN, call.op, call.inputs, attributes, overload=function.overload, num_outputs=call.num_outputs)
    for value, (dtype, shape) in zip(node.outputs, inferred, strict=True):
        if dtype is not None:
            value.type = ir.TensorType(dtype)
        value.shape = None if shape is None else shape.copy()
    return node


def _attributes(spec: OpSpec, values: Mapping[str, Any]) -> list[ir.Attr]:
    """The attributes of a node; equal nodes share them, since they never change."""
    return [ir.Attr(a.name, a.type, values[a.name]) for a in spec.attributes]
