"""Where a node of the optimized model comes from, kept in its metadata (and so in the file)."""

from __future__ import annotations

import json
from collections.abc import Iterable

import onnx_ir as ir

RULE_KEY = "cuvil.rule"
FROM_KEY = "cuvil.from"


def origins(node: ir.Node) -> list[str]:
    """Names of the nodes of the caller's model that ``node`` stands for; itself when it was never rewritten
    (a node without a name goes by its operator and first output)."""
    recorded = node.metadata_props.get(FROM_KEY)
    if recorded is not None:
        names = json.loads(recorded)
        return [str(n) for n in names]
    if node.name:
        return [node.name]
    outputs = [v.name for v in node.outputs if v.name]
    return [f"{node.op_type}:{outputs[0]}" if outputs else node.op_type]


def stamp(new_nodes: Iterable[ir.Node], old_nodes: Iterable[ir.Node], rule: str) -> None:
    """Writes the rule's name and the original node names (in graph order, each once) on every new node."""
    names: dict[str, None] = {}
    for node in old_nodes:
        names.update(dict.fromkeys(origins(node)))
    text = json.dumps(list(names), ensure_ascii=False)
    for node in new_nodes:
        node.metadata_props[RULE_KEY] = rule
        node.metadata_props[FROM_KEY] = text
