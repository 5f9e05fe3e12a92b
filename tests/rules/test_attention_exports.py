"""attention: the node sequences that torch's exporters write for BERT, GPT-2, Llama and T5."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.rules.rule_testing import (
    RTOL,
    Case,
    apply,
    attributes,
    contract,
    count,
    feeds,
    fires,
    graph,
    node_of,
    ops,
    refused,
    run,
)

B, S, N, H = 3, 5, 4, 8
SYMBOLS = {"B": B, "S": S}
HALF_SCALE = np.float32(8**-0.25)
LOWEST = np.array([np.finfo(np.float32).min], np.float32)
QKV = "float[B,S,32] q, float[B,S,32] k, float[B,S,32] v"
CONSTANTS = {
    "heads": np.array([0, 0, -1, H]),
    "whole": np.array([0, 0, -1]),
    "half": HALF_SCALE,
    "root": np.float32(8**-0.5),
    "none": np.zeros(1, np.float32),
    "hide": np.array([-np.inf], np.float32),
    "lowest": LOWEST,
}


def made(body: str, head: str, opset: int = 17, **more: np.ndarray) -> onnx.ModelProto:
    weights = {**CONSTANTS, **more}
    used = {k: v for k, v in weights.items() if any(f"{a}{k}{b}" in body for a in " (" for b in ",)")}
    return graph(f"{head} {{ {body} }}", opset, **used)


# scaled_dot_product_attention with a bool mask, legacy exporter: half of the scale on each side, a guard against rows
# that are NaN because every key is hidden.
SDPA_HEAD = f"({QKV}, bool[B,1,S,S] seen) => (float[B,S,32] y)"
SDPA_HEADS = (
    "q4 = Reshape(q, heads) qt = Transpose<perm=[0,2,1,3]>(q4) k4 = Reshape(k, heads) v4 = Reshape(v, heads) "
    "vt = Transpose<perm=[0,2,1,3]>(v4) kt = Transpose<perm=[0,2,3,1]>(k4) "
)
SDPA_SCORES = (
    "qs = Mul(qt, half) ks = Mul(kt, half) s = MatMul(qs, ks) m = Where(seen, none, hide) sm = Add(s, m) "
    "p = Softmax<axis=-1>(sm) "
)
GUARD = "nan = IsNaN(p) w = Where(nan, none, p) "
MERGE = "c = MatMul(w, vt) ct = Transpose<perm=[0,2,1,3]>(c) y = Reshape(ct, whole)"
SDPA = SDPA_HEADS + SDPA_SCORES + GUARD + MERGE

test_contract = contract(Case("attention", lambda: made(SDPA, SDPA_HEAD), "sm"))


def hidden_rows(seen: np.ndarray) -> np.ndarray:
    """Left and right padding, and a query without any key."""
    seen[0, ..., :2], seen[1, ..., 3:], seen[2] = False, False, True
    seen[0, 0, :2] = False
    return seen


@pytest.mark.parametrize("opset", [11, 13, 17, 18])
def test_rows_without_keys_stay_zero(opset: int) -> None:
    model = made(SDPA, SDPA_HEAD, opset)
    result = apply(model, "attention")
    assert result.report.trace.counts["attention"] == 1
    inputs = feeds(model, SYMBOLS)
    hidden_rows(inputs["seen"])
    (old,), (new,) = run(model, inputs, plain=True), run(result.model, inputs)
    assert (old[0, :2] == 0).all() and (old[0, 2:] != 0).any()
    np.testing.assert_allclose(new, old, rtol=RTOL, atol=RTOL)


def test_the_guard_becomes_an_attribute() -> None:
    result = fires(made(SDPA, SDPA_HEAD), "attention", symbols=SYMBOLS)
    assert ops(result) == {"cuvil::Attention": 1, "Where": 1}
    assert attributes(node_of(result, "Attention"))["masked_rows_zero"] == 1
    # Without the guard such a row is NaN before and after.
    bare = made(SDPA.replace(GUARD, "").replace("MatMul(w, vt)", "MatMul(p, vt)"), SDPA_HEAD)
    inputs = feeds(bare, SYMBOLS)
    hidden_rows(inputs["seen"])
    result = apply(bare, "attention").model
    assert attributes(node_of(result, "Attention"))["masked_rows_zero"] == 0
    (old,), (new,) = run(bare, inputs, plain=True), run(result, inputs)
    assert np.isnan(old[0, :2]).all()
    np.testing.assert_allclose(new, old, rtol=RTOL, atol=RTOL)


def test_nan_in_the_input_is_not_hidden() -> None:
    model = made(SDPA, SDPA_HEAD)
    inputs = feeds(model, SYMBOLS)
    inputs["seen"][:] = True
    for name in "qkv":
        inputs[name][1, 2] = np.nan
    (old,), (new,) = run(model, inputs, plain=True), run(apply(model, "attention").model, inputs)
    assert np.isnan(old[1]).all() and np.isnan(new[1]).all()
    np.testing.assert_allclose(new[[0, 2]], old[[0, 2]], rtol=RTOL, atol=RTOL)


# The dynamo exporter hides with the lowest number (no row is ever NaN) and transposes the keys as a batch of matrices.
DYNAMO_KEYS = (
    "q4 = Reshape(q, heads) qt = Transpose<perm=[0,2,1,3]>(q4) k4 = Reshape(k, heads) "
    "kh = Transpose<perm=[0,2,1,3]>(k4) v4 = Reshape(v, heads) vt = Transpose<perm=[0,2,1,3]>(v4) "
    "ksh = Shape<start=0>(kh) kl = Slice(ksh, m1, end) km = Slice(ksh, m2, m1) kf = Slice(ksh, begin, m2) "
    "k3s = Concat<axis=0>(m1, km, kl) k3 = Reshape<allowzero=0>(kh, k3s) k3t = Transpose<perm=[0,2,1]>(k3) "
    "k4s = Concat<axis=0>(kf, kl, km) kt = Reshape<allowzero=0>(k3t, k4s) "
)
DYNAMO_SIZES = {
    "m1": np.array([-1]),
    "m2": np.array([-2]),
    "begin": np.array([-(2**63)]),
    "end": np.array([2**63 - 1]),
}


def test_dynamo_transposes_the_keys_in_a_batch() -> None:
    body = DYNAMO_KEYS + SDPA_SCORES.replace("hide", "lowest") + GUARD + MERGE
    model = made(body, SDPA_HEAD, 18, **DYNAMO_SIZES)
    needs = ("batched_transpose", "shape_chain", "dead_code")
    result = fires(model, "attention", *needs, symbols=SYMBOLS)
    assert ops(result) == {"cuvil::Attention": 1, "Where": 1}
    inputs = feeds(model, SYMBOLS)
    hidden_rows(inputs["seen"])
    (old,), (new,) = run(model, inputs, plain=True), run(result, inputs)
    np.testing.assert_allclose(new, old, rtol=RTOL, atol=RTOL)


def test_guard_without_a_mask_goes() -> None:
    scores = SDPA_SCORES.replace("m = Where(seen, none, hide) sm = Add(s, m) p = Softmax<axis=-1>(sm)", "") + (
        "p = Softmax<axis=-1>(s) "
    )
    model = made(SDPA_HEADS + scores + GUARD + MERGE, SDPA_HEAD.replace(", bool[B,1,S,S] seen", ""))
    assert ops(fires(model, "attention", symbols=SYMBOLS)) == {"cuvil::Attention": 1}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"Where(nan, none, p)": "Where(nan, one, p)"}, ""),
        ({"Where(nan, none, p)": "Where(nan, p, none)"}, ""),
        ({"IsNaN(p)": "IsInf(p)"}, ""),
        ({"IsNaN(p)": "IsNaN(sm)"}, ""),
        ({"bool[B,1,S,S]": "bool[B,1,K,S]"}, "not known to fit"),
        ({"bool[B,1,S,S]": "bool[K,1,S,S]"}, "not known to fit"),
    ],
)
def test_near_misses_of_the_guard(change: dict[str, str], reason: str) -> None:
    head, body = SDPA_HEAD, SDPA
    for old, new in change.items():
        head, body = head.replace(old, new), body.replace(old, new)
    refused(made(body, head, one=np.ones(1, np.float32)), "attention", reason)


@pytest.mark.parametrize("hide", ["hide", "lowest"])
def test_mask_by_head(hide: str) -> None:
    head = SDPA_HEAD.replace("bool[B,1,S,S]", "bool[B,4,S,S]")
    result = fires(made(SDPA.replace("hide", hide), head), "attention", symbols=SYMBOLS)
    assert attributes(node_of(result, "Attention"))["masked_rows_zero"] == int(hide == "hide")


# GPT-2: one projection split into three, the heads merged straight into rows for the next Gemm.
GPT2_HEAD = "(float[B,S,96] x, float[B,1,S,S] m) => (float[R,32] y)"
GPT2 = (
    "q, k, v = Split<axis=2>(x, parts) k4 = Reshape(k, heads) v4 = Reshape(v, heads) "
    "vt = Transpose<perm=[0,2,1,3]>(v4) q4 = Reshape(q, heads) qt = Transpose<perm=[0,2,1,3]>(q4) "
    "kt = Transpose<perm=[0,2,3,1]>(k4) s = MatMul(qt, kt) ss = Mul(s, root) sm = Add(ss, m) "
    "w = Softmax<axis=-1>(sm) c = MatMul(w, vt) ct = Transpose<perm=[0,2,1,3]>(c) y = Reshape(ct, rows)"
)
GPT2_SIZES = {"parts": np.array([32, 32, 32]), "rows": np.array([-1, 32])}


def test_split_projection_is_packed() -> None:
    result = fires(made(GPT2, GPT2_HEAD, **GPT2_SIZES), "attention", symbols=SYMBOLS)
    node = node_of(result, "Attention")
    assert list(node.input) == ["x", "", "", "m"] and attributes(node)["layout"] == "packed"
    assert ops(result).keys() == {"cuvil::Attention", "Reshape"}


@pytest.mark.parametrize("names", ["k, q, v =", "q, v, k ="])
def test_split_in_another_order_stays_separate(names: str) -> None:
    model = made(GPT2.replace("q, k, v =", names), GPT2_HEAD, **GPT2_SIZES)
    assert attributes(node_of(fires(model, "attention", symbols=SYMBOLS), "Attention"))["layout"] == "separate"


def test_heads_that_are_merged_in_another_order_are_refused() -> None:
    body = GPT2.replace("ct = Transpose<perm=[0,2,1,3]>(c)", "ct = Transpose<perm=[0,2,3,1]>(c)")
    refused(made(body, GPT2_HEAD, **GPT2_SIZES), "attention", "not merged")


# Llama: rotary positions on queries and keys, keys and values repeated for groups of heads.
ROTARY = (
    "{0}a = Slice({0}h, c0, c4, c3, c1) {0}b = Slice({0}h, c4, c8, c3, c1) {0}n = Neg({0}b) "
    "{0}r = Concat<axis=-1>({0}n, {0}a) {0}x = Mul({0}h, cos) {0}y = Mul({0}r, sin) {0}e = Add({0}x, {0}y) "
)
REPEAT = "{0}u = Unsqueeze({1}, c2) {0}g = Expand({0}u, groups) {0}t = Reshape({0}g, repeated) "
LLAMA_HEAD = (
    "(float[B,S,32] q, float[B,S,16] k, float[B,S,16] v, float[1,1,S,8] cos, float[1,1,S,8] sin, "
    "float[B,1,S,S] m) => (float[B,S,32] y)"
)
LLAMA = (
    "q4 = Reshape(q, heads) qh = Transpose<perm=[0,2,1,3]>(q4) k4 = Reshape(k, heads) "
    "kh = Transpose<perm=[0,2,1,3]>(k4) v4 = Reshape(v, heads) vh = Transpose<perm=[0,2,1,3]>(v4) "
    + ROTARY.format("q")
    + ROTARY.format("k")
    + REPEAT.format("k", "ke")
    + REPEAT.format("v", "vh")
    + "kT = Transpose<perm=[0,1,3,2]>(kt) s = MatMul(qe, kT) ss = Mul(s, root) sm = Add(ss, m) "
    "w = Softmax<axis=-1>(sm) c = MatMul(w, vt) ct = Transpose<perm=[0,2,1,3]>(c) y = Reshape(ct, whole)"
)
LLAMA_SIZES = {
    "groups": np.array([1, 1, 2, 1, 1]),
    "repeated": np.array([0, N, -1, H]),
    **{f"c{i}": np.array([i]) for i in (0, 1, 2, 3, 4, 8)},
}


def test_rotated_queries_and_repeated_keys() -> None:
    result = fires(made(LLAMA, LLAMA_HEAD, **LLAMA_SIZES), "attention", symbols=SYMBOLS)
    assert ops(result)["cuvil::Attention"] == 1 and not {"Softmax", "MatMul"} & ops(result).keys()
    assert count(result, "attention") == 0
    # The old form of the rotation is dead code, then only the cosines and sines are transposed.
    result = fires(made(LLAMA, LLAMA_HEAD, **LLAMA_SIZES), "attention", "dead_code", "cse", symbols=SYMBOLS)
    assert ops(result)["Transpose"] == 2 and ops(result)["Neg"] == 2


@pytest.mark.parametrize(
    ("change", "transposes"),
    [
        # The keys are wanted in the old form as well: they are read in that, which is cheaper than a second rotation.
        ({"ku = ": "old = Neg(ke) ku = ", "[B,S,32] y)": "[B,S,32] y, float[B,2,S,8] old)"}, 3),
        # An operator that is not known to work on each element, or along another axis.
        ({"qr = Concat<axis=-1>(qn, qa)": "q9 = Concat<axis=-1>(qn, qa) qr = Softmax<axis=-1>(q9)"}, 4),
        ({"qb = Slice(qh, c4, c8, c3, c1)": "q9 = Slice(qh, c4, c8, c3, c1) qb = CumSum(q9, c2)"}, 4),
    ],
)
def test_heads_that_cannot_be_swapped(change: dict[str, str], transposes: int) -> None:
    head, body = LLAMA_HEAD, LLAMA
    for old, new in change.items():
        assert old in head + body
        head, body = head.replace(old, new), body.replace(old, new)
    result = fires(made(body, head, **LLAMA_SIZES), "attention", "dead_code", "cse", symbols=SYMBOLS)
    # Two for queries, one for keys, and the cosines and sines of the other.
    assert ops(result)["cuvil::Attention"] == 1 and ops(result)["Transpose"] == transposes


def test_rotation_that_differs_by_head_is_transposed() -> None:
    body = LLAMA.replace(REPEAT.format("k", "ke"), "kt = Neg(ke) ").replace(REPEAT.format("v", "vh"), "vt = Neg(vh) ")
    head = LLAMA_HEAD.replace("32] q", "16] q").replace("32] y", "16] y").replace("[1,1,S,8] cos", "[1,2,S,8] cos")
    result = fires(made(body, head, **LLAMA_SIZES), "attention", "dead_code", "cse", symbols=SYMBOLS)
    assert ops(result)["cuvil::Attention"] == 1 and ops(result)["Transpose"] == 3


def test_a_single_head_of_keys_may_be_repeated_by_matmul() -> None:
    body = LLAMA.replace(REPEAT.format("k", "ke"), "kt = Identity(ke) ")
    body = body.replace(REPEAT.format("v", "vh"), "vt = Identity(vh) ")
    head = LLAMA_HEAD.replace("[B,S,16] k", "[B,S,8] k").replace("[B,S,16] v", "[B,S,8] v")
    result = fires(made(body, head, **LLAMA_SIZES), "attention", "identity", symbols=SYMBOLS)
    found = attributes(node_of(result, "Attention"))
    assert (found["num_heads"], found["kv_num_heads"]) == (N, 1)


def test_heads_of_unknown_number_are_refused() -> None:
    # Reshape to sizes that come from outside.
    body = LLAMA.replace("Reshape(q, heads)", "Reshape(q, given)")
    head = LLAMA_HEAD.replace("(float[B,S,32] q", "(int64[4] given, float[B,S,32] q")
    refused(made(body, head, **LLAMA_SIZES), "attention", "queries are not")


# T5: a bias by head and distance, and the padding, added one after the other; the keys' size is read from them.
T5_HEAD = f"({QKV}, float[1,4,S,S] bias, float[B,1,1,S] pad) => (float[B,S,32] y, int64[4] size)"
T5 = (
    "q4 = Reshape(q, heads) qt = Transpose<perm=[0,2,1,3]>(q4) k4 = Reshape(k, heads) "
    "kh = Transpose<perm=[0,2,1,3]>(k4) size = Shape(kh) v4 = Reshape(v, heads) vt = Transpose<perm=[0,2,1,3]>(v4) "
    "kt = Transpose<perm=[0,2,3,1]>(k4) s = MatMul(qt, kt) s1 = Add(s, bias) s2 = Add(s1, pad) "
    "w = Softmax<axis=-1>(s2) c = MatMul(w, vt) ct = Transpose<perm=[0,2,1,3]>(c) y = Reshape(ct, whole)"
)


def test_two_masks_are_added_and_keys_that_others_read_stay() -> None:
    result = fires(made(T5, T5_HEAD), "attention", symbols=SYMBOLS)
    assert ops(result) == {"cuvil::Attention": 1, "Add": 1, "Reshape": 1, "Transpose": 1, "Shape": 1}


def test_masks_of_two_element_types_are_refused() -> None:
    head = T5_HEAD.replace("float[", "float16[").replace("float16[B,1,1,S] pad", "float[B,1,1,S] pad")
    body = T5.replace("s2 = Add(s1, pad) w = Softmax<axis=-1>(s2)", "s3 = Cast<to=1>(s1) s2 = Add(s3, pad) ") + " "
    body = body.replace("c = MatMul", "w3 = Softmax<axis=-1>(s2) w = Cast<to=10>(w3) c = MatMul")
    refused(made(body, head), "attention", "another element type")
