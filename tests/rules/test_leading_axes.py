"""leading_axes: broadcasting puts axes in front."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.rules.rule_testing import Case, contract, fires, graph, ops, refused

HEAD = "(float[T] x, float[B,S,T] z) => (bool[B,S,T] y)"


def made(axes: list[int], head: str = HEAD, opset: int = 18) -> onnx.ModelProto:
    return graph(f"{head} {{ u = Unsqueeze(x, axes) y = Less(u, z) }}", opset, axes=np.array(axes))


test_contract = contract(Case("leading_axes", lambda: made([0, 1]), "u", kept=1, exact=True))


@pytest.mark.parametrize("axes", [[0], [0, 1], [-3, 1]])
def test_fires(axes: list[int]) -> None:
    assert ops(fires(made(axes), "leading_axes", "dead_code", exact=True)) == {"Less": 1}


def test_axes_behind_or_between_stay() -> None:
    refused(made([1, 2], HEAD.replace("[T] x", "[B] x")), "leading_axes", "")
    refused(made([0, 2], HEAD.replace("[T] x", "[S] x")), "leading_axes", "")


def test_the_other_operand_must_have_the_rank_of_the_result() -> None:
    refused(made([0, 1], HEAD.replace("[B,S,T] z", "[T] z").replace("[B,S,T] y", "[1,1,T] y")), "leading_axes", "")


def test_where_takes_a_condition_of_lower_rank() -> None:
    text = "(bool[T] x, float[B,T] z, float[B,T] w) => (float[B,T] y) { u = Unsqueeze(x, axes) y = Where(u, z, w) }"
    result = fires(graph(text, 18, axes=np.array([0])), "leading_axes", "dead_code", exact=True)
    assert ops(result) == {"Where": 1}


def test_what_made_the_operand_is_fused_at_once() -> None:
    text = HEAD.replace("x,", "x, float[1] c,") + " { a = Add(x, c) u = Unsqueeze(a, axes) y = Less(u, z) }"
    model = graph(text, 18, axes=np.array([0, 1]))
    assert ops(fires(model, "leading_axes", "pointwise", exact=True)) == {"cuvil::Pointwise": 1}
