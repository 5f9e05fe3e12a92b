"""flat_gather: what torch's legacy exporter writes for mask[batch, position]."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from tests.rules.rule_testing import Case, apply, contract, count, graph, ops, refused, run

BODY = (
    "seen = Cast<to=9>(mask) ms = Shape(seen) n = Gather(ms, i1) bs = Shape(q) b0 = Gather(bs, s0) t0 = Gather(ms, s1) "
    "br = Range(s0, b0, s1) b4 = Unsqueeze(br, a123) tr = Range(s0, t0, s1) t4 = Unsqueeze(tr, a012) "
    "flat = Flatten<axis=2>(seen) bn = Mul(b4, n) index = Add(bn, t4) g = Gather(flat, index) "
    "row = Reshape(g, minus) is = Shape(index) r = Reshape(row, is) y = Not(r)"
)
HEAD = "(float[B,D] q, int64[M,T] mask) => (bool[B,U,W,T] y)"
CONSTANTS = {
    "s0": np.int64(0),
    "s1": np.int64(1),
    "i1": np.array([1]),
    "a123": np.array([1, 2, 3]),
    "a012": np.array([0, 1, 2]),
    "minus": np.array([-1]),
}


def made(body: str = BODY, head: str = HEAD, **more: Any) -> onnx.ModelProto:
    return graph(f"{head} {{ {body} }}", 17, **CONSTANTS, **more)


def of_floats() -> onnx.ModelProto:
    body = BODY.replace("seen = Cast<to=9>(mask) ", "").replace("seen", "mask").replace("Not(r)", "Neg(r)")
    return made(body, HEAD.replace("int64", "float").replace("bool", "float"))


test_contract = contract(Case("flat_gather", of_floats, "flat", exact=True, kept=1))


def same(model: onnx.ModelProto, rows: int, columns: int) -> onnx.ModelProto:
    mask = np.random.default_rng(rows).integers(0, 2, (rows, columns))
    inputs: dict[str, Any] = {"q": np.zeros((2, 3), np.float32), "mask": mask}
    result = apply(model, "flat_gather", "dead_code", "shape_chain")
    assert result.report.trace.counts["flat_gather"] == 1
    (old,), (new,) = run(model, inputs, plain=True), run(result.model, inputs)
    np.testing.assert_array_equal(new, old)
    return result.model


@pytest.mark.parametrize(("rows", "columns"), [(2, 5), (3, 4), (4, 1)])
def test_the_mask_may_have_more_rows_than_are_counted(rows: int, columns: int) -> None:
    found = ops(same(made(), rows, columns))
    assert found["Slice"] == 1 and not {"Flatten", "Mul", "Range"} & found.keys()


def test_a_mask_of_just_that_size_is_taken_as_it_is() -> None:
    result = same(made(head=HEAD.replace("[M,T]", "[B,T]")), 2, 6)
    assert ops(result) == {"Unsqueeze": 1, "Cast": 1, "Not": 1}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("n = Gather(ms, i1)", "n = Gather(ms, i0)"),  # flat positions of another width
        ("t0 = Gather(ms, s1)", "t0 = Gather(bs, s1)"),  # not known to count all columns: rows may run on
        ("index = Add(bn, t4)", "index = Add(bn, b4)"),
        ("tr = Range(s0, t0, s1)", "t9 = Range(s0, t0, s1) tr = Neg(t9)"),
    ],
)
def test_other_positions_are_left_alone(old: str, new: str) -> None:
    assert old in BODY
    body, head = BODY.replace(old, new), HEAD.replace("[B,U,W,T]", "[B,U,W,X]")
    assert count(made(body, head, i0=np.array([0])), "flat_gather") == 0


def test_another_shape_is_refused() -> None:
    body = BODY.replace("is = Shape(index) r = Reshape(row, is)", "r = Reshape(row, one)")
    refused(made(body, one=np.array([1, 1, 1, -1])), "flat_gather", "shape of the index")
