"""Operators of a model that the installed ONNX Runtime does not know."""

from __future__ import annotations

from collections.abc import Iterator

import onnx


def unknown_ops(model: onnx.ModelProto) -> list[str]:
    """``domain::op (node name)`` of each node, subgraphs included, whose operator has no schema and no function."""
    from onnxruntime.capi import onnxruntime_pybind11_state as ort

    known = {(_domain(s.domain), s.name) for s in ort.get_all_operator_schema()}
    known |= {(_domain(f.domain), f.name) for f in model.functions}
    graphs = [model.graph.node, *(f.node for f in model.functions)]
    return [
        f"{n.domain or 'ai.onnx'}::{n.op_type} ({n.name or 'unnamed'})"
        for nodes in graphs
        for n in _all_nodes(list(nodes))
        if (_domain(n.domain), n.op_type) not in known
    ]


def _domain(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


def _all_nodes(nodes: list[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    pending = nodes
    while pending:
        node = pending.pop()
        yield node
        for attribute in node.attribute:
            pending.extend(attribute.g.node)
            for graph in attribute.graphs:
                pending.extend(graph.node)
