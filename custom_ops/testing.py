"""Models and expected values for the examples of the op specifications; used by the tests on the CPU and on the GPU."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from custom_ops.body import Body
from custom_ops.factory import install, make
from custom_ops.region import Region
from custom_ops.spec import Array, Example, OpSpec


@dataclass(frozen=True)
class Case:
    """A model of one node, what to feed it, and what must come out.

    Attributes:
        expected: float64 results of the inputs as fed, that is after they were rounded to the dtype.
    """

    model: onnx.ModelProto
    feeds: dict[str, Array]
    expected: Sequence[Array]


def build(spec: OpSpec, example: Example, *, opset: int, dtype: ir.DataType, constant: Collection[int] = ()) -> Case:
    """The example as a model whose graph inputs are the node's inputs, those in `constant` being initializers.

    For bfloat16 the graph's inputs and outputs are float32, with casts around the node.
    """
    constant = {*constant, *example.constant}
    arrays = [None if a is None else _typed(np.asarray(a), dtype) for a in example.inputs]
    inputs = [None if a is None else _value(f"input{i}", a) for i, a in enumerate(arrays)]
    present = [v for v in inputs if v is not None]
    outputs = example.num_outputs
    if example.region is None:
        node, function = make(spec.name, inputs, outputs, example.attrs, opset=opset, dtype=dtype)
    else:
        original = Body(opset, dtype)
        results = example.region(original, present)
        for made in original.nodes:
            if made.op_type == "Constant":
                made.outputs[0].const_value = made.attributes["value"].as_tensor()
        region = Region([n for n in original.nodes if n.op_type != "Constant"], results)
        node, function = make(spec.name, inputs, outputs, {}, opset=opset, dtype=dtype, body=region)
    expected = _expected(spec, example, arrays, node)[:outputs]
    for index, (value, array) in enumerate(zip(node.outputs, expected, strict=True)):
        value.name = f"output{index}"
        value.type = value.type or ir.TensorType(dtype)
        value.shape = ir.Shape(array.shape) if value.shape is None or not value.shape.is_static() else value.shape
    fed = [v for i, v in enumerate(inputs) if v is not None and i not in constant]
    graph = ir.Graph(fed, node.outputs, nodes=[node], opset_imports={"": opset}, name=example.name)
    for index, (weight, data) in enumerate(zip(inputs, arrays, strict=True)):
        if index in constant and weight is not None and data is not None:
            weight.const_value = ir.Tensor(data, dtype=weight.dtype, name=weight.name)
            graph.register_initializer(weight)
    model = ir.Model(graph, ir_version=10)
    install(model, [function])
    feeds = {f"input{i}": a for i, a in enumerate(arrays) if a is not None and i not in constant}
    proto = ir.to_proto(model)
    if dtype == ir.DataType.BFLOAT16:
        _cast_at_the_border(proto)
        feeds = {n: a.astype(np.float32) if a.dtype == dtype.numpy() else a for n, a in feeds.items()}
    return Case(proto, feeds, expected)


def _typed(array: Array, dtype: ir.DataType) -> Array:
    """Numbers get the type under test; codes and lengths keep theirs."""
    return array.astype(dtype.numpy()) if array.dtype in (np.float32, np.float64) else array


def _value(name: str, array: Array) -> ir.Value:
    return ir.val(name, ir.DataType.from_numpy(array.dtype), ir.Shape(array.shape))


def _cast_at_the_border(model: onnx.ModelProto) -> None:
    """Makes the bfloat16 graph inputs and outputs float32: ONNX Runtime's Python takes no bfloat16 arrays."""
    graph = model.graph
    node = onnx.NodeProto.FromString(graph.node[0].SerializeToString())
    before: list[onnx.NodeProto] = []
    after: list[onnx.NodeProto] = []
    for infos, names, casts in ((graph.input, node.input, before), (graph.output, node.output, after)):
        for info in infos:
            inner = f"{info.name}_bf16"
            if info.type.tensor_type.elem_type != onnx.TensorProto.BFLOAT16:
                continue
            info.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
            names[:] = [inner if n == info.name else n for n in names]
            source, target, to = (info.name, inner, 16) if casts is before else (inner, info.name, 1)
            casts.append(onnx.helper.make_node("Cast", [source], [target], to=to))
    del graph.node[:], graph.value_info[:]
    graph.node.extend([*before, node, *after])


def _expected(spec: OpSpec, example: Example, arrays: Sequence[Array | None], node: ir.Node) -> Sequence[Array]:
    doubles = [None if a is None else np.asarray(a, np.float64) for a in arrays]
    attrs: dict[str, Any] = {name: a.value for name, a in node.attributes.items()}
    with np.errstate(all="ignore"):
        return (example.reference or spec.reference)(doubles, attrs)
