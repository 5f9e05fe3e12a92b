"""A model with its inputs: what switching roundings on does to the outputs, and what a run costs."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import onnx_ir as ir

from cuvil_onnx.passes import cost
from cuvil_onnx.passes.precision_plan import FLOAT, Plan
from cuvil_onnx.passes.sensitivity.deviation import WORST, Array, Deviation, Point, deviation
from cuvil_onnx.passes.sensitivity.selection import Costs
from cuvil_onnx.passes.sensitivity.simulation import Simulation
from cuvil_onnx.passes.sensitivity.sites import Sites

BYTE_WORK, NODE_WORK = 10.0, 1e6
"""Operations for which a core could move one byte, and start one node with its switches."""

HALF_INTENSITY, FLOAT_INTENSITY = 200.0, 14.0
"""Operations in the time in which a byte is moved, with and without tensor cores (H200: 990 and 67 TFLOPS at
4.8 TB/s)."""

Feeds = Mapping[str, Any]


class Experiment:
    """Runs of one simulation over several sets of inputs.

    Attributes:
        work: of one run of each set, in operations.
        problem: why the last set that the model rejected was rejected.
    """

    def __init__(self, plan: Plan, sites: Sites, points: Sequence[Point], simulation: Simulation) -> None:
        self._plan = plan
        self._sites = sites
        self._points = points
        self._simulation = simulation
        self._probes = sum(p.logits is not None for p in points)
        self._feeds: list[Feeds] = []
        self._references: list[list[Array]] = []
        self._sizes: list[dict[ir.Value, tuple[int, ...]]] = []
        self.work: list[float] = []
        self.problem = "there are no inputs"

    def add(self, sets: Iterable[Feeds], limit: int, work: float) -> None:
        """Runs up to ``limit`` sets without rounding; after the first one only while ``work`` allows.

        Sets that the model rejects are passed over.
        """
        for feeds in sets:
            try:
                found, sizes = self._simulation.reference(feeds)
            except Exception as error:
                self.problem = " ".join(str(error).split())[:200]
                continue
            self._feeds.append(feeds)
            self._references.append(self._at_points(found))
            self._sizes.append(sizes)
            flops, moved = self._totals(sizes)
            self.work.append(sum(flops) + BYTE_WORK * sum(moved) + NODE_WORK * len(self._plan.half))
            if len(self._feeds) >= limit or sum(self.work) + self.work[-1] > work:
                break

    def deviation(self, active: Collection[int], chosen: Sequence[int] | None = None) -> Deviation:
        """Of the runs in which the sites in ``active`` round; ``chosen`` are the sets, all by default."""
        sets = range(len(self._feeds)) if chosen is None else chosen
        runs = []
        for k in sets:
            try:
                found = self._simulation.run(self._feeds[k], active)
            except Exception:  # an index or a size was computed from rounded numbers
                return Deviation(WORST, 0.0, WORST**2, 1)
            runs.append((self._references[k], self._at_points(found)))
        return deviation(self._points, runs)

    def costs(self) -> Costs:
        """Of the units, in the set that costs most."""
        flops, moved = self._totals(self._sizes[max(range(len(self.work)), key=self.work.__getitem__)])
        half = [max(f / HALF_INTENSITY, b / 2) for f, b in zip(flops, moved, strict=True)]
        full = [max(f / FLOAT_INTENSITY, b) for f, b in zip(flops, moved, strict=True)]
        slower = [(long - short) / (sum(half) or 1.0) for long, short in zip(full, half, strict=True)]
        # A cast is one more kernel beside those of the units, which counts when they are small.
        return Costs(_shares(flops), _shares(moved), slower, 1.0 / len(self._sites.units))

    def _at_points(self, found: Sequence[Array]) -> list[Array]:
        logits = iter(found[len(found) - self._probes :])
        return [next(logits) if p.output is None else found[p.output] for p in self._points]

    def _totals(self, sizes: Mapping[ir.Value, tuple[int, ...]]) -> tuple[list[float], list[float]]:
        """Operations and bytes of each unit."""

        def known(value: ir.Value | None) -> tuple[int, ...] | None:
            return sizes[value] if value is not None and value in sizes else cost.static_shape(value)

        flops = [sum(float(cost.flops(n, known) or 0) for n in nodes) for nodes in self._sites.units]
        moved = [self._bytes(nodes, known) for nodes in self._sites.units]
        return flops, moved

    def _bytes(self, nodes: Sequence[ir.Node], known: cost.Sizes) -> float:
        """What a kernel of these nodes reads and writes: a single node as is, of several what enters and leaves."""
        if len(nodes) == 1:
            return float(cost.bytes_moved(nodes[0], known) or 0)
        made = {v for node in nodes for v in node.outputs}
        inside = {v for v in made if not v.is_graph_output() and all(u in nodes for u in v.consumers())}
        read = {v for node in nodes for v in node.inputs if v is not None} - made
        sizes = [known(value) for value in (*read, *(made - inside))]
        return float(sum(FLOAT.itemsize * math.prod(size) for size in sizes if size is not None))


def _shares(amounts: Sequence[float]) -> list[float]:
    total = sum(amounts) or 1.0
    return [amount / total for amount in amounts]
