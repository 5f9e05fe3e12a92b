"""batched_transpose: torch dynamo's transpose of the last two axes."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.rules.rule_testing import Case, contract, fires, graph, ops, refused

HEAD = "(float[2,3,S,5] x) => (float[2,3,5,S] y)"
BODY = "f = Reshape(x, rows) t = Transpose<perm=[0,2,1]>(f) u = Reshape(t, back) y = Neg(u)"
ROWS, BACK = np.array([6, -1, 5]), np.array([2, 3, 5, -1])


def made(body: str = BODY, head: str = HEAD, rows: np.ndarray = ROWS, back: np.ndarray = BACK) -> onnx.ModelProto:
    return graph(f"{head} {{ {body} }}", rows=rows, back=back)


# Others may read the flattened tensor: "f" would not stop the rule.
test_contract = contract(Case("batched_transpose", made, "t", exact=True))


def test_one_transpose_is_left() -> None:
    assert ops(fires(made(), "batched_transpose", exact=True)) == {"Transpose": 1, "Neg": 1}


def test_flattened_tensor_that_others_read_stays() -> None:
    model = made(BODY + " z = Abs(f)", "(float[2,3,S,5] x) => (float[2,3,5,S] y, float[6,S,5] z)")
    assert ops(fires(model, "batched_transpose", exact=True)) == {"Transpose": 1, "Neg": 1, "Reshape": 1, "Abs": 1}


@pytest.mark.parametrize(
    ("head", "rows", "back"),
    [
        # The two leading axes are not the ones that were joined.
        ("(float[2,3,4,5] x) => (float[2,3,5,4] y)", [2, 12, 5], [2, 5, 3, 4]),
        ("(float[2,3,4,5] x) => (float[3,2,5,4] y)", [6, 4, 5], [3, 2, 5, 4]),
        ("(float[2,3,4,5] x) => (float[2,3,4,5] y)", [6, 4, 5], [2, 3, 4, 5]),
        ("(float[2,3,4,4] x) => (float[2,3,4,4] y)", [8, 3, 4], [2, 3, 4, 4]),
    ],
)
def test_other_reshapes_are_refused(head: str, rows: list[int], back: list[int]) -> None:
    refused(made(head=head, rows=np.array(rows), back=np.array(back)), "batched_transpose", "not known to join")


def test_sizes_that_are_not_known_to_be_equal_are_refused() -> None:
    head = "(float[A,B,4,5] x, int64[4] back) => (float[C,D,5,4] y)"
    refused(graph(f"{head} {{ {BODY} }}", rows=np.array([-1, 4, 5])), "batched_transpose", "not known to join")


def test_another_order_is_not_the_pattern() -> None:
    head = "(float[2,3,4,5] x) => (float[4,6,5] y)"
    body = "f = Reshape(x, rows) t = Transpose<perm=[1,0,2]>(f) y = Reshape(t, back)"
    refused(made(body, head, back=np.array([4, 6, 5])), "batched_transpose", "")
