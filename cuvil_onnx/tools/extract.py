"""``cuvil extract``: a part of a model as a model of its own, with the data it works on, for bug reports."""

from __future__ import annotations

import dataclasses
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from cuvil_onnx import verify
from cuvil_onnx.errors import CuvilError, OptionError, OutputError
from cuvil_onnx.passes.load import load
from cuvil_onnx.passes.write import PROTO_LIMIT, atomically, self_contained, write_model
from cuvil_onnx.rewrite import walk
from cuvil_onnx.tools.read import learn_shapes, op_name

Arrays = dict[str, npt.NDArray[Any]]
Owners = dict[ir.Graph, ir.Node | None]
"""For each graph the node that holds it."""


@dataclasses.dataclass(frozen=True)
class Extract:
    """What was written: the model, its interface, and the file of inputs when there is one."""

    output: Path
    nodes: int
    inputs: list[str]
    outputs: list[str]
    data: Path | None


def extract(
    path: Path,
    output: Path,
    *,
    nodes: Sequence[str] = (),
    inputs: Sequence[str] = (),
    outputs: Sequence[str] = (),
    data: bool = False,
) -> Extract:
    """Writes a part of the model in ``path`` to ``output``, with its weights and the functions it calls.

    Args:
        path: the whole model.
        output: where to write; with ``data`` the inputs go to ``<output>.npz`` (suffix replaced).
        nodes: names of nodes (or of values they compute) to take, constants they read included.
        inputs, outputs: instead of ``nodes`` everything between these values; absent means the model's own.
        data: also run the whole model on generated inputs and save what the part gets.

    Raises:
        OptionError: unknown or missing names, or outputs that do not follow from the inputs alone.
        CuvilError: the type of an input or output of the part is unknown (sequences), or ``data`` and the model does
            not run on the CPU.
        OutputError: ``output`` cannot be written.
    """
    if bool(nodes) == bool(inputs or outputs):
        raise OptionError("name either nodes (--node) or values (--inputs, --outputs)")
    source = load(path)
    model = source.model
    data_path = output.with_suffix(".npz") if data else None
    if output.resolve() in source.files or (data_path and data_path.resolve() in source.files):
        raise OutputError(f"{output}: is a file of the input model; choose another path")
    learn_shapes(model)
    if nodes:
        keep = _named_nodes(model.graph, nodes)
        entries, exits = _boundary(model.graph, keep)
    else:
        entries = [_value(model.graph, name) for name in inputs] or _inputs(model.graph)
        exits = [_value(model.graph, name) for name in outputs] or list(model.graph.outputs)
        keep, entries = _between(entries, exits)
    feeds = _run(model, entries) if data else None
    _cut(model, keep, entries, exits, feeds or {})
    write_model(model, output, source.files)
    if data_path is not None:
        arrays: Mapping[str, Any] = feeds or {}
        atomically(data_path, lambda file: _write_npz(file, arrays))
    return Extract(output, len(keep), [v.name or "" for v in entries], [v.name or "" for v in exits], data_path)


def _write_npz(file: IO[bytes], arrays: Mapping[str, Any]) -> None:
    """As numpy.savez, which cannot name an array like one of its own parameters, and pickles strings."""
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            stored = array.astype(np.str_) if array.dtype.kind == "O" else array
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, stored, allow_pickle=False)


def _inputs(graph: ir.Graph) -> list[ir.Value]:
    return [v for v in graph.inputs if not v.is_initializer()]


def _value(graph: ir.Graph, name: str) -> ir.Value:
    for value in graph.inputs:
        if value.name == name:
            return value
    for node in graph:
        for value in node.outputs:
            if value.name == name:
                return value
    raise OptionError(f"no value of the main graph is called {name!r}")


def _named_nodes(graph: ir.Graph, names: Sequence[str]) -> set[ir.Node]:
    keep: set[ir.Node] = set()
    for name in names:
        found = [n for n in graph if n.name == name or any(v.name == name for v in n.outputs)]
        if not found:
            inside = next((o for g, o in walk.all_graphs(graph) if o and any(n.name == name for n in g)), None)
            where = f": it is in a subgraph; extract {inside.name or op_name(inside)}, which holds it" if inside else ""
            raise OptionError(f"no node of the main graph is called {name!r}{where}")
        keep.update(found)
    return keep


def _reads(node: ir.Node) -> list[ir.Value]:
    """What a node reads from its own graph: inputs, and what its subgraphs capture."""
    values = [v for v in node.inputs if v is not None]
    for below in walk.subgraphs(node):
        for graph, _ in walk.all_graphs(below):
            values += [v for n in graph for v in n.inputs if v is not None and _home(v) is node.graph]
    return list(dict.fromkeys(values))


def _home(value: ir.Value) -> ir.Graph | ir.Function | None:
    producer = value.producer()
    return producer.graph if producer is not None else value.graph


def _is_weight(value: ir.Value) -> bool:
    return value.is_initializer() and value.const_value is not None


