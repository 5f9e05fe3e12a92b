"""What happened: which rewrites fired where, which nearly did and why not."""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from cuvil_onnx.rewrite.rule import Exactness
from cuvil_onnx.rewrite.sketch import Picture

MAX_ENTRIES = 2000
"""Entries kept per list; the counts go on."""


@dataclasses.dataclass(frozen=True)
class Fired:
    """One rewrite that was done."""

    rule: str
    exactness: Exactness
    nodes: tuple[str, ...]  # the old nodes
    result: tuple[str, ...]  # the new nodes, "Op(name)"
    shape: str = ""  # of the first output


@dataclasses.dataclass(frozen=True)
class Refused:
    """One rewrite that was not done although the pattern is there."""

    rule: str
    node: str
    reason: str
    culprit: str = ""


@dataclasses.dataclass
class Trace:
    """Collected over one ``optimize``."""

    fired: list[Fired] = dataclasses.field(default_factory=list)
    refused: list[Refused] = dataclasses.field(default_factory=list)
    warnings: list[str] = dataclasses.field(default_factory=list)
    counts: dict[str, int] = dataclasses.field(default_factory=dict)
    exactness: dict[str, Exactness] = dataclasses.field(default_factory=dict)
    seconds: dict[str, float] = dataclasses.field(default_factory=dict)
    accuracy: str = ""  # what a lower precision was measured to cost; empty when it was not
    kept: frozenset[str] = frozenset()  # names of values left in float32 for that reason
    pictures: dict[str, Picture] = dataclasses.field(default_factory=dict)  # one a rule: its first rewrite
    _seen: set[tuple[str, str, str]] = dataclasses.field(default_factory=set)

    @property
    def lists_fired(self) -> bool:
        """Whether the next rewrite gets an entry, and is not only counted."""
        return len(self.fired) < MAX_ENTRIES

    def add_fired(
        self,
        rule: str,
        exactness: Exactness,
        nodes: tuple[str, ...] = (),
        result: tuple[str, ...] = (),
        shape: str = "",
        count: int = 1,
    ) -> None:
        """Records ``count`` rewrites (one entry)."""
        self.counts[rule] = self.counts.get(rule, 0) + count
        self.exactness[rule] = exactness
        if self.lists_fired:
            self.fired.append(Fired(rule, exactness, nodes, result, shape))

    def add_refused(self, rule: str, node: ir.Node, reason: str, culprit: ir.Node | ir.Value | None) -> None:
        """Records a near miss once, however often the node is visited."""
        key = (rule, node.name or "", reason)
        if key in self._seen or len(self.refused) >= MAX_ENTRIES:
            return
        self._seen.add(key)
        self.refused.append(Refused(rule, node.name or node.op_type, reason, (culprit.name or "") if culprit else ""))

    def warn(self, message: str) -> None:
        """Records something the user should read."""
        if message not in self.warnings:
            self.warnings.append(message)
