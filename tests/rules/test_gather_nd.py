"""gather_nd: rows by one index, and what torch writes for mask[batch, position]."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.rules.rule_testing import Case, apply, contract, feeds, fires, graph, node_of, ops, refused, run

ROWS = "u = Unsqueeze(i, last) g = GatherND(x, u) y = Neg(g)"
ROWS_HEAD = "(float[V,4] x, int64[B,S] i) => (float[B,S,4] y)"
SYMBOLS = {"B": 2, "S": 3, "V": 5}


def rows() -> onnx.ModelProto:
    return graph(f"{ROWS_HEAD} {{ {ROWS} }}", 18, last=np.array([-1]))


test_contract = contract(Case("gather_nd", rows, "u", exact=True, kept=1))


def test_rows_by_one_index() -> None:
    assert ops(fires(rows(), "gather_nd", "dead_code", symbols=SYMBOLS, exact=True)) == {"Gather": 1, "Neg": 1}


def test_negative_indices_count_from_the_end() -> None:
    model = rows()
    inputs = {"x": np.arange(20, dtype=np.float32).reshape(5, 4), "i": np.array([[-1, 0, -5]])}
    (old,), (new,) = run(model, inputs, plain=True), run(apply(model, "gather_nd").model, inputs)
    np.testing.assert_array_equal(new, old)


# mask[batch, position] [B, 1, 1, T], the mask being bool; sizes from other tensors.
COUNT = (
    "bs = Shape<start=0, end=1>(q) b0 = Squeeze(bs) ts = Shape<start=1, end=2>(q) t0 = Squeeze(ts) "
    "br = Range(zero, b0, one) b4 = Unsqueeze(br, a123) tr = Range(zero, t0, one) t4 = Unsqueeze(tr, a012) "
    "m = Max(b4, t4) ms = Shape(m) be = Expand(b4, ms) te = Expand(t4, ms) "
    "bl = Unsqueeze(be, last) tl = Unsqueeze(te, last) "
)
PICK = "seen = Cast<to=9>(mask) i = Concat<axis=-1>(bl, tl) g = GatherND(seen, i) y = Not(g)"
HEAD = "(float[B,T] q, int64[M,N] mask) => (bool[B,U,W,T] y)"
CONSTANTS = {
    "zero": np.int64(0),
    "one": np.int64(1),
    "a123": np.array([1, 2, 3]),
    "a012": np.array([0, 1, 2]),
    "last": np.array([-1]),
}


def picked(head: str = HEAD, count: str = COUNT, pick: str = PICK) -> onnx.ModelProto:
    return graph(f"{head} {{ {count}{pick} }}", 18, **CONSTANTS)


def same(model: onnx.ModelProto, mask: np.ndarray, *rules: str) -> onnx.ModelProto:
    inputs = {"q": np.zeros((2, 5), np.float32), "mask": mask}
    result = apply(model, "gather_nd", "dead_code", "shape_chain", *rules)
    assert result.report.trace.counts["gather_nd"] == 1
    (old,), (new,) = run(model, inputs, plain=True), run(result.model, inputs)
    np.testing.assert_array_equal(new, old)
    return result.model


@pytest.mark.parametrize("shape", [(2, 5), (3, 7), (2, 8)])
def test_the_mask_may_be_larger_than_what_is_counted(shape: tuple[int, int]) -> None:
    mask = np.random.default_rng(0).integers(0, 2, shape)
    result = same(picked(), mask)
    assert ops(result)["Slice"] == 1 and "GatherND" not in ops(result)


def test_a_mask_of_just_that_size_is_taken_as_it_is() -> None:
    mask = np.random.default_rng(1).integers(0, 2, (2, 5))
    result = same(picked(HEAD.replace("[M,N]", "[B,T]")), mask)
    assert ops(result) == {"Unsqueeze": 1, "Cast": 1, "Not": 1}
    result = same(picked(HEAD.replace("[M,N]", "[B,N]")), mask)
    assert ops(result)["Slice"] == 1


def test_columns_before_rows_are_left_alone() -> None:
    count = COUNT.replace("(br, a123)", "(br, a012)").replace("(tr, a012)", "(tr, a123)")
    refused(picked(HEAD.replace("[B,U,W,T]", "[T,U,W,B]"), count), "gather_nd", "")


@pytest.mark.parametrize(
    ("old", "new"),
    [("Range(zero, b0, one)", "Range(one, b0, one)"), ("<axis=-1>(bl, tl)", "<axis=-1>(bl, bl)")],
)
def test_other_numbers_are_left_alone(old: str, new: str) -> None:
    text = COUNT + PICK
    assert old in text
    head = HEAD.replace("[B,U,W,T]", "[X,U,W,Y]")
    assert (
        apply(graph(f"{head} {{ {text.replace(old, new)} }}", 18, **CONSTANTS), "gather_nd").report.trace.counts.get(
            "gather_nd", 0
        )
        == 0
    )


def test_an_index_that_repeats_is_refused() -> None:
    count = COUNT.replace("m = Max(b4, t4)", "hr = Range(zero, k, one) h4 = Unsqueeze(hr, a023) m = Max(b4, t4, h4)")
    head = HEAD.replace("(float", "(int64 k, float").replace("[B,U,W,T]", "[B,K,W,T]")
    model = graph(f"{head} {{ {count}{PICK} }}", 18, **CONSTANTS, a023=np.array([0, 2, 3]))
    refused(model, "gather_nd", "repeats what it counts")


def test_batch_dims_are_left_alone() -> None:
    text = ROWS.replace("GatherND(x, u)", "GatherND<batch_dims=1>(x, u)")
    model = graph(f"(float[B,V,4] x, int64[B,S] i) => (float[B,S,4] y) {{ {text} }}", 18, last=np.array([-1]))
    refused(model, "gather_nd", "")
    assert feeds(model) and node_of(model, "GatherND")
