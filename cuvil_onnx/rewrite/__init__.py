"""The rewrite engine: rules, matching helpers, the driver and provenance. It knows no operator's meaning."""

from cuvil_onnx.rewrite.graph import Dim, GraphContext
from cuvil_onnx.rewrite.rule import Exactness, Match, OpId, Phase, Refusal, Replacement, Rule

__all__ = [
    "Dim",
    "Exactness",
    "GraphContext",
    "Match",
    "OpId",
    "Phase",
    "Refusal",
    "Replacement",
    "Rule",
]
