"""What stock ONNX Runtime passes of onnx's node cases, and what CuvilExecutionProvider takes and gets right."""

from __future__ import annotations

import os
import re
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.conformance.cases import cases
from tests.conformance.workers import run_all

RIGHT = "right"


@dataclass
class Survey:
    """Results by name of the case."""

    stock: dict[str, str]  # RIGHT, or what stock ONNX Runtime does wrong
    refusals: dict[str, list[tuple[str, str]]] = field(default_factory=dict)  # (op, reason) where a node is not taken
    errors: dict[str, str] = field(default_factory=dict)  # a model that neither is taken nor has such nodes
    results: dict[str, str | None] = field(default_factory=dict)  # of the others: RIGHT, what is wrong, None: not run
    as_given: set[str] = field(default_factory=set)  # models that ONNX Runtime loads without lowering their versions

    @property
    def claimed(self) -> list[str]:
        """Cases whose every node the provider takes, of those that stock passes."""
        return [n for n in self.results if self.stock[n] == RIGHT]

    @property
    def right(self) -> list[str]:
        return [n for n in self.claimed if self.results[n] == RIGHT]

    @property
    def stock_pass(self) -> list[str]:
        return [n for n, verdict in self.stock.items() if verdict == RIGHT]

    def failures(self) -> list[str]:
        """One line for each case that stock passes, the provider takes and gets wrong."""
        wrong = [f"{n}: {self.results[n]}" for n in self.claimed if self.results[n] not in (RIGHT, None)]
        return wrong + [f"{n}: no session: {e}" for n, e in self.errors.items() if self.stock[n] == RIGHT]

    def shared_failures(self) -> list[str]:
        """One line for each case that neither stock nor the provider gets right, though both take it."""
        taken = [n for n, result in self.results.items() if result not in (RIGHT, None) and self.stock[n] != RIGHT]
        return [f"{n}: {self.results[n]} (stock: {self.stock[n]})" for n in taken]

    def gaps(self) -> list[tuple[int, int, str, list[str]]]:
        """(cases that wait for this alone, cases that wait for it, cause, cases), the most valuable first."""
        waiting: dict[str, list[str]] = defaultdict(list)
        alone: dict[str, int] = defaultdict(int)
        for name, refused in self.refusals.items():
            if self.stock[name] != RIGHT:
                continue
            causes = {f"{op}: {re.sub(r' at [0-9]+', '', reason)}" for op, reason in refused}
            for cause in causes:
                waiting[cause].append(name)
                alone[cause] += len(causes) == 1
        return sorted(
            ((alone[c], len(names), c, names) for c, names in waiting.items()), key=lambda g: (-g[0], -g[1], g[2])
        )


def survey(names: Sequence[str], compute: bool, jobs: int | None = None) -> Survey:
    """Runs the cases; `compute`: also on the provider, which else only says what it takes.

    The library is that of CUVIL_CONFORMANCE_LIBRARY, else the installed one. Nothing may have loaded ONNX Runtime or
    CUDA in this process, since it forks.
    """
    jobs = jobs or min(8, os.cpu_count() or 1)
    cases()  # once, before the forks
    found = Survey(run_all(names, _on_stock, jobs))
    ours = run_all(names, _compute if compute else _place, jobs)
    for name in names:
        outcome = ours[name]
        if isinstance(outcome, str):  # it crashed
            found.results[name] = outcome
            continue
        if outcome["as_given"]:
            found.as_given.add(name)
        if outcome["refusals"]:
            found.refusals[name] = outcome["refusals"]
        elif outcome["error"]:
            found.errors[name] = outcome["error"]
        else:
            found.results[name] = outcome["result"]
    return found


def unavailable() -> str | None:
    """Why the provider cannot run here, None when it can."""
    reason: str | None = run_all(["reason"], _unavailable, 1)["reason"]
    return reason


def _unavailable(_: str) -> str | None:
    if "CUVIL_CONFORMANCE_LIBRARY" in os.environ:
        return None
    from cuvil_onnx.runtime.registration import unavailable_reason

    return unavailable_reason()


def stock_version() -> str:
    """Version and providers of the ONNX Runtime that stands for stock."""
    return str(run_all(["version"], _stock_version, 1)["version"])


def _stock_version(_: str) -> str:
    _use_stock()
    import onnxruntime

    names = [p.removesuffix("ExecutionProvider") for p in onnxruntime.get_available_providers()]
    return f"{onnxruntime.__version__} ({', '.join(n for n in names if n in ('CUDA', 'CPU'))})"


def _use_stock() -> None:
    sys.path[:0] = [p for p in os.environ.get("CUVIL_STOCK_PYTHONPATH", "").split(os.pathsep) if p]


def _on_stock(name: str) -> str:
    _use_stock()
    from tests.conformance import provider

    return provider.on_stock(name)


def _place(name: str) -> dict[str, Any]:
    from tests.conformance import provider

    return provider.on_provider(name, compute=False)


def _compute(name: str) -> dict[str, Any]:
    from tests.conformance import provider

    return provider.on_provider(name, compute=True)
