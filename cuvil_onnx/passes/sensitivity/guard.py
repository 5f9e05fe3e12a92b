"""Accuracy of a 16-bit conversion: measured before it is done, and the few nodes that spoil it left in float32."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Collection, Iterable, Mapping, Sequence

import onnx_ir as ir

from cuvil_onnx.passes.precision_plan import plan_precision
from cuvil_onnx.passes.sensitivity.contributions import contributions
from cuvil_onnx.passes.sensitivity.deviation import PEAK, Deviation, find_points
from cuvil_onnx.passes.sensitivity.experiment import Experiment, Feeds
from cuvil_onnx.passes.sensitivity.selection import Costs, Selection
from cuvil_onnx.passes.sensitivity.simulation import Simulation
from cuvil_onnx.passes.sensitivity.sites import Sites, find_sites
from cuvil_onnx.rewrite.graph import GraphContext

TARGET = {ir.DataType.FLOAT16: 5e-3, ir.DataType.BFLOAT16: 4e-2}
"""Allowed error, relative to the largest magnitude of each output; bf16 has three bits less."""

MARGIN = 0.7
"""The share of the target that the simulation may use. The GPU sums in another order, so that some numbers are rounded
the other way: of two simulations that differ in that alone the largest errors differ by up to a quarter (PP-OCR's
classifier, 24 inputs: 5.3e-3 and 6.7e-3). That other inputs weigh roundings otherwise is what PEAK allows for."""

MAX_SLOWDOWN = 0.25
"""By how much the model may become slower, by estimate, where it keeps the GPU busy (float32 altogether makes it two
times slower and more). Small models are slower by the casts alone."""

DOUBTFUL = 1 / 3
FEW = 500
"""An error above this share of what may be, of outputs of fewer numbers than that, may be small by luck: what single
roundings do cancels in some inputs. Then the squares of all of them are added up, as if they never did. Two lines of
text through PP-OCR's classifier: 1.9e-3 measured, 5.4e-3 so expected, and 6.7e-3 the largest of a hundred others."""

WORTHWHILE = 0.67
"""When the target is out of reach: nodes are kept only if what is left of the error is no more than this share."""

ROUNDS = 6
"""Selections tried, each confirmed by a simulation of the whole."""

BIGGEST_STEP = 0.05
"""A selection aims at no less than this share of the squares: beside an overflow all else looks like nothing."""

CHECK_WORK, SEARCH_WORK = 5e10, 4e11
"""Limits of the first measurement (whose first set always runs) and of the search, in operations of the runs: some
seconds each on two CPU cores. Counted and not timed, so that the result does not depend on the speed of the machine."""

PATIENCE = 30.0
"""Seconds after which the search ends all the same, on a machine that is much slower."""

MAX_SITES = 4000
"""Above, the session alone takes longer to make than all else: such a model is not measured."""

MAX_GIVEN_SETS = 16
"""Of inputs that the user gives, so many are measured when the work allows."""


@dataclasses.dataclass(frozen=True)
class Finding:
    """What was found.

    Attributes:
        keep: names of the values whose nodes are to stay in float32.
        before, after: the deviation without and with them; None when nothing could be measured.
        account: one line for the report; empty when there is nothing to tell.
        warning: for the report, when the target is missed.
        reasons: a node of each unit that is kept, and why.
    """

    keep: frozenset[str] = frozenset()
    before: Deviation | None = None
    after: Deviation | None = None
    account: str = ""
    warning: str = ""
    reasons: tuple[tuple[ir.Node, str], ...] = ()


def find_sensitive(
    ctx: GraphContext, target: ir.DataType, swallowed: Collection[str], sets: Iterable[Feeds], limit: int
) -> Finding:
    """Measures what converting the model of ``ctx`` to ``target`` does to its outputs, and which nodes to leave out.

    Args:
        ctx: the float32 model as the conversion will get it; not changed.
        target: FLOAT16 or BFLOAT16.
        swallowed: names of values that will not leave a fused kernel.
        sets: inputs, smaller ones first; those that the model rejects are passed over.
        limit: how many of them to measure.
    """
    start = time.perf_counter()
    plan = plan_precision(ctx, target)
    sites = find_sites(ctx, plan, target, swallowed)
    points = find_points(ctx, sites)
    if not sites.all or not points:
        return Finding()
    if len(sites.all) > MAX_SITES:
        return Finding(account=f"not measured: {len(sites.all)} roundings, {MAX_SITES} at most")
    probes = [point.logits for point in points if point.logits is not None]
    try:
        experiment = Experiment(plan, sites, points, Simulation(ctx, plan, sites, target, probes))
    except Exception as error:
        return Finding(account=f"not measured: {' '.join(str(error).split())[:200]}")
    experiment.add(sets, limit, CHECK_WORK)
    if not experiment.work:
        return Finding(account=f"not measured: {experiment.problem}")
    before = experiment.deviation(range(len(sites.all)))
    search = _Search(ctx, target, sites, experiment, before, len(points), start + PATIENCE)
    return search.run()


