"""What a pass is, and which operators passes must treat with care."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import onnx_ir as ir

from cuvil_onnx.rewrite import walk
from cuvil_onnx.rewrite.graph import GraphContext
from cuvil_onnx.rewrite.rule import Exactness
from cuvil_onnx.rewrite.trace import Trace

RANDOM_OPS = frozenset(
    {
        "Bernoulli",
        "Multinomial",
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
    }
)
"""Operators of any known domain whose result differs from run to run."""

KNOWN_DOMAINS = frozenset({"", "ai.onnx.ml", "com.microsoft", "cuvil"})
"""Domains whose operators are pure functions of their inputs, the random ones excepted."""


@dataclasses.dataclass(frozen=True)
class Pass:
    """A named step over the whole model; ``run`` returns the number of changes."""

    name: str
    exactness: Exactness
    run: Callable[[GraphContext, Trace], int]


def is_pure(node: ir.Node) -> bool:
    """Whether two nodes like this with equal inputs always give equal results and hold no subgraph.

    Dropout counts as random: in training mode it draws, and in inference mode the simplifier removes it anyway.
    """
    if node.domain not in KNOWN_DOMAINS or node.op_type in RANDOM_OPS or node.op_type == "Dropout":
        return False
    return not walk.holds_graphs(node)
