"""Which parameter of a checkpoint belongs where in a model: by the names of weights, else by those of nodes.

torch's exporters keep parameters' names ("model.layers.0.mlp.up_proj.weight") except of linear layers that they
transposed; then the node tells ("/model/layers.0/mlp/up_proj/MatMul", or the module scopes that dynamo writes).
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence

import onnx_ir as ir

from cuvil_onnx.quantize.targets import Lookup, Product
from cuvil_onnx.rewrite import walk

_HEAD, _TABLE = "lm_head", "model.embed_tokens"
_SCOPES = "pkg.torch.onnx.name_scopes"


def scopes_of(model: ir.Model) -> dict[str, list[str]]:
    """The modules that dynamo's exporter says a node lies in, innermost first, by the name of the node's output."""
    found = {}
    for node in walk.all_nodes(model.graph):
        text = node.metadata_props.get(_SCOPES)
        if not text:
            continue
        try:
            listed = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            continue
        scopes = [scope for scope in reversed(listed) if isinstance(scope, str) and scope]
        found.update({value.name: scopes for value in node.outputs if value.name})
    return found


def candidates(target: Product | Lookup, scopes: Mapping[str, Sequence[str]]) -> list[str]:
    """What a product's layer may be called, the surest first.

    Args:
        target: a node of the model.
        scopes: see :func:`scopes_of`, of the model before it was converted (which drops metadata).
    """
    found = []
    weight = target.weight.value.name or ""
    if weight.endswith(".weight"):
        found.append(weight.removesuffix(".weight"))
    node = target.node
    if "/" in (node.name or ""):
        found.append(".".join(part for part in (node.name or "").split("/")[:-1] if part))
    found += scopes.get(node.outputs[0].name or "", ())
    if any(name.rpartition(".")[2] == _HEAD for name in found):
        found.append(_TABLE)  # checkpoints of tied models hold the weight once
    return [name for name in dict.fromkeys(found) if name]


class Names:
    """Parameters by name, found also when the model or the checkpoint wraps everything in one more module."""

    def __init__(self, known: Iterable[str]) -> None:
        self._known = set(known)
        self._by_end: dict[str, set[str]] = {}
        for name in self._known:
            self._by_end.setdefault(name.rpartition(".")[2], set()).add(name)

    def find(self, names: Sequence[str]) -> str | None:
        """The parameter that one of the names means: exactly, else when exactly one ends with it or the reverse."""
        for name in names:
            if name in self._known:
                return name
        for name in names:
            if "." not in name:
                continue  # "weight", "dense": too little to go by
            near = [
                other
                for other in self._by_end.get(name.rpartition(".")[2], ())
                if other.endswith(f".{name}") or ("." in other and name.endswith(f".{other}"))
            ]
            if len(near) == 1:
                return near[0]
        return None


def initializers(graphs: Iterable[ir.Graph]) -> Mapping[str, ir.Value]:
    """Every initializer by name."""
    return {name: value for graph in graphs for name, value in graph.initializers.items()}
