"""unsqueeze_first: axes are added before arithmetic with a scalar."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.rules.rule_testing import Case, contract, fires, graph, ops, refused

HEAD = "(float[T] x, float c, float[B,S,T] z) => (bool[B,S,T] y)"
BODY = "a = Add(x, c) u = Unsqueeze(a, axes) y = Less(u, z)"


def made(body: str = BODY, head: str = HEAD) -> onnx.ModelProto:
    return graph(f"{head} {{ {body} }}", 18, axes=np.array([0, 1]))


test_contract = contract(Case("unsqueeze_first", made, "a", exact=True))


@pytest.mark.parametrize("body", ["Add(x, c)", "Sub(c, x)", "Div(x, c)"])
def test_fires(body: str) -> None:
    result = fires(made(BODY.replace("Add(x, c)", body)), "unsqueeze_first", exact=True)
    assert [n.op_type for n in result.graph.node] == ["Unsqueeze", body[:3], "Less"]


@pytest.mark.parametrize(
    ("body", "head"),
    [
        (BODY, HEAD.replace("float c", "float[T] c")),  # c would need axes too
        (BODY, HEAD.replace("float c", "float[1] c")),
        (BODY.replace("y = Less(u, z)", "y = Concat<axis=0>(u, z)"), HEAD.replace("bool[B,S,T]", "float[B,S,T]")),
        (BODY.replace("Add(x, c)", "Pow(x, c)"), HEAD),
    ],
)
def test_near_misses(body: str, head: str) -> None:
    refused(made(body, head), "unsqueeze_first", "")


def test_a_region_takes_the_arithmetic_in() -> None:
    result = fires(made(), "unsqueeze_first", "leading_axes", "pointwise", exact=True)
    assert ops(result) == {"Unsqueeze": 1, "cuvil::Pointwise": 1}