def _boundary(graph: ir.Graph, keep: set[ir.Node]) -> tuple[list[ir.Value], list[ir.Value]]:
    """The values that enter and leave; constants that the nodes read are kept too."""
    entries: dict[ir.Value, None] = {}
    for node in [n for n in graph if n in keep]:
        for value in _reads(node):
            producer = value.producer()
            if producer is not None and not producer.inputs and producer.op_type == "Constant":
                keep.add(producer)
            elif producer not in keep and not _is_weight(value):
                entries[value] = None
    owners = dict(walk.all_graphs(graph))
    exits = [
        v
        for n in graph
        if n in keep and n.op_type != "Constant"
        for v in n.outputs
        if v.name
        and (v.is_graph_output() or not walk.use_count(v) or any(_top(u, owners) not in keep for u in walk.users(v)))
    ]
    if not exits:
        raise OptionError("the named nodes compute nothing: all of them are constants")
    return list(entries), exits


def _top(node: ir.Node | None, owners: Owners) -> ir.Node | None:
    """The node of the main graph that is, or holds, ``node``."""
    while node is not None and isinstance(node.graph, ir.Graph) and owners.get(node.graph) is not None:
        node = owners[node.graph]
    return node


def _between(entries: Sequence[ir.Value], exits: Sequence[ir.Value]) -> tuple[set[ir.Node], list[ir.Value]]:
    """The nodes that compute ``exits`` from ``entries``, and the entries that they need."""
    keep: set[ir.Node] = set()
    used: set[ir.Value] = set()
    pending = list(exits)
    while pending:
        value = pending.pop()
        if value in entries:
            used.add(value)
            continue
        node = value.producer()
        if node is None:
            if not _is_weight(value):
                raise OptionError(f"the outputs need {value.name!r} too, which is not among the inputs")
        elif node not in keep:
            keep.add(node)
            pending += _reads(node)
    if not keep:
        raise OptionError("there is no node between these inputs and outputs")
    for value in exits:
        if value.producer() not in keep:
            raise OptionError(f"{value.name!r} is an input or a weight and cannot be an output")
    return keep, [v for v in entries if v in used]


def _run(model: ir.Model, entries: Sequence[ir.Value]) -> Arrays:
    """What ``entries`` are when the model runs on generated inputs."""
    size = sum(v.const_value.nbytes for v in model.graph.initializers.values() if v.const_value is not None)
    if size > PROTO_LIMIT:
        raise CuvilError("the model is larger than 2 GB and cannot be run here: leave out --data")
    proto = self_contained(model)
    given = {v.name for v in model.graph.inputs}
    inner = [v.name or "" for v in entries if v.name not in given]
    problem = "no inputs can be generated"
    try:
        session = verify.cpu_session(verify.exposing(proto, inner))
        names = inner or [session.get_outputs()[0].name]
        for feeds in verify.input_sets(proto, None):
            try:
                found = dict(zip(names, session.run(names, feeds), strict=True))
            except Exception as error:
                problem = str(error)
                continue
            arrays = {v.name or "": np.asarray(feeds.get(v.name or "", found.get(v.name or ""))) for v in entries}
            for name, array in arrays.items():
                if array.dtype == object:
                    raise CuvilError(f"{name!r} is no numeric tensor and cannot be saved: leave out --data")
            return arrays
    except CuvilError:
        raise
    except Exception as error:
        problem = str(error)
    raise CuvilError(f"the model does not run on generated inputs, so there is no data: {problem}")


def _cut(
    model: ir.Model, keep: set[ir.Node], entries: Sequence[ir.Value], exits: Sequence[ir.Value], data: Arrays
) -> None:
    """Leaves only ``keep`` in the model; ``entries`` become its inputs, ``exits`` its outputs."""
    graph = model.graph
    fresh = []
    for value in entries:
        array = data.get(value.name or "")
        if array is not None and (value.type is None or value.dtype == ir.DataType.UNDEFINED):
            value.type = ir.TensorType(ir.DataType.from_numpy(array.dtype))
        if array is not None and value.shape is None:
            value.shape = ir.Shape([None] * array.ndim)
        fresh.append(ir.Value(name=value.name, type=value.type, shape=value.shape))
    for value in (*fresh, *exits):
        if value.type is None:
            raise CuvilError(f"the type of {value.name!r} is unknown, so it cannot be an input or output")
    owners = dict(walk.all_graphs(graph))
    graph.outputs.clear()
    for old, new in zip(entries, fresh, strict=True):
        for user, index in list(old.uses()):
            if _top(user, owners) in keep:
                user.replace_input_with(index, new)
    dropped = [n for n in graph if n not in keep]
    for node in dropped:
        node.resize_inputs(0)
    graph.remove(dropped)
    graph.inputs.clear()
    graph.inputs.extend(fresh)
    graph.outputs.extend(exits)
    read = {v for n in keep for v in _reads(n)}
    for name, value in list(graph.initializers.items()):
        if value not in read:
            del graph.initializers[name]
    _drop_functions(model)


def _drop_functions(model: ir.Model) -> None:
    """Keeps the functions that the model calls, directly or from one another."""
    needed: set[tuple[str, str, str]] = set()
    pending = list(walk.all_nodes(model.graph))
    while pending:
        node = pending.pop()
        key = (node.domain, node.op_type, node.overload)
        if key in model.functions and key not in needed:
            needed.add(key)
            pending += [
                m for n in model.functions[key] for m in (n, *(i for g in walk.subgraphs(n) for i in walk.all_nodes(g)))
            ]
    for key in [k for k in model.functions if k not in needed]:
        del model.functions[key]