class _Search:
    """The search for units to keep, when there is need for any."""

    def __init__(
        self,
        ctx: GraphContext,
        target: ir.DataType,
        sites: Sites,
        experiment: Experiment,
        before: Deviation,
        points: int,
        deadline: float,
    ) -> None:
        self._ctx = ctx
        self._target = target
        self._sites = sites
        self._experiment = experiment
        self._before = before
        self._points = points
        self._deadline = deadline

    def run(self) -> Finding:
        """The finding for the whole model."""
        excess = self._excess(self._before)
        doubtful = DOUBTFUL < excess <= 1 and self._before.numbers < FEW
        squares = self._contributions() if excess > 1 or doubtful else {}
        if doubtful:
            likely = PEAK * math.sqrt(sum(squares.values()) / self._points)
            self._before = dataclasses.replace(self._before, relative=max(self._before.relative, likely))
            excess = self._excess(self._before)
        if excess <= 1:
            return Finding(before=self._before, after=self._before, account=_tell(self._before))
        costs = self._experiment.costs()
        selection = Selection(self._sites, squares, costs, MAX_SLOWDOWN)
        kept, after = self._select(selection, excess, sum(squares.values()))
        if self._excess(after) > max(1.0, WORTHWHILE * excess):
            kept, after = frozenset(), self._before
        return self._conclude(kept, after, costs, squares)

    def _excess(self, found: Deviation) -> float:
        """How many times the deviation is what may be, margins included."""
        target = TARGET[self._target]
        return max(found.relative / (target * MARGIN), found.undecided / target)

    def _contributions(self) -> dict[int, float]:
        """The squares of all sites, over all sets when the limit allows for that, else over the worst one."""
        everything = range(len(self._sites.all))
        work = self._experiment.work
        chosen: Sequence[int] = range(len(work))
        if 2 * len(everything) * sum(work) > SEARCH_WORK and len(work) > 1:
            worst = max(chosen, key=lambda k: self._experiment.deviation(everything, [k]).square)
            chosen = [worst]
        runs = int(SEARCH_WORK / sum(work[k] for k in chosen))

        def measure(group: Sequence[int]) -> float:
            if time.perf_counter() > self._deadline:
                return 0.0
            return self._experiment.deviation(group, chosen).square

        return contributions(everything, measure, min(runs, 2 * len(everything)))

    def _select(self, selection: Selection, excess: float, total: float) -> tuple[frozenset[int], Deviation]:
        """Grows the selection until a simulation of the whole meets the goal; the best one that was seen."""
        best: tuple[float, frozenset[int], Deviation] = (excess, frozenset(), self._before)
        remaining = total
        for _ in range(ROUNDS):
            known = selection.kept
            grown = selection.grow(remaining * max(0.9 / excess**2, BIGGEST_STEP))
            if selection.kept == known:
                break
            kept = self._consequence(selection.kept)
            after = self._experiment.deviation(self._sites.active(kept))
            excess = self._excess(after)
            if excess < best[0]:
                best = (excess, selection.kept, after)
            if excess <= 1 or not grown or time.perf_counter() > self._deadline:
                break
            remaining = selection.remaining()
        return best[1:]

    def _consequence(self, kept: Collection[int]) -> set[int]:
        """The units of which everything stays in float32 when the given ones do: cheap readers follow."""
        plan = plan_precision(self._ctx, self._target, self._names(kept))
        return {u for u, nodes in enumerate(self._sites.units) if not any(node in plan.half for node in nodes)}

    def _names(self, kept: Collection[int]) -> frozenset[str]:
        nodes = (node for unit in kept for node in self._sites.units[unit])
        return frozenset(value.name for node in nodes for value in node.outputs if value.name)

    def _conclude(self, kept: frozenset[int], after: Deviation, costs: Costs, squares: Mapping[int, float]) -> Finding:
        account = _tell(self._before)
        if kept:
            flops, size = (f"{100 * sum(share[u] for u in kept):.1f} %" for share in (costs.flops, costs.bytes))
            count = sum(len(self._sites.units[unit]) for unit in kept)
            account = (
                f"{_tell(after)} with {count} nodes kept in float32 ({flops} of the operations, {size} of the bytes), "
                f"{account} without"
            )
        target, warning = TARGET[self._target], ""
        if max(after.relative, after.undecided) > target:
            late = time.perf_counter() > self._deadline
            rest = "even so" if kept else "and " + ("the search took too long" if late else "no small part is to blame")
            warning = f"expected error {_tell(after)}, more than {target:g} {rest}; precision='fp32' has no such error"
        total = sum(squares.values()) or 1.0
        reasons = []
        for unit in sorted(kept):
            own = sum(q for i, q in squares.items() if unit in self._sites.all[i].needs <= kept)
            reasons.append(
                (self._sites.units[unit][0], f"kept in float32: {100 * own / total:.1f} % of the squared error is here")
            )
        return Finding(self._names(kept), self._before, after, account, warning, tuple(reasons))


def _tell(found: Deviation) -> str:
    text = f"{found.relative:.1e} of the largest output"
    return text + (f" ({found.undecided:.1e} between two equal classes)" if found.undecided else "")
