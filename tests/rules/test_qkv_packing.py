"""qkv_packing: three projections of one tensor become one product."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.rules.rule_testing import Case, apply, attributes, contract, fires, graph, node_of, ops, refused, weight
from tests.rules.test_attention import CONSTANTS, MERGE, SCORES, SPLIT

HEAD = "(float[B,S,24] x, float[B,1,1,S] mask) => (float[B,S,32] y)"
PROJECT = "qp = MatMul(x, wq) q = Add(qp, bq) kp = MatMul(x, wk) k = Add(bk, kp) vp = MatMul(x, wv) v = Add(vp, bv) "
WEIGHTS = {f"w{n}": weight(24, 32, seed=i, scale=0.2) for i, n in enumerate("qkv")}
BIASES = {f"b{n}": weight(32, seed=10 + i) for i, n in enumerate("qkv")}
SYMBOLS = {"B": 2, "S": 5}


def made(project: str = PROJECT, head: str = HEAD, **changes: np.ndarray) -> onnx.ModelProto:
    body = project + SPLIT + SCORES + MERGE
    weights = {**CONSTANTS, **WEIGHTS, **BIASES, **changes}
    used = {k: v for k, v in weights.items() if f" {k})" in body or f"({k}," in body or f" {k}," in body}
    return graph(f"{head} {{ {body} }}", **used)


test_contract = contract(Case("qkv_packing", made, "kp", needs=("attention",)))


def test_one_product_and_packed_attention() -> None:
    result = fires(made(), "qkv_packing", "attention", symbols=SYMBOLS)
    assert ops(result) == {"MatMul": 1, "Add": 1, "cuvil::Attention": 1}
    node = node_of(result, "Attention")
    assert attributes(node)["layout"] == "packed" and list(node.input)[1:3] == ["", ""]


@pytest.mark.parametrize("missing", ["q", "k", "v"])
def test_a_missing_bias_is_zero(missing: str) -> None:
    project = PROJECT
    for text in (f"{missing} = Add({missing}p, b{missing}) ", f"{missing} = Add(b{missing}, {missing}p) "):
        project = project.replace(text, "")
    project = project.replace(f"{missing}p =", f"{missing} =")
    assert ops(fires(made(project), "qkv_packing", "attention", symbols=SYMBOLS))["MatMul"] == 1


def test_no_bias_at_all() -> None:
    project = "q = MatMul(x, wq) k = MatMul(x, wk) v = MatMul(x, wv) "
    result = fires(made(project), "qkv_packing", "attention", symbols=SYMBOLS)
    assert ops(result) == {"MatMul": 1, "cuvil::Attention": 1}


def test_cross_attention_is_refused() -> None:
    head = HEAD.replace("x,", "x, float[B,S,24] z,")
    project = PROJECT.replace("MatMul(x, wk)", "MatMul(z, wk)").replace("MatMul(x, wv)", "MatMul(z, wv)")
    refused(made(project, head), "qkv_packing", "from different tensors", "attention")


def test_a_projection_with_another_reader_is_refused() -> None:
    head = HEAD.replace("y)", "y, float[B,S,32] k)")
    refused(made(head=head), "qkv_packing", "read elsewhere", "attention")


def test_weights_of_different_shape_are_refused() -> None:
    head = HEAD.replace("x,", "x, float[B,S,8] z,")
    # The same tensor cannot have two widths, so only the weights' second axis could differ; attention needs equal ones.
    project = PROJECT.replace("MatMul(x, wk)", "MatMul(z, wk)")
    refused(made(project, head, wk=weight(8, 32)), "qkv_packing", "from different tensors", "attention")


def test_computed_weights_are_not_the_pattern() -> None:
    head = HEAD.replace("x,", "x, float[24,32] wq,")
    model = made(head=head)
    kept = [i for i in model.graph.initializer if i.name != "wq"]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    refused(model, "qkv_packing", "", "attention")


def test_shared_weights_survive_for_others() -> None:
    head = HEAD.replace("y)", "y, float[B,S,32] other)")
    model = made("other = MatMul(x, wq) " + PROJECT.replace("MatMul(x, wq)", "MatMul(x, wq)"), head)
    # Without CSE the two products with wq stay apart, and the one that is an output keeps the original weight.
    assert ops(apply(model, "qkv_packing", "attention").model)["MatMul"] == 2
    fires(model, "qkv_packing", "attention", symbols=SYMBOLS)


# Grouped heads: 4 of queries, 2 of keys and values of size 8; and rotated queries and keys.
GROUPED_HEAD = "(float[B,S,24] x, float[1,S,8] cos, float[1,S,8] sin) => (float[B,S,32] y)"
ROTATE = (
    "{0}a = Slice({0}h, c0, c4, c3, c1) {0}b = Slice({0}h, c4, c8, c3, c1) {0}n = Neg({0}b) "
    "{0}r = Concat<axis=-1>({0}n, {0}a) {0}1 = Mul({0}h, cos) {0}2 = Mul({0}r, sin) {0}e = Add({0}1, {0}2) "
)
REPEAT = "{0}u = Unsqueeze({1}, c2) {0}g = Expand({0}u, groups) {0}t = Reshape({0}g, repeated) "
HEADS = "".join(f"{n}4 = Reshape({n}, split) {n}h = Transpose<perm=[0,2,1,3]>({n}4) " for n in "qkv")
GROUPED = (
    HEADS
    + ROTATE.format("q")
    + ROTATE.format("k")
    + REPEAT.format("k", "ke")
    + REPEAT.format("v", "vh")
    + "kT = Transpose<perm=[0,1,3,2]>(kt) s = MatMul(qe, kT) sc = Mul(s, scale) p = Softmax<axis=-1>(sc) "
    + MERGE
)
GROUPED_WEIGHTS = {
    "split": np.array([0, 0, -1, 8]),
    "groups": np.array([1, 1, 2, 1, 1]),
    "repeated": np.array([0, 4, -1, 8]),
    "wk": weight(24, 16, seed=5, scale=0.2),
    "wv": weight(24, 16, seed=6, scale=0.2),
    "bk": weight(16, seed=7),
    "bv": weight(16, seed=8),
    "whole_weight": weight(24, 64, seed=9, scale=0.2),
    "sizes": np.array([32, 16, 16]),
    **{f"c{i}": np.array([i]) for i in (0, 1, 2, 3, 4, 8, 32, 48, 64)},
}


def grouped(project: str = PROJECT, body: str = GROUPED, head: str = GROUPED_HEAD) -> onnx.ModelProto:
    text = project + body
    weights = {**CONSTANTS, **WEIGHTS, **BIASES, **GROUPED_WEIGHTS}
    used = {k: v for k, v in weights.items() if f" {k})" in text or f"({k}," in text or f" {k}," in text}
    return graph(f"{head} {{ {text} }}", **used)


def test_grouped_rotated_heads_are_rotated_in_one_call() -> None:
    result = fires(grouped(), "qkv_packing", "attention", "rotary", symbols=SYMBOLS)
    assert ops(result) == {"MatMul": 1, "Add": 1, "cuvil::RotaryEmbedding": 1, "cuvil::Attention": 1}
    found = attributes(node_of(result, "RotaryEmbedding"))
    assert (found["num_heads"], found["rotated_heads"]) == (8, 6)
    found = attributes(node_of(result, "Attention"))
    assert (found["num_heads"], found["kv_num_heads"], found["layout"]) == (4, 2, "packed")


@pytest.mark.parametrize(
    "cut",
    [
        "q, k, v = Split<axis=-1>(qkv, sizes) ",
        "q = Slice(qkv, c0, c32, c2) k = Slice(qkv, c32, c48, c2) v = Slice(qkv, c48, c64, c2) ",
    ],
)
def test_parts_of_one_rotated_product(cut: str) -> None:
    # Phi-3 projects all three at once and cuts them apart.
    model = grouped("qkv = MatMul(x, whole_weight) " + cut)
    result = fires(model, "qkv_packing", "attention", "rotary", "dead_code", symbols=SYMBOLS)
    assert ops(result) == {"MatMul": 1, "cuvil::RotaryEmbedding": 1, "cuvil::Attention": 1}


def test_parts_without_rotation_are_packed_by_attention_itself() -> None:
    body = GROUPED.replace(ROTATE.format("q"), "qe = Identity(qh) ").replace(ROTATE.format("k"), "ke = Identity(kh) ")
    head = GROUPED_HEAD.replace(", float[1,S,8] cos, float[1,S,8] sin", "")
    model = grouped("qkv = MatMul(x, whole_weight) q, k, v = Split<axis=2>(qkv, sizes) ", body, head)
    result = fires(model, "attention", "identity", "dead_code", symbols=SYMBOLS)
    assert ops(result) == {"MatMul": 1, "cuvil::Attention": 1}


@pytest.mark.parametrize(
    "change",
    [
        {ROTATE.format("k"): "ke = Identity(kh) "},
        {ROTATE.format("k"): ROTATE.format("k").replace("cos", "cos2"), "float[1,S,8] cos,": "float[1,S,8] cos, "},
    ],
)
def test_queries_and_keys_rotated_differently_are_refused(change: dict[str, str]) -> None:
    body, head = GROUPED, GROUPED_HEAD
    for old, new in change.items():
        body, head = body.replace(old, new), head.replace(old, new)
    if "cos2" in body:
        head = head.replace("float[1,S,8] sin", "float[1,S,8] sin, float[1,S,8] cos2")
    model = grouped(body=body, head=head)
    refused(model, "qkv_packing", "not rotated alike", "attention", "rotary", "identity", "dead_code")
