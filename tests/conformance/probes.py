"""One-node models over the element types of an op, made from its node cases: what the provider takes is asked, not
written down."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import onnx
from onnx import TensorProto, helper

from tests.conformance.cases import Case

TYPES = [
    TensorProto.FLOAT,
    TensorProto.FLOAT16,
    TensorProto.BFLOAT16,
    TensorProto.DOUBLE,
    *(TensorProto.INT8, TensorProto.INT16, TensorProto.INT32, TensorProto.INT64),
    *(TensorProto.UINT8, TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64),
    TensorProto.BOOL,
    *(TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT8E4M3FNUZ, TensorProto.FLOAT8E5M2, TensorProto.FLOAT8E5M2FNUZ),
    TensorProto.FLOAT8E8M0,
    *(TensorProto.FLOAT4E2M1, TensorProto.INT4, TensorProto.UINT4, TensorProto.INT2, TensorProto.UINT2),
]
# Attributes that hold the element type of an output that no input determines.
_TYPE_ATTRIBUTES = ("to", "dtype", "output_dtype")
# Cases of one op that differ in which inputs and attributes they have; more of them find no more types.
_MOST_BASES = 12


@dataclass(frozen=True)
class Probe:
    """The op of a case with type parameters of its schema (`T`, `T1`, ...) bound to another type."""

    op: str
    parameters: tuple[str, ...]
    type: int
    case: Case


def type_name(kind: int) -> str:
    """ONNX's spelling in schemas: float16, int64, double."""
    return str(TensorProto.DataType.Name(kind)).lower()


def probes(all_cases: list[Case]) -> Iterator[Probe]:
    """Every type parameter of every op with every type, each on several kinds of node of that op.

    Parameters that have one type in the case are also bound together: attention wants K and V of Q's type, for one.
    """
    bases: dict[str, dict[tuple[str, ...], Case]] = defaultdict(dict)
    for case in all_cases:
        if not case.expanded and len(case.model.graph.node) == 1:
            kinds = bases[case.op]
            if len(kinds) < _MOST_BASES:
                kinds.setdefault(_kind(case.model.graph.node[0]), case)
    for op, kinds in bases.items():
        for case in kinds.values():
            together: dict[int, list[str]] = defaultdict(list)
            for parameter, values in _values(case.model).items():
                together[values[0].type.tensor_type.elem_type].append(parameter)
            groups = [(p,) for group in together.values() for p in group]
            groups += [tuple(group) for group in together.values() if len(group) > 1]
            for parameters in groups:
                for kind in TYPES:
                    yield Probe(op, parameters, kind, case)


def retyped(probe: Probe) -> onnx.ModelProto | None:
    """The probe's model; None where the schema does not allow the type."""
    model = copy.deepcopy(probe.case.model)
    node = model.graph.node[0]
    schema = _schema(node, model)
    allowed = {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints}
    values = _values(model)
    for parameter in probe.parameters:
        if f"tensor({type_name(probe.type)})" not in allowed[parameter]:
            return None
        for value in values[parameter]:
            value.type.tensor_type.elem_type = probe.type
        if not any(i.type_str == parameter for i in schema.inputs):
            _set_type_attribute(node, probe)
    return model


def _set_type_attribute(node: onnx.NodeProto, probe: Probe) -> None:
    for attribute in node.attribute:
        if attribute.name in _TYPE_ATTRIBUTES:
            attribute.i = probe.type
        elif attribute.type == onnx.AttributeProto.TENSOR:
            attribute.t.CopyFrom(helper.make_tensor("value", probe.type, [1], [1]))


def _values(model: onnx.ModelProto) -> dict[str, list[onnx.ValueInfoProto]]:
    """The graph's inputs and outputs by the type parameter of their place in the node; only tensors."""
    node, graph = model.graph.node[0], model.graph
    schema = _schema(node, model)
    parameters = {c.type_param_str for c in schema.type_constraints}
    found: dict[str, list[onnx.ValueInfoProto]] = defaultdict(list)
    for formal, names, values in (
        (schema.inputs, node.input, graph.input),
        (schema.outputs, node.output, graph.output),
    ):
        by_name = {v.name: v for v in values if v.type.HasField("tensor_type")}
        for i, name in enumerate(names):
            parameter = formal[min(i, len(formal) - 1)].type_str
            if name in by_name and parameter in parameters:
                found[parameter].append(by_name[name])
    return found


def _schema(node: onnx.NodeProto, model: onnx.ModelProto) -> onnx.defs.OpSchema:
    version = next(o.version for o in model.opset_import if o.domain == node.domain)
    return onnx.defs.get_schema(node.op_type, version, node.domain)


def _kind(node: onnx.NodeProto) -> tuple[str, ...]:
    """What distinguishes nodes of one op: which inputs and outputs are there, which attributes."""
    inputs = ["" if not n else str(i) for i, n in enumerate(node.input)]
    outputs = ["" if not n else str(i) for i, n in enumerate(node.output)]
    return (*inputs, "-", *outputs, "-", *sorted(a.name for a in node.attribute))
