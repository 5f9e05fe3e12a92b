"""Topological positions that survive edits.

Every node has a key; keys compare like the order of the node list. A replacement takes keys *inside* the key of the
node whose place it takes ((5,) -> (5, 0), (5, 1), ...), so nothing else has to be renumbered.
"""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

Key = tuple[int, ...]


class Order:
    """Keys of the nodes of all graphs, numbered on first use."""

    def __init__(self) -> None:
        self._keys: dict[ir.Graph, dict[ir.Node, Key]] = {}

    def _of(self, graph: ir.Graph) -> dict[ir.Node, Key]:
        keys = self._keys.get(graph)
        if keys is None:
            keys = {node: (i,) for i, node in enumerate(graph)}
            self._keys[graph] = keys
        return keys

    def key(self, node: ir.Node) -> Key:
        """The key of a node that lies in a graph."""
        graph = node.graph
        assert graph is not None
        try:
            return self._keys[graph][node]
        except KeyError:  # not numbered yet, or inserted behind our back: number the graph again
            self._keys.pop(graph, None)
            return self._of(graph)[node]

    def place(self, graph: ir.Graph, anchor: Key, nodes: Iterable[ir.Node]) -> None:
        """Gives ``nodes`` consecutive keys in the place of the (removed) node that had the key ``anchor``."""
        keys = self._of(graph)
        for i, node in enumerate(nodes):
            keys[node] = (*anchor, i)

    def forget(self, nodes: Iterable[ir.Node], graph: ir.Graph) -> None:
        """Drops removed nodes."""
        keys = self._of(graph)
        for node in nodes:
            keys.pop(node, None)

    def invalidate(self, graph: ir.Graph | None = None) -> None:
        """The node list was changed elsewhere: number again on next use."""
        if graph is None:
            self._keys.clear()
        else:
            self._keys.pop(graph, None)
