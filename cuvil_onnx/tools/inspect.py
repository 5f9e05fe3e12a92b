"""``cuvil inspect``: what a model holds, as far as the file tells."""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import onnx_ir as ir

from cuvil_onnx.passes.cost import bytes_moved, flops
from cuvil_onnx.rewrite import walk
from cuvil_onnx.tools.read import learn_shapes, op_name, read, type_text


@dataclasses.dataclass(frozen=True)
class Facts:
    """What ``inspect`` found.

    Attributes:
        opsets: version by domain, ONNX's own as ``ai.onnx``.
        inputs, outputs: type and shape by name, as declared.
        nodes: nodes of the main graph; ``ops`` counts those of subgraphs too.
        subgraphs: the node that holds it and the number of nodes, for each.
        parameters: for each element type the number of tensors, elements and bytes.
        flops, bytes_moved: of one run of the main graph, of the nodes with known shapes.
        unknown_cost: nodes of the main graph whose shapes are unknown, or that run subgraphs.
        external: for each file of weights its bytes that are used, and whether it is there.
        unknown_ops: operators that the installed onnxruntime lacks; None when it is not installed.
    """

    model: str
    ir_version: int
    producer: str
    opsets: dict[str, int]
    functions: list[str]
    inputs: dict[str, str]
    outputs: dict[str, str]
    nodes: int
    ops: dict[str, int]
    subgraphs: list[dict[str, Any]]
    parameters: dict[str, dict[str, int]]
    flops: int
    bytes_moved: int
    unknown_cost: int
    external: dict[str, dict[str, Any]]
    unknown_ops: list[str] | None


def inspect(path: Path, dims: Mapping[str, int] | None = None) -> Facts:
    """Looks at the model in ``path``; ``dims`` gives free dimensions a size, so that costs become known.

    Raises:
        ModelLoadError, InvalidModelError: no readable model.
        OptionError: no input has a dimension of ``dims``.
    """
    model = read(path)
    graph = model.graph
    inputs, outputs = _types(v for v in graph.inputs if not v.is_initializer()), _types(graph.outputs)
    below = walk.all_graphs(graph)
    ops = collections.Counter(op_name(n) for inner, _ in below for n in inner)
    unknown = _unknown_ops(model)
    learn_shapes(model, dims)
    operations, moved = [flops(n) for n in graph], [bytes_moved(n) for n in graph]
    return Facts(
        model=str(path),
        ir_version=model.ir_version,
        producer=f"{model.producer_name or ''} {model.producer_version or ''}".strip(),
        opsets={domain or "ai.onnx": version for domain, version in graph.opset_imports.items()},
        functions=[f"{d}::{name}" + (f":{overload}" if overload else "") for d, name, overload in model.functions],
        inputs=inputs,
        outputs=outputs,
        nodes=len(graph),
        ops=dict(sorted(ops.items(), key=lambda item: (-item[1], item[0]))),
        subgraphs=[{"node": n.name or op_name(n), "op": op_name(n), "nodes": len(g)} for g, n in below if n],
        parameters=_parameters(below),
        flops=sum(f for f in operations if f),
        bytes_moved=sum(m for m in moved if m),
        unknown_cost=sum(f is None or m is None for f, m in zip(operations, moved, strict=True)),
        external=_external(below),
        unknown_ops=unknown,
    )


def _types(values: Iterable[ir.Value]) -> dict[str, str]:
    return {v.name or "": type_text(v) for v in values}


def _tensors(graphs: Iterable[tuple[ir.Graph, Any]]) -> list[ir.TensorProtocol]:
    return [v.const_value for g, _ in graphs for v in g.initializers.values() if v.const_value is not None]


def _parameters(graphs: Iterable[tuple[ir.Graph, Any]]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for tensor in _tensors(graphs):
        entry = found.setdefault(tensor.dtype.name.lower(), {"tensors": 0, "elements": 0, "bytes": 0})
        entry["tensors"] += 1
        entry["elements"] += math.prod(tensor.shape.numpy())
        entry["bytes"] += 0 if tensor.dtype == ir.DataType.STRING else tensor.nbytes
    return dict(sorted(found.items(), key=lambda item: -item[1]["bytes"]))


def _external(graphs: Iterable[tuple[ir.Graph, Any]]) -> dict[str, dict[str, Any]]:
    files: dict[str, dict[str, Any]] = {}
    for tensor in _tensors(graphs):
        if isinstance(tensor, ir.ExternalTensor):
            there = Path(tensor.path).is_file()
            files.setdefault(str(tensor.location), {"bytes": 0, "exists": there})["bytes"] += tensor.nbytes
    return files


def _unknown_ops(model: ir.Model) -> list[str] | None:
    from cuvil_onnx.passes.shapes import weightless_proto
    from cuvil_onnx.unknown_ops import unknown_ops

    try:
        return sorted(set(unknown_ops(weightless_proto(model))))
    except (ImportError, OSError):
        return None


def render(facts: Facts) -> str:
    """The facts for a terminal."""
    opsets = ", ".join(f"{domain} {version}" for domain, version in facts.opsets.items())
    lines = [facts.model, f"IR {facts.ir_version}, opsets {opsets}, producer {facts.producer or 'unnamed'}", ""]
    lines += [f"input   {name}: {kind}" for name, kind in facts.inputs.items()]
    lines += [f"output  {name}: {kind}" for name, kind in facts.outputs.items()]
    lines += ["", f"{facts.nodes} nodes; operators" + (", with subgraphs:" if facts.subgraphs else ":")]
    width = max(map(len, facts.ops), default=0)
    lines += [f"  {name:<{width}}  {count:>6}" for name, count in facts.ops.items()]
    lines += [f"subgraph of {s['node']} ({s['op']}): {s['nodes']} nodes" for s in facts.subgraphs]
    if facts.functions:
        lines.append(f"functions: {', '.join(facts.functions)}")
    lines.append("")
    for dtype, entry in facts.parameters.items():
        size = f"{entry['bytes'] / 1e6:.3f} MB"
        lines.append(f"parameters {dtype}: {entry['elements']} in {entry['tensors']} tensors, {size}")
    for name, file in facts.external.items():
        lines.append(f"external data {name}: {file['bytes']} bytes" + ("" if file["exists"] else ", file is missing"))
    lines.append(f"{facts.flops / 1e9:.4g} GFLOP and {facts.bytes_moved / 1e6:.4g} MB moved in one run")
    if facts.unknown_cost:
        lines.append(f"  without {facts.unknown_cost} nodes of unknown shape or with subgraphs (--dim NAME=SIZE helps)")
    lines += [f"not in the installed onnxruntime: {name}" for name in facts.unknown_ops or ()]
    return "\n".join(lines)
