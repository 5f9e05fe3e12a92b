"""Which units to keep in float32 so that enough of the deviation goes, at the least cost.

A rounding of a value goes only when everything that computes and reads it stays in float32; so neighbours are worth
more together, and gaps between kept units are filled when that saves casts.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence

import onnx_ir as ir

from cuvil_onnx.passes.sensitivity.sites import Site, Sites

LONGEST_GAP = 6
"""Units between two kept ones that may be filled at once."""

LEAST_GAIN = 0.02
"""Share of the remaining squares that a move must take away, unless it costs nothing."""

MAX_SITES = 200
"""Only so many sites, those that contribute most, are worth thinking about; it keeps large models fast."""


@dataclasses.dataclass(frozen=True)
class Costs:
    """What units cost.

    Attributes:
        flops, bytes: of each unit, as shares of all.
        slower: the share by which the model becomes slower when a unit stays in float32.
        cast: the same for one more cast.
    """

    flops: Sequence[float]
    bytes: Sequence[float]
    slower: Sequence[float]
    cast: float


class Selection:
    """Grows a set of units that stay in float32.

    ``limit`` is the share by which they may make the model slower.

    Attributes:
        kept: the units chosen so far.
    """

    def __init__(self, sites: Sites, squares: Mapping[int, float], costs: Costs, limit: float) -> None:
        self._sites = sites.all
        self._squares = squares
        self._costs = costs
        self._limit = limit
        self._at: list[list[int]] = [[] for _ in sites.units]
        for index, site in enumerate(sites.all):
            for unit in site.needs:
                self._at[unit].append(index)
        self._values: list[set[ir.Value]] = [
            {v for i in at if (v := sites.all[i].value) is not None} for at in self._at
        ]
        self._of: dict[ir.Value, list[Site]] = {}
        for site in sites.all:
            if site.value is not None:
                self._of.setdefault(site.value, []).append(site)
        self._worth = sorted(squares, key=lambda i: (-squares[i], i))[:MAX_SITES]
        self.kept: frozenset[int] = frozenset()

    def remaining(self) -> float:
        """The square that is left."""
        return sum(q for i, q in self._squares.items() if not self._sites[i].needs <= self.kept)

    def step(self) -> bool:
        """Adds the move that takes most away for what it costs; False when nothing useful fits under the limit."""
        left = self.remaining()
        best: tuple[float, float, tuple[int, ...]] | None = None
        for move in self._moves():
            gain, cost = self._gain(move), self._cost(move)
            if (gain < LEAST_GAIN * left and (cost > 0 or gain <= 0)) or not self._fits(move):
                continue
            # A move that saves casts costs nothing; among those the largest gain counts.
            rating = (gain / cost, gain, move) if cost > 0 else (float("inf"), gain, move)
            if best is None or rating[:2] > best[:2]:
                best = rating
        if best is None:
            return False
        self.kept |= set(best[2])
        return True

    def filled(self) -> frozenset[int]:
        """What is kept, gaps included whose filling costs less than the casts around them."""
        chosen = self.kept
        for move in list(self._gaps()):
            if not self.kept.issuperset(move) and self._fits(move) and self._cost(move) <= 0:
                self.kept |= set(move)
        chosen, self.kept = self.kept, chosen
        return chosen

    def _moves(self) -> Iterator[tuple[int, ...]]:
        """Single units, units with what is missing to spare one of their values, and gaps."""
        seen: set[tuple[int, ...]] = set()
        for index in self._worth:
            missing = tuple(sorted(self._sites[index].needs - self.kept))
            for move in (missing, *((u,) for u in missing)):
                if move and move not in seen:
                    seen.add(move)
                    yield move
        for move in self._gaps():
            if move not in seen:
                yield move

    def _gaps(self) -> Iterator[tuple[int, ...]]:
        order = sorted(self.kept)
        for before, after in itertools.pairwise(order):
            if 1 < after - before <= LONGEST_GAP + 1:
                yield tuple(range(before + 1, after))

    def _gain(self, move: Sequence[int]) -> float:
        then = self.kept | set(move)
        touched = {i for unit in move for i in self._at[unit]}
        return sum(self._squares.get(i, 0.0) for i in sorted(touched) if self._sites[i].needs <= then)

    def _cost(self, move: Sequence[int]) -> float:
        then = self.kept | set(move)
        values = {v for unit in move for v in self._values[unit]}
        casts = sum(self._casts(v, then) - self._casts(v, self.kept) for v in values)
        return sum(self._costs.slower[u] for u in move) + casts * self._costs.cast

    def _casts(self, value: ir.Value, kept: Collection[int]) -> bool:
        """Whether a value needs a cast: it is computed in one precision and read in the other."""
        sites = self._of[value]
        producer = sites[0].producer
        if producer is None or producer in kept:
            return any(site.reader is not None and site.reader not in kept for site in sites)
        return any(site.reader is None or site.reader in kept for site in sites)

    def _fits(self, move: Sequence[int]) -> bool:
        return sum(self._costs.slower[u] for u in self.kept | set(move)) <= self._limit
