"""The node test cases that onnx generates: models of one node, or of its function body, with inputs and outputs."""

from __future__ import annotations

import functools
import re
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests
from onnx.backend.test.runner import Runner

_EXPANDED = re.compile(r"_expanded(_function)?(_ver\d+)?$")


@dataclass(frozen=True)
class Case:
    """One case; each data set is (inputs, outputs) in the order of the graph's."""

    name: str
    op: str  # "Domain::Type", or "Type" of the standard domain
    model: onnx.ModelProto
    data_sets: list[tuple[list[Any], list[Any]]]
    rtol: float
    atol: float

    @property
    def expanded(self) -> bool:
        """Whether the model is the function body of the op instead of one node."""
        return _EXPANDED.search(self.name) is not None


@functools.lru_cache(maxsize=1)
def cases() -> dict[str, Case]:
    """Every case of the installed onnx by name. Takes some 8 s: their expected outputs are computed."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # overflow in casts is what some of them are about
        loaded = [c for c in load_model_tests(kind="node") if c.model is not None]
    plain = {c.name: _op_of(c.model) for c in loaded if not _EXPANDED.search(c.name)}
    found = {}
    for c in loaded:
        op = plain.get(c.name) or plain.get(_EXPANDED.sub("", c.name)) or _op_of(c.model)
        data_sets = [(_arrays(inputs), _arrays(outputs)) for inputs, outputs in c.data_sets]
        found[c.name] = Case(c.name, op, c.model, data_sets, c.rtol, c.atol)
    return dict(sorted(found.items()))


def _op_of(model: onnx.ModelProto) -> str:
    node = model.graph.node[-1]
    return f"{node.domain}::{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type


def _arrays(values: list[Any]) -> list[Any]:
    return [numpy_helper.to_array(v) if isinstance(v, onnx.TensorProto) else v for v in values]


def compare(case: Case, expected: list[Any], found: list[Any]) -> None:
    """Raises AssertionError unless the outputs are right by onnx's own comparison, with the case's tolerances."""
    for a, b in zip(expected, found, strict=True):
        assert (a is None) == (b is None), f"{'an' if a is None else 'no'} output where the case wants the opposite"
    pairs = [(a, b) for a, b in zip(expected, found, strict=True) if a is not None]
    Runner.assert_similar_outputs([a for a, _ in pairs], [b for _, b in pairs], rtol=case.rtol, atol=case.atol)
