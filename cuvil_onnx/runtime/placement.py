"""Which nodes run where, and why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

SHAPES = "shape arithmetic"  # what the provider's reason says of nodes that are better off on the CPU
_SHOWN = 8  # nodes named for each reason; the list itself has all of them


class NodePlacement(NamedTuple):
    """A node, the provider that runs it, and why the GPU's provider does not ("" when it does)."""

    node: str
    provider: str
    reason: str
    op_type: str


class Placement(list[NodePlacement]):
    """The nodes of a session in ONNX Runtime's order. ``cuda_graph`` says whether runs are captured, or why not."""

    def __init__(self, nodes: list[NodePlacement], cuda_graph: str) -> None:
        super().__init__(nodes)
        self.cuda_graph = cuda_graph

    def counts(self) -> dict[str, int]:
        """Number of nodes by provider."""
        counts: dict[str, int] = {}
        for node in self:
            counts[node.provider] = counts.get(node.provider, 0) + 1
        return counts

    def __str__(self) -> str:
        lines = [f"{provider}: {count} nodes" for provider, count in self.counts().items()]
        lines.append(f"CUDA Graph: {self.cuda_graph}")
        by_reason: dict[tuple[str, str], list[str]] = {}
        for n in self:
            if n.reason:
                by_reason.setdefault((n.provider, n.reason), []).append(f"{n.op_type} {n.node!r}")
        for (provider, reason), nodes in by_reason.items():
            more = f" and {len(nodes) - _SHOWN} more" if len(nodes) > _SHOWN else ""
            lines.append(f"  {provider}, {reason}: {', '.join(nodes[:_SHOWN])}{more}")
        return "\n".join(lines)


def read_reasons(path: Path) -> dict[tuple[str, str], str]:
    """The provider's reasons by node name and op type, from its ``placement_file``; empty when it wrote none."""
    try:
        nodes = json.loads(path.read_text(encoding="utf-8"))["nodes"]
    except (OSError, ValueError, KeyError):
        return {}
    return {(n["name"], n["op_type"]): n["reason"] for n in nodes if not n["taken"]}


def assignment(session: Any, reasons: dict[tuple[str, str], str], default: str) -> list[NodePlacement]:
    """The nodes as ONNX Runtime assigned them. ``default`` is the reason where the provider named none.

    Sub-graphs of control flow are listed where ONNX Runtime lists them. Nodes that its later fusions make carry
    their new names.
    """
    if not hasattr(session, "get_provider_graph_assignment_info"):
        raise NotImplementedError("this release of onnxruntime does not tell where nodes run; 1.27 does")
    placed = []
    for subgraph in session.get_provider_graph_assignment_info():
        for node in subgraph.get_nodes():
            on_gpu = subgraph.ep_name != "CPUExecutionProvider"
            reason = "" if on_gpu else reasons.get((node.name, node.op_type), default)
            placed.append(NodePlacement(node.name, subgraph.ep_name, reason, node.op_type))
    return placed
