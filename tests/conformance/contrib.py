"""Nodes of domain com.microsoft to ask the provider about: onnx has no cases of them. Tested in tests/gpu."""

from __future__ import annotations

from typing import Any

import onnx
from onnx import helper

DOMAIN = "com.microsoft"
# Shapes of the inputs and attributes of one node; None is an absent optional input.
NODES: dict[str, tuple[list[tuple[int, ...] | None], dict[str, Any]]] = {
    "BiasGelu": ([(2, 8), (8,)], {}),
    "FastGelu": ([(2, 8), (8,)], {}),
    "FusedMatMul": ([(2, 3, 4), (2, 4, 5)], {}),
    "Gelu": ([(2, 8)], {}),
    "MultiHeadAttention": ([(2, 3, 32), (2, 3, 32), (2, 3, 32)], {"num_heads": 2}),
    "QuickGelu": ([(2, 8)], {}),
    "SkipLayerNormalization": ([(2, 3, 8), (2, 3, 8), (8,), (8,)], {}),
    "SkipSimplifiedLayerNormalization": ([(2, 3, 8), (2, 3, 8), (8,)], {}),
}


def model(op: str, kind: int) -> onnx.ModelProto | None:
    """The node with every input of one element type; None for an op without an example here."""
    if op not in NODES:
        return None
    shapes, attributes = NODES[op]
    names = ["" if shape is None else f"x{i}" for i, shape in enumerate(shapes)]
    node = helper.make_node(op, names, ["y"], domain=DOMAIN, **attributes)
    inputs = [helper.make_tensor_value_info(n, kind, s) for n, s in zip(names, shapes, strict=True) if n]
    graph = helper.make_graph([node], op, inputs, [onnx.ValueInfoProto(name="y")])
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)
