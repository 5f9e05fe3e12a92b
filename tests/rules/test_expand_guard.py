"""expand_guard: sizes need no guard against -1."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.rules.rule_testing import Case, contract, fires, graph, ops, refused

HEAD = "(float[B,S] x, float[1,1] one) => (float[B,S] y)"
GUARD = "e = Equal(s, minus) w = Where(e, ones, s) y = Expand(one, w)"
CONSTANTS = {
    "minus": np.array([-1, -1]),
    "ones": np.array([1, 1]),
    "two": np.array([2]),
    "neg": np.array([-2]),
    "a0": np.array([0]),
    "a1": np.array([1]),
}


def made(sizes: str = "s = Shape(x)", guard: str = GUARD, head: str = HEAD, **more: np.ndarray) -> onnx.ModelProto:
    body = f"{sizes} {guard}"
    used = {k: v for k, v in {**CONSTANTS, **more}.items() if f" {k})" in body or f"({k}," in body or f" {k}," in body}
    return graph(f"{head} {{ {body} }}", **used)


test_contract = contract(Case("expand_guard", made, "w", kept=1, exact=True))


@pytest.mark.parametrize(
    "sizes",
    [
        "h = Shape(x) b = Gather(h, a0) n = Gather(h, a1) s = Concat<axis=0>(b, n)",
        "h = Shape(x) b = Gather(h, a0) n = Gather(h, a1) c = Mul(n, a1) s = Concat<axis=0>(b, c)",
        "h = Shape(x) i = Cast<to=6>(h) s = Cast<to=7>(i)",
    ],
)
def test_sizes_of_any_making(sizes: str) -> None:
    assert ops(fires(made(sizes), "expand_guard", exact=True))["Where"] == 0


def test_either_order() -> None:
    fires(made(guard=GUARD.replace("(s, minus)", "(minus, s)")), "expand_guard", exact=True)


@pytest.mark.parametrize(
    ("sizes", "head", "reason"),
    [
        ("s = Identity(t)", HEAD.replace("one)", "one, int64[2] t)"), "not made of tensor sizes"),
        ("h = Shape(x) b = Gather(h, a0) s = Concat<axis=0>(b, neg)", HEAD, "not made of tensor sizes"),
        ("h = Shape(x) s = Sub(h, ones)", HEAD, "not made of tensor sizes"),
        ("h = Shape(x) s = Gather(h, a1)", HEAD.replace("[B,S] y", "[S,S] y"), "would be broadcast"),
    ],
)
def test_refusals(sizes: str, head: str, reason: str) -> None:
    refused(made(sizes, head=head), "expand_guard", reason)


def test_a_guard_against_a_size_that_occurs_stays() -> None:
    refused(made(minus=np.array([-1, 1])), "expand_guard", "")


@pytest.mark.parametrize(
    "sizes",
    [
        "h = Shape(x) b = Gather(h, a0) s = Concat<axis=0>(b, keep)",
        "h = Shape(x) b = Gather(h, a0) d = Div(b, two) m = Mul(d, two) s = Concat<axis=0>(m, keep)",
        "h = Shape(x) n = Gather(h, a1) s = Concat<axis=0>(keep, n)",
    ],
)
def test_numbers_that_mean_keep_become_one(sizes: str) -> None:
    head = HEAD.replace("[B,S] y", "[M,T] y")
    new = fires(made(sizes, head=head, keep=np.array([-1])), "expand_guard", exact=True, symbols={"B": 4})
    assert ops(new)["Where"] == 0


def test_a_quotient_by_what_may_be_negative_stays() -> None:
    refused(made("h = Shape(x) s = Div(h, neg)"), "expand_guard", "not made of tensor sizes")
