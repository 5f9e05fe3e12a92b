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
