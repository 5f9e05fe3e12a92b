"""Accuracy of a 16-bit conversion: measured before it is done, and the few nodes that spoil it left in float32."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Collection, Iterable, Mapping, Sequence

import onnx_ir as ir

from cuvil_onnx.passes.precision_plan import Plan, plan_precision
from cuvil_onnx.passes.sensitivity.contributions import contributions
from cuvil_onnx.passes.sensitivity.deviation import PEAK, Deviation, Point, find_points
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

AIM = 0.5
"""The share of the target that nodes are kept for, once there is need to keep any. Other inputs may err by much more
than those that were measured: two photographs through an untrained MobileNetV3, 1.4e-3 and 1.5e-2."""

MAX_SLOWDOWN = 0.6
"""By how much the model may become slower, by estimate, where it keeps the GPU busy (float32 altogether makes it two
times slower and more)."""

SMALL_WORK = 1e8
"""Operations of a run up to which a GPU takes longer to start the kernels than to compute, in 16 bits or 32: such a
model stays in float32 as a whole when there is any doubt."""

CAREFUL = 0.3
"""The MARGIN of such models: the state of Silero's detector errs by 3e-3 for most sounds, by 4e-2 for some."""

DOUBTFUL = 1 / 3
FEW = 500
"""An error above this share of what may be, of outputs of fewer numbers than that, may be small by luck: what single
roundings do cancels in some inputs. Then the squares of all of them are added up, as if they never did. Two lines of
text through PP-OCR's classifier: 1.9e-3 measured, 5.4e-3 so expected, and 6.7e-3 the largest of a hundred others."""

WORTHWHILE = 0.67
"""When the target is out of reach: nodes are kept only if what is left of the error is no more than this share."""

GOALS = (2.0, 1.0, 0.5, 0.25, 0.12, 0.06)
"""Selections that are simulated, by what they leave of the squares, in shares of what the aim would allow if squares
added up exactly; they do not. The first one that is accurate is then made smaller, if that works. Where runs are
cheap, all selections between these are simulated."""

REFUSED = {ir.DataType.FLOAT16: 2e-2, ir.DataType.BFLOAT16: 7e-2}
"""What the comparison of the finished model may refuse: better a slow one, if no small part makes it accurate."""

CHECK_WORK, SEARCH_WORK = 5e10, 4e11
"""Limits of the first measurement (whose first set always runs) and of the search, in operations of the runs: some
seconds each on two CPU cores. Counted and not timed, so that the result does not depend on the speed of the machine."""

PATIENCE = 90.0
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
    inner = sum(len(graph) for graph in ctx.graphs if graph is not ctx.model.graph)
    found = _measure(ctx, target, plan, sites, points, sets, limit, start)
    if inner:
        told = f"{found.account}; " if found.account else ""
        found = dataclasses.replace(found, account=f"{told}the {inner} nodes in subgraphs stay in float32")
    return found


