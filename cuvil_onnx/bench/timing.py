"""Timing of a callable that returns when its work is done."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Timing:
    """Latencies in milliseconds, and runs per second over all of them."""

    p50: float
    p90: float
    p99: float
    runs: int
    runs_per_s: float


def measure(run: Callable[[], object], budget_s: float = 3.0, least: int = 30, most: int = 5000) -> Timing:
    """Calls ``run`` for about ``budget_s`` seconds, at least ``least`` times, after a warm-up of a quarter of that."""
    _repeat(run, budget_s / 4, 5, most)
    samples = np.array(_repeat(run, budget_s, least, most)) * 1e3
    p50, p90, p99 = np.percentile(samples, [50, 90, 99])
    return Timing(float(p50), float(p90), float(p99), len(samples), len(samples) / (samples.sum() / 1e3))


def _repeat(run: Callable[[], object], budget_s: float, least: int, most: int) -> list[float]:
    samples: list[float] = []
    end = time.perf_counter() + budget_s
    while len(samples) < least or (time.perf_counter() < end and len(samples) < most):
        start = time.perf_counter()
        run()
        samples.append(time.perf_counter() - start)
    return samples
