"""Raises a model to the opset that 4-bit weights need, with onnx's converter, on a copy without the weights."""

from __future__ import annotations

import onnx
import onnx.inliner
import onnx.version_converter
import onnx_ir as ir

from cuvil_onnx.errors import UnsupportedModelError
from cuvil_onnx.passes.limits import OLDEST_OPSET
from cuvil_onnx.passes.shapes import weightless_proto
from cuvil_onnx.rewrite import walk

OPSET = 21
"""Types of 4 bits and DequantizeLinear over groups."""


def raised(model: ir.Model, opset: int = OPSET) -> ir.Model:
    """The model at ``opset``: itself when it is there already, else a new one with the same weights.

    Local functions are inlined, since their bodies follow the model's opset.

    Raises:
        UnsupportedModelError: the converter cannot, or the model is older than opset 7.
    """
    found = model.opset_imports.get("", 0)
    if found >= opset:
        return model
    reason = f"4-bit weights need opset {opset}, the model has {found}"
    if found < OLDEST_OPSET:
        raise UnsupportedModelError(f"{reason}; conversion starts at opset {OLDEST_OPSET}")
    tensors = {v.name: v.const_value for graph, _ in walk.all_graphs(model.graph) for v in graph.initializers.values()}
    given = {value.name for value in model.graph.inputs}
    proto = weightless_proto(model)
    proto.ir_version = max(proto.ir_version, 4)
    try:
        if model.functions:
            proto = onnx.inliner.inline_local_functions(proto, convert_version=True)
        converted = onnx.version_converter.convert_version(proto, opset)
    except Exception as error:
        line = " ".join(str(error).split())[:200]
        raise UnsupportedModelError(f"{reason}, and the converter fails: {line}") from error
    converted.ir_version = max(converted.ir_version, 10)
    result = ir.from_proto(converted)
    _give_back(result, tensors, given)
    result.metadata_props.update(model.metadata_props)
    return result


def _give_back(model: ir.Model, tensors: dict[str | None, ir.TensorProtocol | None], given: set[str | None]) -> None:
    """Turns the inputs that stand for weights into initializers again."""
    graph = model.graph
    weights = [v for v in graph.inputs if v.name in tensors and v.name not in given]
    kept = [v for v in graph.inputs if v not in weights]
    graph.inputs.clear()
    graph.inputs.extend(kept)
    for value in weights:
        value.const_value = tensors[value.name]
        graph.register_initializer(value)
    for value in kept:
        if value.name in tensors and not value.is_initializer():  # a weight that the caller may override
            value.const_value = tensors[value.name]
            graph.register_initializer(value)
    for inner, holder in walk.all_graphs(graph):
        if holder is not None:
            for value in inner.initializers.values():
                value.const_value = tensors.get(value.name, value.const_value)
