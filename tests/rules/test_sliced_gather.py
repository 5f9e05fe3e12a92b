"""sliced_gather: positions looked up ahead of time."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.rules.rule_testing import Case, contract, fires, graph, ops, refused, weight

HEAD = "(int64[B,S] tokens) => (float[1,P,8] y)"
BODY = "n = Shape<start=1,end=2>(tokens) i = Slice(ids, zero, n, axis) r = Gather(table, i) y = Neg(r)"
IDS = np.arange(10)[None]


def made(ids: np.ndarray = IDS, axis: int = 1, body: str = BODY, head: str = HEAD, rows: int = 12) -> onnx.ModelProto:
    weights = {"ids": np.asarray(ids, np.int64), "zero": np.array([0]), "axis": np.array([axis])}
    return graph(f"{head} {{ {body} }}", table=weight(rows, 8), **weights)


test_contract = contract(Case("sliced_gather", made, "r", kept=1, exact=True))


@pytest.mark.parametrize("axis", [1, -1])
def test_rows_are_sliced(axis: int) -> None:
    assert ops(fires(made(axis=axis), "sliced_gather", exact=True)) == {"Shape": 1, "Slice": 1, "Neg": 1}


def test_positions_counted_from_the_end_and_in_any_order() -> None:
    fires(made(ids=np.array([[5, -1, 0, -12, 3]])), "sliced_gather", exact=True)


def test_slice_without_axes() -> None:
    body = BODY.replace("ids, zero, n, axis", "ids, zero, n")
    ids, head = np.arange(10), "(int64[B,S] tokens) => (float[P,8] y)"
    assert "Gather" not in ops(fires(made(ids, body=body, head=head), "sliced_gather", exact=True))


def test_a_slice_that_others_read_stays() -> None:
    body = BODY + " z = Abs(i)"
    head = "(int64[B,S] tokens) => (float[1,P,8] y, int64[1,P] z)"
    assert ops(fires(made(body=body, head=head), "sliced_gather", exact=True))["Slice"] == 2


def test_an_index_outside_of_the_table_is_left_to_fail() -> None:
    refused(made(rows=9), "sliced_gather", "outside of the table")


def test_rows_that_outgrow_the_table_are_refused() -> None:
    refused(made(ids=np.zeros((1, 40_000)), rows=1), "sliced_gather", "more memory than the table")


def test_another_axis_is_not_the_pattern() -> None:
    body = BODY.replace("Gather(", "Gather<axis=1>(")
    head = "(int64[B,S] tokens) => (float[12,1,P] y)"
    refused(made(ids=np.arange(8)[None], body=body, head=head), "sliced_gather", "")
