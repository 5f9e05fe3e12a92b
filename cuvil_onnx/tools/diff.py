"""``cuvil diff``: what differs between two models, and whether they compute the same."""

from __future__ import annotations

import collections
import dataclasses
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from cuvil_onnx import verify
from cuvil_onnx.errors import CuvilError
from cuvil_onnx.passes.load import check_external, load
from cuvil_onnx.passes.write import PROTO_LIMIT, self_contained
from cuvil_onnx.rewrite import walk
from cuvil_onnx.tools.read import op_name, read, type_text

MAX_NAMES = 20
"""Names shown per list in text; JSON has all."""


@dataclasses.dataclass(frozen=True)
class Difference:
    """Everything that differs; pairs are (a, b), None for what one model lacks.

    Attributes:
        versions: "IR" and opset versions by domain.
        nodes: nodes of the main graph, of both (also when equal).
        ops: operator counts.
        interface: types and shapes of inputs and outputs, by "input NAME" or "output NAME".
        added, removed: initializers only in b, only in a.
        changed: initializers whose element type, shape or bytes differ, with what differs.
        outputs: with ``--run``: for each output its largest absolute difference, relative to the largest value.
        runs: input sets that were compared; None when nothing was run.
    """

    versions: dict[str, tuple[int | None, int | None]]
    nodes: tuple[int, int]
    ops: dict[str, tuple[int, int]]
    interface: dict[str, tuple[str | None, str | None]]
    added: list[str]
    removed: list[str]
    changed: dict[str, str]
    outputs: dict[str, float] | None = None
    runs: int | None = None

    def same(self) -> bool:
        """Whether nothing but the order of things may differ; attributes of nodes are not looked at."""
        return not (self.versions or self.ops or self.interface or self.added or self.removed or self.changed)


def diff(a: Path, b: Path, run: bool = False) -> Difference:
    """Compares two models.

    Raises:
        ModelLoadError, InvalidModelError: no readable model, or its weights are missing.
        CuvilError: ``run`` is impossible: the models' inputs differ, or one does not run on the CPU.
    """
    first, second = read(a), read(b)
    check_external(first)
    check_external(second)
    weights, others = _initializers(first), _initializers(second)
    both = [name for name in weights if name in others]
    found = Difference(
        versions=_pairs(_versions(first), _versions(second)),
        nodes=(len(first.graph), len(second.graph)),
        ops={k: (x or 0, y or 0) for k, (x, y) in _pairs(_ops(first), _ops(second)).items()},
        interface=_pairs(_interface(first), _interface(second)),
        added=[name for name in others if name not in weights],
        removed=[name for name in weights if name not in others],
        changed={n: how for n in both if (how := _tensor_difference(weights[n], others[n]))},
    )
    if not run:
        return found
    outputs, runs = compare_outputs(a, b)
    return dataclasses.replace(found, outputs=outputs, runs=runs)


