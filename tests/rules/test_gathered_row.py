"""gathered_row: a row that every element takes is added as a bias."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.rules.rule_testing import Case, contract, fires, graph, ops, refused, weight

HEAD = "(float[B,S,8] x) => (float[B,S,8] y)"
BODY = "n = Shape<start=0,end=2>(x) i = Expand(zeros, n) r = Gather(table, i) y = Add(x, r)"


def made(body: str = BODY, head: str = HEAD, zeros: object = 0, **weights: np.ndarray) -> onnx.ModelProto:
    given = {"zeros": np.asarray(zeros, np.int64), "table": weight(3, 8), **weights}
    used = {k: v for k, v in given.items() if k in body}
    return graph(f"{head} {{ {body} }}", **used)


test_contract = contract(Case("gathered_row", made, "r", kept=1, exact=True))


@pytest.mark.parametrize("index", [0, 2, -1])
def test_the_row_is_a_bias(index: int) -> None:
    assert "Gather" not in ops(fires(made(zeros=index), "gathered_row", exact=True))


def test_constant_of_shape_and_moves() -> None:
    body = "n = Shape<start=0,end=1>(x) m = Shape<start=1,end=2>(x) p = Mul(n, m) c = ConstantOfShape(p)"
    body += " b = Shape<start=0,end=2>(x) i = Reshape(c, b) r = Gather(table, i) y = Add(r, x)"
    model = made(body)
    (constant,) = (n for n in model.graph.node if n.op_type == "ConstantOfShape")
    constant.attribute.append(onnx.helper.make_attribute("value", onnx.helper.make_tensor("v", 7, [1], [1])))
    fires(model, "gathered_row", exact=True)


def test_slice_of_equal_ids() -> None:
    body = "n = Shape<start=1,end=2>(x) i = Slice(ids, start, n, axis) r = Gather(table, i) y = Add(x, r)"
    ids = {"ids": np.full((1, 20), 2), "start": np.array([0]), "axis": np.array([1])}
    fires(made(body, **ids), "gathered_row", exact=True)


def test_ids_that_differ_are_not_the_pattern() -> None:
    body = "r = Gather(table, ids) y = Add(x, r)"
    head = "(float[B,2,8] x) => (float[B,2,8] y)"
    refused(made(body, head, ids=np.array([[0, 1]])), "gathered_row", "")


def test_the_gather_must_not_widen_the_sum() -> None:
    body = "r = Gather(table, ids) y = Add(x, r)"
    head = "(float[1,1,8] x) => (float[1,2,8] y)"
    refused(made(body, head, ids=np.array([[1, 1]])), "gathered_row", "not known to have the shape")


def test_an_index_outside_of_the_table_is_left_to_fail() -> None:
    refused(made(zeros=3), "gathered_row", "outside of the table")


def test_computed_ids_are_not_the_pattern() -> None:
    head = "(float[B,S,8] x, int64[B,S] i) => (float[B,S,8] y)"
    refused(made("r = Gather(table, i) y = Add(x, r)", head), "gathered_row", "")
