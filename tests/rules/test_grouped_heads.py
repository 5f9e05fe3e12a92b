"""attention: keys and values with fewer heads than queries, in the ways that exporters repeat them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.rules.rule_testing import apply, attributes, fires, graph, node_of, ops, refused

B, S, G, R, H = 3, 5, 2, 3, 8
N = G * R
SYMBOLS = {"B": B, "S": S}
HEAD = f"(float[B,S,{N * H}] q, float[B,S,{G * H}] k, float[B,S,{G * H}] v, float[B,1,S,S] m) => (float[B,S,{N * H}] y)"
SPLIT = "q4 = Reshape(q, heads) k4 = Reshape(k, heads) v4 = Reshape(v, heads) qt = Transpose<perm=[0,2,1,3]>(q4) "
# Heads [B, G, S, H], as torch's modules repeat them, and [B, S, G, H], as Meta's do.
FIRST = "{0}h = Transpose<perm=[0,2,1,3]>({0}4) "
SCORES = "kx = Transpose<perm=[0,1,3,2]>(kt) s = MatMul(qt, kx) ss = Mul(s, root) sm = Add(ss, m) w = Softmax(sm) "
MERGE = "c = MatMul(w, vt) ct = Transpose<perm=[0,2,1,3]>(c) y = Reshape(ct, whole)"
SIZES = "{0}s = Shape({0}4) {0}b = Gather({0}s, i0) {0}n = Gather({0}s, i1) {0}b1 = Unsqueeze({0}b, c0) "
SIZES += "{0}n1 = Unsqueeze({0}n, c0) {0}f = Concat<axis=0>({0}b1, nh, {0}n1, hs) "

FORMS = {
    "expand": FIRST + "{0}u = Unsqueeze({0}h, c2) {0}g = Expand({0}u, copies) {0}t = Reshape({0}g, repeated) ",
    "computed": SIZES
    + FIRST
    + "{0}u = Unsqueeze({0}h, c2) {0}g = Expand({0}u, copies) {0}t = Reshape<allowzero=1>({0}g, {0}f) ",
    "tile": FIRST + "{0}u = Unsqueeze({0}h, c2) {0}g = Tile({0}u, copies) {0}t = Reshape({0}g, repeated) ",
    "reshape": FIRST + "{0}u = Reshape({0}h, five) {0}g = Expand({0}u, copies) {0}t = Reshape({0}g, repeated) ",
    "before_transpose": "{0}u = Unsqueeze({0}4, c3) {0}g = Expand({0}u, copies3) {0}h = Reshape({0}g, repeated3) "
    "{0}t = Transpose<perm=[0,2,1,3]>({0}h) ",
}
WEIGHTS = {
    "heads": np.array([0, 0, -1, H]),
    "whole": np.array([0, 0, -1]),
    "root": np.float32(8**-0.5),
    "copies": np.array([1, 1, R, 1, 1]),
    "copies3": np.array([1, 1, 1, R, 1]),
    "repeated": np.array([0, N, -1, H]),
    "repeated3": np.array([0, 0, N, H]),
    "five": np.array([0, G, 1, -1, H]),
    "nh": np.array([N]),
    "hs": np.array([H]),
    "i0": np.array(0),
    "i1": np.array(1),
    **{f"c{i}": np.array([i]) for i in (0, 1, 2, 3)},
}


def made(form: str, head: str = HEAD, **more: np.ndarray) -> onnx.ModelProto:
    body = SPLIT + form.format("k") + form.format("v") + SCORES + MERGE
    used = {k: v for k, v in {**WEIGHTS, **more}.items() if any(f"{a}{k}{b}" in body for a in " (" for b in ",)")}
    return graph(f"{head} {{ {body} }}", 17, **used)


@pytest.mark.parametrize("kind", list(FORMS))
def test_repeated_heads_are_taken_once(kind: str) -> None:
    needs = ("shape_chain", "dead_code") if kind == "computed" else ()
    result = fires(made(FORMS[kind]), "attention", *needs, symbols=SYMBOLS)
    assert ops(result) == {"cuvil::Attention": 1}
    node = node_of(result, "Attention")
    assert list(node.input) == ["q", "k", "v", "m"]
    found = attributes(node)
    assert (found["num_heads"], found["kv_num_heads"]) == (N, G)


@pytest.mark.parametrize("op", ["Expand", "Tile"])
def test_one_head_for_all(op: str) -> None:
    form = FIRST + f"{{0}}t = {op}({{0}}h, all) "
    head = HEAD.replace(f"{G * H}]", f"{H}]")
    result = fires(made(form, head, all=np.array([1, N, 1, 1])), "attention", symbols=SYMBOLS)
    found = attributes(node_of(result, "Attention"))
    assert ops(result) == {"cuvil::Attention": 1} and (found["num_heads"], found["kv_num_heads"]) == (N, 1)


CACHED_HEAD = (
    f"(float[B,S,{N * H}] q, float[B,S,{G * H}] k, float[B,S,{G * H}] v, float[B,{G},P,{H}] pk, float[B,{G},P,{H}] pv, "
    f"float[B,1,S,T] m) => (float[B,S,{N * H}] y, float[B,{G},T,{H}] kp, float[B,{G},T,{H}] vp)"
)


def test_a_cache_is_read_as_it_is() -> None:
    form = FIRST + "{0}p = Concat<axis=2>(p{0}, {0}h) {0}u = Unsqueeze({0}p, c2) {0}g = Expand({0}u, copies) "
    model = made(form + "{0}t = Reshape({0}g, repeated) ", CACHED_HEAD)
    result = fires(model, "attention", "dead_code", symbols={"B": B, "S": S, "P": 4, "T": S + 4})
    assert ops(result) == {"cuvil::Attention": 1, "Reshape": 2, "Transpose": 2, "Concat": 2}
    assert list(node_of(result, "Attention").input)[1:3] == ["kp", "vp"]


@pytest.mark.parametrize(
    "form",
    [
        FIRST + "{0}t = Tile({0}h, whole_copies) ",  # head h of the queries meets head h % G
        # Copies in front of the heads: the same order as Tile's.
        FIRST + "{0}u = Unsqueeze({0}h, c1) {0}g = Expand({0}u, first) {0}t = Reshape({0}g, repeated) ",
    ],
)
def test_copies_that_are_not_next_to_each_other_stay(form: str) -> None:
    more = {"whole_copies": np.array([1, R, 1, 1]), "first": np.array([1, R, 1, 1, 1])}
    result = fires(made(form, **more), "attention", symbols=SYMBOLS)
    found = attributes(node_of(result, "Attention"))
    assert found["kv_num_heads"] == N and {"Tile", "Expand"} & ops(result).keys()


def test_repeated_heads_that_others_read_stay_for_them() -> None:
    model = made(FORMS["expand"], HEAD.replace("] y)", f"] y, float[B,{N},S,{H}] kt)"))
    result = fires(model, "attention", symbols=SYMBOLS)
    assert attributes(node_of(result, "Attention"))["kv_num_heads"] == G
    assert ops(result)["Expand"] == 1


def test_keys_and_values_repeated_differently_are_refused() -> None:
    body = SPLIT + FORMS["expand"].format("k") + FIRST.format("v").replace("vh =", "vt =") + SCORES + MERGE
    head = HEAD.replace(f"{G * H}] v", f"{N * H}] v")
    used = {k: v for k, v in WEIGHTS.items() if f" {k})" in body or f" {k}," in body}
    refused(graph(f"{head} {{ {body} }}", 17, **used), "attention", "different heads")


def test_idempotent() -> None:
    once = apply(made(FORMS["expand"]), "attention").model
    assert apply(once, "attention").report.trace.counts.get("attention", 0) == 0