def _pairs(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    return {key: (a.get(key), b.get(key)) for key in dict.fromkeys((*a, *b)) if a.get(key) != b.get(key)}


def _versions(model: ir.Model) -> dict[str, int]:
    opsets = {f"opset {domain or 'ai.onnx'}": version for domain, version in model.graph.opset_imports.items()}
    return {"IR": model.ir_version, **opsets}


def _ops(model: ir.Model) -> dict[str, int]:
    return dict(sorted(collections.Counter(op_name(n) for n in walk.all_nodes(model.graph)).items()))


def _interface(model: ir.Model) -> dict[str, str]:
    inputs = {f"input {v.name}": type_text(v) for v in model.graph.inputs if not v.is_initializer()}
    return {**inputs, **{f"output {v.name}": type_text(v) for v in model.graph.outputs}}


def _initializers(model: ir.Model) -> dict[str, ir.TensorProtocol]:
    """By name; those of subgraphs with the name of the node that holds the subgraph."""
    found = {}
    for graph, holder in walk.all_graphs(model.graph):
        for name, value in graph.initializers.items():
            if value.const_value is not None:
                found[f"{holder.name}/{name}" if holder else name] = value.const_value
    return found


def _tensor_difference(a: ir.TensorProtocol, b: ir.TensorProtocol) -> str:
    """Bit for bit: +0 is not -0, and a NaN equals itself."""
    kinds = [f"{t.dtype.name.lower()}{list(t.shape.numpy())}" for t in (a, b)]
    if kinds[0] != kinds[1]:
        return f"{kinds[0]} -> {kinds[1]}"
    if a.dtype == ir.DataType.STRING:
        return "" if np.array_equal(a.numpy(), b.numpy()) else "values"
    x, y = (np.frombuffer(t.tobytes(), np.uint8) for t in (a, b))
    if np.array_equal(x, y):
        return ""
    largest = ""
    if np.asarray(a.numpy()).dtype.kind in "iuf":
        with np.errstate(all="ignore"):
            largest = f", largest {np.nanmax(np.abs(a.numpy().astype(np.float64) - b.numpy().astype(np.float64))):.3g}"
    width = max(1, int(a.dtype.itemsize))
    return f"{int(np.any((x != y).reshape(-1, width), axis=1).sum())} of {x.size // width} elements{largest}"


def compare_outputs(a: Path, b: Path) -> tuple[dict[str, float], int]:
    """Runs both models on generated inputs on ONNX Runtime's CPU.

    Returns:
        for each output of a the largest difference relative to its largest value (infinite where types, shapes, NaN
        or infinities differ), and the number of input sets.
    """
    protos = [self_contained_file(path) for path in (a, b)]
    try:
        sessions = [verify.cpu_session(proto) for proto in protos]
    except Exception as error:
        raise CuvilError(f"a model cannot be run: {error}") from error
    names = [o.name for o in sessions[0].get_outputs()]
    worst = dict.fromkeys(names, 0.0)
    start, compared, problem = time.perf_counter(), 0, "no inputs can be generated"
    for feeds in verify.input_sets(protos[0], None):
        if compared >= verify.INPUT_SETS or (compared and time.perf_counter() - start > verify.BUDGET_SECONDS):
            break
        try:
            results = [session.run(names, feeds) for session in sessions]
        except Exception as error:
            problem = str(error)
            continue
        for name, want, got in zip(names, *results, strict=True):
            worst[name] = max(worst[name], relative_difference(got, want))
        compared += 1
    if not compared:
        raise CuvilError(f"the models do not both run on generated inputs: {problem}")
    return worst, compared


def relative_difference(got: Any, want: Any) -> float:
    """max|got - want| / max|want|; infinite where the two cannot be compared by numbers."""
    if not verify.compare(got, want, verify.EXACT):
        return 0.0
    x, y = np.asarray(got, dtype=None), np.asarray(want)
    if x.dtype != y.dtype or x.shape != y.shape or y.dtype.kind not in "iufb" or not y.size:
        return float("inf")
    x, y = x.astype(np.float64), y.astype(np.float64)
    finite = np.isfinite(y)
    if not np.array_equal(x[~finite], y[~finite], equal_nan=True) or not np.isfinite(x[finite]).all():
        return float("inf")
    error, scale = np.abs(x[finite] - y[finite]).max(), np.abs(y[finite]).max()
    return float(error / scale) if scale else float("inf" if error else 0.0)


def self_contained_file(path: Path) -> Any:
    """The checked model as one proto with its weights; CuvilError when it is too large for that."""
    model = load(path).model
    size = sum(v.const_value.nbytes for v in model.graph.initializers.values() if v.const_value is not None)
    if size > PROTO_LIMIT:
        raise CuvilError(f"{path}: is larger than 2 GB and cannot be run here")
    return self_contained(model)


def render(found: Difference) -> str:
    """The difference for a terminal."""
    lines = [f"{name}: {x or 'none'} -> {y or 'none'}" for name, (x, y) in found.versions.items()]
    lines += [f"{name}: {x or 'absent'} -> {y or 'absent'}" for name, (x, y) in found.interface.items()]
    if found.ops:
        lines.append(f"nodes: {found.nodes[0]} -> {found.nodes[1]}")
        lines += [f"  {name}: {x} -> {y}" for name, (x, y) in found.ops.items()]
    for title, names in (("added", found.added), ("removed", found.removed)):
        lines += _list(f"initializers {title}", names)
    lines += _list("initializers changed", [f"{name} ({how})" for name, how in found.changed.items()])
    if found.same():
        lines.append("same versions, operators, interface and weights")
    if found.outputs is not None:
        lines.append(f"outputs over {found.runs} input sets, largest difference relative to the largest value:")
        lines += [f"  {name}: {value:.3g}" for name, value in found.outputs.items()]
    return "\n".join(lines)


def _list(title: str, names: Iterable[str]) -> list[str]:
    names = list(names)
    if not names:
        return []
    more = [f"  ... {len(names) - MAX_NAMES} more"] if len(names) > MAX_NAMES else []
    return [f"{title}: {len(names)}", *(f"  {name}" for name in names[:MAX_NAMES]), *more]
