"""What ``optimize`` did: counts before and after, which rewrites fired, which nearly did, and how long it took."""

from __future__ import annotations

import collections
import dataclasses
import os
from pathlib import Path
from typing import Any

import onnx_ir as ir

from cuvil_onnx.passes.write import atomically
from cuvil_onnx.quantize.summary import Summary
from cuvil_onnx.rewrite import walk
from cuvil_onnx.rewrite.trace import Refused, Trace

MAX_OPS_SHOWN = 30


@dataclasses.dataclass(frozen=True)
class Stats:
    """Sizes of one model.

    Attributes:
        nodes: top-level nodes.
        all_nodes: nodes including those of subgraphs.
        ops: nodes (including subgraphs) per operator.
        parameters: elements of all initializers.
        parameter_bytes: bytes of all initializers.
    """

    nodes: int
    all_nodes: int
    ops: dict[str, int]
    parameters: int
    parameter_bytes: int


def collect(model: ir.Model) -> Stats:
    """Counts a model."""
    ops: collections.Counter[str] = collections.Counter()
    tensors: list[ir.TensorProtocol] = []
    for graph, _ in walk.all_graphs(model.graph):
        ops.update(f"{n.domain}::{n.op_type}" if n.domain else n.op_type for n in graph)
        tensors += [v.const_value for v in graph.initializers.values() if v.const_value is not None]
    elements, size = sum(t.size for t in tensors), sum(t.nbytes for t in tensors)
    return Stats(len(model.graph), ops.total(), dict(sorted(ops.items())), elements, size)


@dataclasses.dataclass
class Report:
    """The account of one ``optimize``.

    Attributes:
        before, after: sizes.
        trace: rewrites that fired, near misses with reasons, the measured accuracy of 16 bits and the values kept in
            float32 for it, warnings, seconds per step.
        verification: one line: what was compared and the result, or why nothing was.
        quantization: what was quantized; None when that was not asked for.
    """

    before: Stats
    after: Stats
    trace: Trace
    verification: str = ""
    quantization: Summary | None = None

    def table(self) -> str:
        """Operators, nodes and parameters before and after, as text."""
        rows = [("", "before", "after")]
        names = sorted({*self.before.ops, *self.after.ops}, key=lambda n: (-self.before.ops.get(n, 0), n))
        for name in names[:MAX_OPS_SHOWN]:
            rows.append((name, str(self.before.ops.get(name, 0)), str(self.after.ops.get(name, 0))))
        if len(names) > MAX_OPS_SHOWN:
            rows.append((f"... {len(names) - MAX_OPS_SHOWN} more", "", ""))
        rows.append(("all nodes", str(self.before.all_nodes), str(self.after.all_nodes)))
        rows.append(("parameters MB", _megabytes(self.before), _megabytes(self.after)))
        widths = [max(len(row[i]) for row in rows) for i in range(3)]
        lines = [f"{a:<{widths[0]}}  {b:>{widths[1]}}  {c:>{widths[2]}}" for a, b, c in rows]
        lines.insert(1, "-" * len(lines[0]))
        lines.insert(-2, "-" * len(lines[0]))
        fired = ", ".join(f"{name} {count}" for name, count in sorted(self.trace.counts.items()))
        lines.append(f"rewrites: {fired or 'none'}")
        if self.trace.accuracy:
            lines.append(f"accuracy: {self.trace.accuracy}")
        if self.verification:
            lines.append(f"verified: {self.verification}")
        lines.extend(f"warning: {message}" for message in self.trace.warnings)
        if self.quantization is not None:
            lines += ["", self.quantization.table()]
        return "\n".join(lines)

    def explain(self) -> str:
        """Every rewrite with the nodes it replaced, then every near miss with its reason."""
        lines = []
        for fired in self.trace.fired:
            if fired.nodes:
                made = ", ".join(fired.result) or "nothing"
                lines.append(
                    f"{fired.rule} ({fired.exactness.value}): {', '.join(fired.nodes)} -> {made} {fired.shape}"
                )
        lines.extend(
            f"not {r.rule} at {r.node}: {r.reason}" + (f" ({r.culprit})" if r.culprit else "")
            for r in self.near_misses()
        )
        return "\n".join(lines)

    def near_misses(self) -> list[Refused]:
        """Rewrites that did not happen although the pattern is there.

        A rule that was refused at a node and later, when the graph around it had changed, took it is no near miss.
        """
        done = {(fired.rule, name) for fired in self.trace.fired for name in fired.nodes}
        return [refused for refused in self.trace.refused if (refused.rule, refused.node) not in done]

    def save_html(self, path: str | os.PathLike[str], title: str = "") -> Path:
        """Writes the report as one page that needs neither a server nor other files, completely or not at all.

        Raises:
            OutputError: the folder cannot be written, or the disk is full.
        """
        from cuvil_onnx.tools.page import render

        target = Path(path)
        atomically(target, lambda file: file.write(render(self, title).encode("utf-8", "replace")))
        return target

    def as_dict(self) -> dict[str, Any]:
        """The whole report as plain data, for JSON."""
        return {
            "before": dataclasses.asdict(self.before),
            "after": dataclasses.asdict(self.after),
            "fired": [dataclasses.asdict(f) for f in self.trace.fired],
            "counts": dict(sorted(self.trace.counts.items())),
            "refused": [dataclasses.asdict(r) for r in self.trace.refused],
            "warnings": list(self.trace.warnings),
            "seconds": {k: round(v, 4) for k, v in self.trace.seconds.items()},
            "accuracy": self.trace.accuracy,
            "kept_in_float32": sorted(self.trace.kept),
            "verification": self.verification,
            "quantization": None if self.quantization is None else self.quantization.as_dict(),
        }

    def __str__(self) -> str:
        return self.table()


def _megabytes(stats: Stats) -> str:
    return f"{stats.parameter_bytes / 1e6:.2f}"