def _measure(
    ctx: GraphContext,
    target: ir.DataType,
    plan: Plan,
    sites: Sites,
    points: Sequence[Point],
    sets: Iterable[Feeds],
    limit: int,
    start: float,
) -> Finding:
    """See ``find_sensitive``, for the nodes of the main graph."""
    if not sites.all:
        return Finding()
    if not points:
        return Finding(account="not measured: no output changes smoothly with what is rounded")
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
        self._small = max(experiment.work) <= SMALL_WORK
        self._margin = CAREFUL if self._small else MARGIN

    def run(self) -> Finding:
        """The finding for the whole model."""
        excess = self._excess(self._before, self._margin)
        doubtful = DOUBTFUL < excess <= 1 and self._before.numbers < FEW
        squares = self._contributions() if excess > 1 or doubtful else {}
        if doubtful:
            likely = PEAK * math.sqrt(sum(squares.values()) / self._points)
            self._before = dataclasses.replace(self._before, relative=max(self._before.relative, likely))
            excess = self._excess(self._before, self._margin)
        if excess <= 1:
            return Finding(before=self._before, after=self._before, account=_tell(self._before))
        costs = self._experiment.costs()
        if self._small:
            return self._conclude(frozenset(range(len(self._sites.units))), Deviation(), costs, squares)
        if not squares:
            return self._conclude(frozenset(), self._before, costs, squares)
        kept, after = self._select(Selection(self._sites, squares, costs, MAX_SLOWDOWN))
        if self._excess(after, self._margin) > max(1.0, WORTHWHILE * excess):
            kept, after = frozenset(), self._before
        if after.relative > REFUSED[self._target]:
            most, better = self._select(Selection(self._sites, squares, costs, math.inf))
            if better.relative < after.relative:
                kept, after = most, better
        return self._conclude(kept, after, costs, squares)

    def _excess(self, found: Deviation, share: float) -> float:
        """How many times the deviation is what may be: a share of the target (logits are looked at closely enough)."""
        target = TARGET[self._target]
        return max(found.relative / (target * share), found.undecided / target)

    def _contributions(self) -> dict[int, float]:
        """The squares of all sites: over all sets where runs are cheap, else over the two worst ones, or the worst."""
        everything = range(len(self._sites.all))
        work = self._experiment.work
        chosen: Sequence[int] = range(len(work))
        for limit, most in ((CHECK_WORK, 2), (SEARCH_WORK, 1)):
            if 2 * len(everything) * sum(work[k] for k in chosen) > limit and len(chosen) > most:
                alone = {k: self._experiment.deviation(everything, [k]) for k in chosen}
                chosen = sorted(chosen, key=lambda k: (-self._excess(alone[k], self._margin), k))[:most]
        runs = int(SEARCH_WORK / sum(work[k] for k in chosen))

        def measure(group: Sequence[int]) -> float:
            if time.perf_counter() > self._deadline:
                return 0.0
            return self._experiment.deviation(group, chosen).square

        return contributions(everything, measure, min(runs, 2 * len(everything)))

    def _select(self, selection: Selection) -> tuple[frozenset[int], Deviation]:
        """The smallest of ever larger selections with which a simulation of the whole meets the aim.

        Where none does: the smallest that meets the target, else the best one that was seen.
        """
        allowed = selection.remaining() / self._excess(self._before, AIM) ** 2
        steps, left = [frozenset[int]()], [selection.remaining()]
        while left[-1] > GOALS[-1] * allowed and selection.step():
            steps.append(selection.filled())
            left.append(selection.remaining())
        seen = {0: self._before}

        def excess(index: int, share: float) -> float:
            if index not in seen:
                kept = self._consequence(steps[index])
                seen[index] = self._experiment.deviation(self._sites.active(kept))
            return self._excess(seen[index], share)

        last = len(steps) - 1
        stops = [next((i for i, square in enumerate(left) if square <= goal * allowed), last) for goal in GOALS]
        cheap = (last - stops[0]) * sum(self._experiment.work) <= CHECK_WORK
        for index in range(stops[0], last + 1) if cheap else stops:
            if excess(index, AIM) <= 1 or time.perf_counter() > self._deadline:
                break
        for share in (AIM, self._margin):
            good = min((i for i in seen if excess(i, share) <= 1), default=None)
            if good is None:
                continue
            bad = max(i for i in seen if i < good)
            while good - bad > 1 and time.perf_counter() < self._deadline:
                middle = (bad + good) // 2
                bad, good = (bad, middle) if excess(middle, share) <= 1 else (middle, good)
            return steps[good], seen[good]
        best = min(seen, key=lambda i: (self._excess(seen[i], self._margin), i))
        return steps[best], seen[best]

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
        elif sum(costs.slower[unit] for unit in kept) > MAX_SLOWDOWN and not self._small:
            warning = f"{flops} of the operations stay in float32, without which the error is {_tell(self._before)}"
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
