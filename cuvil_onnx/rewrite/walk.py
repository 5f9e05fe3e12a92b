"""Walking graphs and their subgraphs without recursion over depth."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

_GRAPH, _GRAPHS = ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS


def subgraphs(node: ir.Node) -> Iterator[ir.Graph]:
    """The graphs held directly by the attributes of ``node``."""
    for attr in node.attributes.data.values():
        kind = attr.type
        if kind is _GRAPH and not attr.is_ref():
            yield attr.as_graph()
        elif kind is _GRAPHS and not attr.is_ref():
            yield from attr.as_graphs()


def holds_graphs(node: ir.Node) -> bool:
    """Whether any attribute of ``node`` is a graph, or refers to one."""
    for attr in node.attributes.data.values():  # noqa: SIM110 - asked of every node in every pass: no generator
        if attr.type is _GRAPH or attr.type is _GRAPHS:
            return True
    return False


def all_graphs(graph: ir.Graph) -> list[tuple[ir.Graph, ir.Node | None]]:
    """``graph`` and every graph below it, outer before inner, each with the node that holds it."""
    found: list[tuple[ir.Graph, ir.Node | None]] = [(graph, None)]
    i = 0
    while i < len(found):
        for node in found[i][0]:
            if node.attributes.data and holds_graphs(node):
                found.extend((inner, node) for inner in subgraphs(node))
        i += 1
    return found


def all_nodes(graph: ir.Graph) -> Iterator[ir.Node]:
    """All nodes of ``graph`` and of the graphs below it; safe against removals while iterating."""
    for inner, _ in all_graphs(graph):
        yield from inner


def drop_inputs(node: ir.Node) -> None:
    """Lets a node that is to go read nothing; ``Node.resize_inputs`` makes all inputs anew for each one it drops."""
    for index, value in enumerate(node._inputs):
        if value is not None:
            value._remove_usage(node, index)
    node._inputs = ()


def replace_input(node: ir.Node, index: int, value: ir.Value) -> None:
    """``Node.replace_input_with``, which looks at all inputs one by one: a Sum of hundreds gets each of them anew."""
    if node.device_configurations:
        node.replace_input_with(index, value)
        return
    inputs = node._inputs
    old = inputs[index]
    node._inputs = (*inputs[:index], value, *inputs[index + 1 :])
    if old is not None:
        old._remove_usage(node, index)
    value._add_usage(node, index)


def use_count(value: ir.Value) -> int:
    """How many node inputs (in any graph) read ``value``, in constant time.

    ``Value.uses()`` copies all uses on every call: with it a scalar read by 10,000 nodes makes matching quadratic.
    """
    return len(value._uses)


def first_use(value: ir.Value) -> ir.Node | None:
    """One node that reads ``value``, in constant time; None when nothing does."""
    for use in value._uses:
        return use.node
    return None


def users(value: ir.Value) -> list[ir.Node]:
    """The nodes, in any graph, that read ``value``, each once, oldest use first."""
    return list(dict.fromkeys(use.node for use in value._uses))


def each_user(value: ir.Value) -> Iterator[ir.Node]:
    """The same one at a time and as often as they read it, for who may stop early; not to be changed meanwhile."""
    for use in value._uses:
        yield use.node
