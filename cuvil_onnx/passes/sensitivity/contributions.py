"""What each rounding contributes to the deviation, in as few runs as a limit allows.

Roundings are as good as independent, so the squares of what they cause add up. A group of neighbouring sites is
measured in one run with all others exact; the group that contributes most is halved, until every group is a single
site, contributes next to nothing, or the runs are used up.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Sequence

NEGLIGIBLE = 0.01
"""Share of the whole below which a group is not looked into."""

FIRST = 8
"""Sites of a group to begin with: most of a deep network contributes next to nothing, which few runs show."""


def contributions(sites: Sequence[int], measure: Callable[[Sequence[int]], float], runs: int) -> dict[int, float]:
    """The square that each site contributes.

    Args:
        sites: indices, in the order in which they happen.
        measure: runs with only these sites rounding and gives the square of the deviation.
        runs: how often ``measure`` may be called.

    Returns:
        For each site a square; sites of a group that was not divided share it equally. Empty without any run.
    """
    chunks = min(-(-len(sites) // FIRST), runs // 2)
    if not chunks:
        return {}
    bounds = [len(sites) * i // chunks for i in range(chunks + 1)]
    heap: list[tuple[float, int, int]] = []
    for begin, end in itertools.pairwise(bounds):
        heap.append((-measure(sites[begin:end]), begin, end))
    left = runs - chunks
    total = -sum(square for square, _, _ in heap)
    heapq.heapify(heap)
    done: list[tuple[float, int, int]] = []
    while heap:
        square, begin, end = heapq.heappop(heap)
        if end - begin == 1 or left < 2 or -square <= NEGLIGIBLE * total:
            done.append((square, begin, end))
            continue
        middle = (begin + end) // 2
        for part in ((begin, middle), (middle, end)):
            heapq.heappush(heap, (-measure(sites[part[0] : part[1]]), *part))
        left -= 2
    return {sites[i]: -square / (end - begin) for square, begin, end in done for i in range(begin, end)}
