"""Nodes and weights of a model that is written by hand."""

from __future__ import annotations

from typing import Any

import onnx
from onnx import helper, numpy_helper

from models.weights import Array, Weights


class Builder:
    """Collects the nodes and initializers of a graph; a node's one output is its name with ``_out``."""

    def __init__(self, seed: int) -> None:
        self.weights = Weights(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []

    def constant(self, name: str, value: Array) -> str:
        self.initializers.append(numpy_helper.from_array(value, name))
        return name

    def node(self, op: str, inputs: list[str], name: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(op, inputs, [f"{name}_out"], name=name, **attributes))
        return f"{name}_out"
