"""Constant folding (exact): operators whose inputs never change are run once, here.

The nodes of one round are run together by ONNX Runtime on the CPU without optimizations, so a folded value has the
bits that the CPU would compute at run time; without ONNX Runtime the (slow) reference evaluator of onnx does it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

from cuvil_onnx.passes.base import is_pure
from cuvil_onnx.rewrite import walk
from cuvil_onnx.rewrite.apply import replace_node
from cuvil_onnx.rewrite.graph import GraphContext
from cuvil_onnx.rewrite.trace import Trace

EXTRA_BYTES = 1 << 20
"""A result may be this much larger than the inputs that folding makes unnecessary (a small file must stay small)."""

SESSION_NODES = 2000
"""A session of ONNX Runtime takes time that grows with the square of its nodes."""

MAX_SINGLE_RETRIES = 256
"""When a session fails as a whole, at most this many of its nodes are tried one by one."""

NEVER = frozenset({"Constant", "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "Identity"})
"""Not folded: quantization is there to keep weights small, and an Identity on a constant carries a graph output."""

Results = dict[ir.Node, list[npt.NDArray[Any] | None]]
"""The outputs of each node that was run; None for one that only nodes of the same session read."""
ROUNDED_ELEMENTS = 1024
"""A Round of so many constants is left to the rule fake_quantized_constant: it is a weight trained to be quantized."""


_T = ir.DataType
NATIVE = frozenset(
    {
        *(_T.FLOAT, _T.DOUBLE, _T.FLOAT16, _T.BOOL),
        *(_T.INT8, _T.INT16, _T.INT32, _T.INT64, _T.UINT8, _T.UINT16, _T.UINT32, _T.UINT64),
    }
)
"""Element types that NumPy and ONNX Runtime exchange without loss."""


def fold_constants(ctx: GraphContext, trace: Trace) -> int:
    """One round; call again after shape inference until it returns 0."""
    nodes = _foldable(ctx) if ctx.opset() else []
    if not nodes:
        return 0
    results = _evaluate(nodes, ctx)
    folded = 0
    for node in reversed(nodes):  # readers first, so that what only folded nodes read is unused by now
        arrays = results.get(node)
        used = [bool(walk.use_count(v)) or v.is_graph_output() for v in node.outputs]
        if arrays is None or any(u and a is None for u, a in zip(used, arrays, strict=True)):
            continue
        values: list[ir.Value | None] = [
            ctx.initializer(array, output.name or "folded") if needed and array is not None else None
            for output, array, needed in zip(node.outputs, arrays, used, strict=True)
        ]
        if replace_node(node, (), values, ctx):
            folded += 1
    return folded


def _foldable(ctx: GraphContext) -> list[ir.Node]:
    """Nodes to run this round, in an order in which they can run."""
    chosen: list[ir.Node] = []
    members: set[ir.Node] = set()
    for graph in ctx.graphs:
        for node in graph:
            if _can_fold(node, members, ctx):
                chosen.append(node)
                members.add(node)
    return chosen


def _can_fold(node: ir.Node, members: set[ir.Node], ctx: GraphContext) -> bool:
    inputs = [v for v in node.inputs if v is not None]
    for value in inputs:  # first: this is what nearly all nodes fail
        if value.producer() not in members and not ctx.is_constant(value):
            return False
    if node.domain or node.op_type in NEVER or not is_pure(node) or not node.outputs:
        return False
    if not inputs and node.op_type != "ConstantOfShape":
        return False
    if node.op_type == "Round" and math.prod(ctx.static_shape(inputs[0]) or ()) >= ROUNDED_ELEMENTS:
        return False
    if any(ctx.dtype(v) not in NATIVE for v in inputs):
        return False
    size = _result_bytes(node, ctx)
    if size is None or size > EXTRA_BYTES + _freed_bytes(node, ctx):
        return False
    return not _may_trap(node, ctx)


def _result_bytes(node: ir.Node, ctx: GraphContext) -> int | None:
    """Bytes of all outputs; None when a type or shape is unknown or no plain tensor."""
    total = 0
    for value in node.outputs:
        if not (walk.use_count(value) or value.is_graph_output()):
            continue
        shape, dtype = ctx.static_shape(value), ctx.dtype(value)
        if shape is None or dtype not in NATIVE:
            return None
        total += int(math.prod(shape) * dtype.itemsize)
    return total


def _freed_bytes(node: ir.Node, ctx: GraphContext) -> int:
    """Bytes of the constants that only this node reads."""
    total = 0
    for value in dict.fromkeys(v for v in node.inputs if v is not None):
        tensor = ctx.tensor(value)
        if tensor is not None and not value.is_graph_output() and walk.use_count(value) == node.inputs.count(value):
            total += tensor.nbytes
    return total


def _may_trap(node: ir.Node, ctx: GraphContext) -> bool:
    """Integer division kills the process on 0 (and on the smallest integer by -1) instead of raising."""
    if node.op_type not in ("Div", "Mod"):
        return False
    dtype = ctx.dtype(node.outputs[0])
    if dtype is not None and dtype.is_floating_point():
        return False
    divisor = ctx.constant(node.inputs[1])
    return divisor is None or bool(np.isin(divisor, (0, -1)).any())


def _evaluate(nodes: Sequence[ir.Node], ctx: GraphContext) -> Results:
    """Runs the nodes, some at a time; those that cannot be run are missing from the result."""
    results: Results = {}
    known: dict[ir.Value, npt.NDArray[Any]] = {}
    for start in range(0, len(nodes), SESSION_NODES):
        part = nodes[start : start + SESSION_NODES]
        found = _evaluate_part(_runnable(part, known, ctx) if start else part, known, ctx)
        results.update(found)
        outputs = ((v, a) for n, arrays in found.items() for v, a in zip(n.outputs, arrays, strict=True))
        known.update((v, a) for v, a in outputs if a is not None)
    return results


def _runnable(nodes: Sequence[ir.Node], known: Mapping[ir.Value, npt.NDArray[Any]], ctx: GraphContext) -> list[ir.Node]:
    """Those that read nothing of earlier nodes that could not be run."""
    members: dict[ir.Node, None] = {}
    for node in nodes:
        if all(v is None or v in known or v.producer() in members or ctx.is_constant(v) for v in node.inputs):
            members[node] = None
    return list(members)


def _evaluate_part(nodes: Sequence[ir.Node], known: Mapping[ir.Value, npt.NDArray[Any]], ctx: GraphContext) -> Results:
    """Runs the nodes together, or those alone that read constants when that fails."""
    try:
        return _run(nodes, known, ctx)
    except Exception:
        if len(nodes) == 1:
            return {}
    results: Results = {}
    for node in nodes[:MAX_SINGLE_RETRIES]:
        if all(v is None or ctx.is_constant(v) for v in node.inputs):
            try:
                results.update(_run([node], known, ctx))
            except Exception:
                continue  # an operator that fails on these constants fails at run time too: it stays
    return results


def _run(nodes: Sequence[ir.Node], known: Mapping[ir.Value, npt.NDArray[Any]], ctx: GraphContext) -> Results:
    """Builds a model of just these nodes, with constants and what is known as inputs, and runs it."""
    members = set(nodes)
    names: dict[ir.Value, str] = {}
    feeds: dict[str, npt.NDArray[Any]] = {}
    infos: list[onnx.ValueInfoProto] = []
    protos: list[onnx.NodeProto] = []
    wanted: list[tuple[ir.Node, int, str]] = []
    outputs: list[onnx.ValueInfoProto] = []
    for node in nodes:
        inputs = []
        for value in node.inputs:
            if value is not None and value not in names:
                names[value] = f"v{len(names)}"
                array = known.get(value)
                if array is None:
                    tensor = ctx.tensor(value)
                    assert tensor is not None, "a folded node reads constants or earlier folded nodes"
                    array = np.asarray(tensor.numpy())
                feeds[names[value]] = array
                dtype = int(ctx.dtype(value) or 0)
                infos.append(onnx.helper.make_tensor_value_info(names[value], dtype, list(array.shape)))
            inputs.append("" if value is None else names[value])
        proto = ir.serde.serialize_node(node)
        del proto.input[:], proto.output[:], proto.metadata_props[:]
        proto.input.extend(inputs)
        for i, value in enumerate(node.outputs):
            needed = value.is_graph_output() or any(u not in members for u in walk.users(value))
            used = needed or bool(walk.use_count(value))
            names[value] = f"v{len(names)}" if used else ""
            proto.output.append(names[value])
            if needed:
                wanted.append((node, i, names[value]))
                dtype = int(ctx.dtype(value) or 0)
                outputs.append(onnx.helper.make_tensor_value_info(names[value], dtype, None))
        protos.append(proto)
    graph = onnx.helper.make_graph(protos, "fold", infos, outputs)
    opset = onnx.helper.make_opsetid("", ctx.opset())
    model = onnx.helper.make_model(graph, opset_imports=[opset], ir_version=ctx.model.ir_version)
    arrays = _session_run(model, [name for _, _, name in wanted], feeds)
    results: Results = {node: [None] * len(node.outputs) for node in nodes}
    for (node, i, _), result in zip(wanted, arrays, strict=True):
        results[node][i] = result
    return results


def _session_run(
    model: onnx.ModelProto, names: list[str], feeds: dict[str, npt.NDArray[Any]]
) -> list[npt.NDArray[Any]]:
    try:
        import onnxruntime as ort
    except ImportError:
        from onnx.reference import ReferenceEvaluator

        return [np.asarray(a) for a in ReferenceEvaluator(model).run(names, feeds)]
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return [np.asarray(a) for a in session.run(names, feeds)]
