"""Where a node of the optimized model comes from, kept in its metadata (and so in the file)."""

from __future__ import annotations

import json
from collections.abc import Iterable
from json.encoder import encode_basestring

import onnx_ir as ir

RULE_KEY = "cuvil.rule"
FROM_KEY = "cuvil.from"


def origins(nodes: Iterable[ir.Node]) -> tuple[str, ...]:
    """Names of the nodes of the caller's model that ``nodes`` stand for, in their order, each once.

    A node that was never rewritten stands for itself; without a name it goes by its operator and first output.
    """
    names: dict[str, None] = {}
    for node in nodes:
        props = node._metadata_props  # asked for by its public name, each node gets an empty one
        recorded = None if props is None else props.get(FROM_KEY)
        if recorded is not None:
            names.update(dict.fromkeys(json.loads(recorded)))
        elif node.name:
            names[node.name] = None
        else:
            outputs = [v.name for v in node.outputs if v.name]
            names[f"{node.op_type}:{outputs[0]}" if outputs else node.op_type] = None
    return tuple(names)


def stamp(new_nodes: Iterable[ir.Node], names: Iterable[str], rule: str) -> None:
    """Writes the rule's name and the names of the original nodes on every new node."""
    text = f"[{', '.join(map(encode_basestring, names))}]"  # what json.dumps writes, in a fraction of the time
    for node in new_nodes:
        node.metadata_props[RULE_KEY] = rule
        node.metadata_props[FROM_KEY] = text
