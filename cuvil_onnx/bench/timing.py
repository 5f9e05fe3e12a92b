"""Timing of callables that return when their work is done."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

_BLOCK_S = 0.1


@dataclass(frozen=True)
class Timing:
    """Latencies in milliseconds, and runs per second over all of them."""

    p50: float
    p90: float
    p99: float
    runs: int
    runs_per_s: float


def measure(runs: Sequence[Callable[[], object]], budget_s: float = 3.0, least: int = 30) -> list[Timing]:
    """Calls each of ``runs`` for about ``budget_s`` seconds, at least ``least`` times, after a warm-up of a quarter.

    Several take turns in short blocks, so that whatever else the machine does meets all of them; the first call of a
    block is not counted, it finds the caches of another one.
    """
    samples: list[list[float]] = [[] for _ in runs]
    for run in runs:
        _block(run, budget_s / 4, 5)
    rounds = max(1, round(budget_s / _BLOCK_S)) if len(runs) > 1 else 1
    for _ in range(rounds):
        for run, times in zip(runs, samples, strict=True):
            times += _block(run, budget_s / rounds, -(-least // rounds) + 1)[1:]
    return [_summary(np.array(times) * 1e3) for times in samples]


def _block(run: Callable[[], object], budget_s: float, least: int) -> list[float]:
    times: list[float] = []
    end = time.perf_counter() + budget_s
    while len(times) < least or time.perf_counter() < end:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return times


def _summary(milliseconds: np.ndarray[tuple[int], np.dtype[np.float64]]) -> Timing:
    p50, p90, p99 = np.percentile(milliseconds, [50, 90, 99])
    total = float(milliseconds.sum())
    return Timing(float(p50), float(p90), float(p99), len(milliseconds), len(milliseconds) / (total / 1e3))
