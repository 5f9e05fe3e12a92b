"""attention_layout: ONNX Attention as torch's dynamo exporter writes it from opset 23 on."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.rules.rule_testing import Case, apply, attributes, contract, feeds, fires, graph, node_of, ops, refused, run

B, S, H = 3, 5, 8
SYMBOLS = {"B": B, "S": S}
HEAD = "(float[B,S,32] q, float[B,S,32] k, float[B,S,32] v, bool[B,1,S,S] seen) => (float[B,S,32] y)"
PLAIN_HEAD = HEAD.replace(", bool[B,1,S,S] seen", "")
HEADS = "".join(f"{n}4 = Reshape({n}, heads) {n}t = Transpose<perm=[0,2,1,3]>({n}4) " for n in "qkv")
SCALED = "Attention<scale=0.25, is_causal=0, softcap=0.0, qk_matmul_output_mode=0>"
MERGE = "ct = Transpose<perm=[0,2,1,3]>(c) y = Reshape(ct, whole)"
CONSTANTS = {"heads": np.array([0, 0, -1, H]), "whole": np.array([0, 0, -1]), "half": np.float32(0.5)}
MASKED = f"{HEADS} c = {SCALED}(qt, kt, vt, seen) {MERGE}"


def made(body: str, head: str = HEAD, **more: np.ndarray) -> onnx.ModelProto:
    weights = {k: v for k, v in {**CONSTANTS, **more}.items() if f", {k})" in body or f"({k}," in body}
    model = graph(f"{head} {{ {body} }}", 23, **weights)
    model.ir_version = 10
    return model


test_contract = contract(Case("attention_layout", lambda: made(MASKED), "c"))


def test_masked_attention_gives_zero_to_queries_without_keys() -> None:
    result = fires(made(MASKED), "attention_layout", symbols=SYMBOLS)
    assert ops(result) == {"cuvil::Attention": 1}
    node = node_of(result, "Attention")
    assert list(node.input) == ["q", "k", "v", "seen"]
    found = attributes(node)
    assert found["num_heads"] == found["kv_num_heads"] == 4 and found["scale"] == 0.25
    assert found["masked_rows_zero"] == 1


@pytest.mark.parametrize(
    "change",
    [
        {"softcap=0.0": "softcap=5.0"},
        {"scale=0.25": "scale=0.25, softmax_precision=10"},
        {"bool[B,1,S,S]": "bool[B,1,K,S]"},  # not known to have as many rows as there are queries
        {"bool[B,1,S,S]": "double[B,1,S,S]"},
    ],
)
def test_what_the_fused_op_cannot_say_stays_onnx(change: dict[str, str]) -> None:
    head, body = HEAD, MASKED
    for old, new in change.items():
        assert old in head + body
        head, body = head.replace(old, new), body.replace(old, new)
    # ONNX Runtime's CPU has no kernel for some of these: only the structure is checked.
    result = apply(made(body, head), "attention_layout").model
    assert ops(result) == {"Attention": 1}
    found = attributes(node_of(result, "Attention"))
    assert found["q_num_heads"] == found["kv_num_heads"] == 4 and found["scale"] == 0.25


def test_queries_that_see_no_key_stay_zero() -> None:
    model = made(MASKED)
    inputs = feeds(model, SYMBOLS)
    inputs["seen"][0, ..., :2], inputs["seen"][1, ..., 3:], inputs["seen"][2] = False, False, True
    inputs["seen"][0, 0, :2] = False
    (old,), (new,) = run(model, inputs, plain=True), run(apply(model, "attention_layout").model, inputs)
    assert (old[0, :2] == 0).all()
    np.testing.assert_allclose(new, old, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("causal", [0, 1])
def test_without_a_mask_the_projections_can_be_packed(causal: int) -> None:
    body = f"{HEADS} c = Attention<is_causal={causal}>(qt, kt, vt) {MERGE}"
    result = fires(made(body, PLAIN_HEAD), "attention_layout", symbols=SYMBOLS)
    found = attributes(node_of(result, "Attention"))
    assert ops(result) == {"cuvil::Attention": 1}
    assert found["causal"] == causal and found["scale"] == pytest.approx(8**-0.5)


def test_scaled_queries() -> None:
    # Whisper scales the queries and gives the operator the scale 1.
    body = MASKED.replace("q4 = Reshape(q, heads)", "qs = Mul(q, half) q4 = Reshape(qs, heads)")
    result = fires(made(body), "attention_layout", symbols=SYMBOLS)
    assert ops(result) == {"cuvil::Attention": 1} and attributes(node_of(result, "Attention"))["scale"] == 0.125


def test_grouped_heads() -> None:
    head = HEAD.replace("[B,S,32] k", "[B,S,16] k").replace("[B,S,32] v", "[B,S,16] v")
    result = fires(made(MASKED, head), "attention_layout", symbols=SYMBOLS)
    found = attributes(node_of(result, "Attention"))
    assert ops(result) == {"cuvil::Attention": 1} and (found["num_heads"], found["kv_num_heads"]) == (4, 2)


REPEAT = "{0}u = Unsqueeze({0}t, c2) {0}g = Expand({0}u, groups) {0}r = Reshape({0}g, repeated) "
REPEATED = {"c2": np.array([2]), "groups": np.array([1, 1, 2, 1, 1]), "repeated": np.array([0, 4, -1, H])}


def test_repeated_heads_are_taken_once() -> None:
    head = HEAD.replace("[B,S,32] k", "[B,S,16] k").replace("[B,S,32] v", "[B,S,16] v")
    attend = f"{REPEAT.format('k')}{REPEAT.format('v')} c = {SCALED}(qt, kr, vr, seen)"
    body = f"{HEADS} {attend} {MERGE}"
    result = fires(made(body, head, **REPEATED), "attention_layout", symbols=SYMBOLS)
    found = attributes(node_of(result, "Attention"))
    assert ops(result) == {"cuvil::Attention": 1} and (found["num_heads"], found["kv_num_heads"]) == (4, 2)


CACHED = HEAD.replace("[B,S,32] k", "[B,S,16] k").replace("[B,S,32] v, bool[B,1,S,S] seen)", "[B,S,16] v, ")
CACHED = CACHED.replace(" v, ", " v, float[B,2,P,8] pk, float[B,2,P,8] pv, bool[B,1,S,T] seen)")
CACHED = CACHED.replace("[B,S,32] y)", "[B,S,32] y, float[B,2,T,8] kp, float[B,2,T,8] vp)")
PRESENT = f"{HEADS} kp = Concat<axis=2>(pk, kt) vp = Concat<axis=2>(pv, vt) "


def test_a_cache_is_read_as_it_is() -> None:
    body = PRESENT + "".join(REPEAT.format(n).replace(f"({n}t,", f"({n}p,") for n in "kv")
    body += f"c = {SCALED}(qt, kr, vr, seen) {MERGE}"
    model = made(body, CACHED, **REPEATED)
    result = fires(model, "attention_layout", "dead_code", symbols={**SYMBOLS, "P": 4, "T": S + 4})
    assert list(node_of(result, "Attention").input)[1:3] == ["kp", "vp"]
    found = attributes(node_of(result, "Attention"))
    assert (found["num_heads"], found["kv_num_heads"]) == (4, 2) and ops(result)["Transpose"] == 2


def test_a_cache_that_the_fused_op_cannot_take_stays() -> None:
    body = PRESENT + f"c = {SCALED.replace('softcap=0.0', 'softcap=5.0')}(qt, kp, vp, seen) {MERGE}"
    refused(made(body, CACHED), "attention_layout", "not a [B, S, N * H] tensor")


def test_keys_and_values_that_are_repeated_differently_are_refused() -> None:
    head = HEAD.replace("[B,S,32] k", "[B,S,16] k")
    body = f"{HEADS} {REPEAT.format('k')} c = {SCALED}(qt, kr, vt, seen) {MERGE}"
    refused(made(body, head, **REPEATED), "attention_layout", "2 of keys and 4 of values")


def test_values_of_another_size_stay_onnx() -> None:
    body = MASKED.replace("Reshape(v, heads)", "Reshape(v, wide)").replace(", seen)", ")")
    head = PLAIN_HEAD.replace("[B,S,32] v", "[B,S,64] v").replace("[B,S,32] y", "[B,S,64] y")
    result = fires(made(body, head, wide=np.array([0, 0, -1, 16])), "attention_layout", symbols=SYMBOLS)
    assert ops(result) == {"Attention": 1}


def test_heads_merged_into_rows() -> None:
    body = MASKED.replace("Reshape(ct, whole)", "Reshape(ct, rows)")
    model = made(body, HEAD.replace("[B,S,32] y", "[R,32] y"), rows=np.array([-1, 32]))
    assert ops(fires(model, "attention_layout", symbols=SYMBOLS)).keys() == {"cuvil::Attention", "Reshape"}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"qt = Transpose<perm=[0,2,1,3]>(q4)": "qt = Transpose<perm=[2,0,1,3]>(q4)"}, "queries are not"),
        ({"vt = Transpose<perm=[0,2,1,3]>(v4)": "vs = Transpose<perm=[0,2,1,3]>(v4) vt = Mul(vs, half)"}, "scaled"),
        ({"ct = Transpose<perm=[0,2,1,3]>(c)": "ct = Transpose<perm=[0,2,3,1]>(c)"}, "not merged"),
    ],
)
def test_refusals(change: dict[str, str], reason: str) -> None:
    body = MASKED
    for old, new in change.items():
        assert old in body
        body = body.replace(old, new)
    head = HEAD.replace("bool[B,1,S,S]", "bool[1,1,S,S]").replace("[B,S,32]", "[4,4,32]").replace("S,S", "4,4")
    refused(made(body, head), "attention_layout", reason)


def test_cache_is_refused() -> None:
    head = HEAD.replace(" seen) => (", " seen, float[B,4,P,8] pk, float[B,4,P,8] pv) => (").replace("1,S,S]", "1,S,K]")
    head = head.replace("32] y)", "32] y, float[B,4,K,8] nk, float[B,4,K,8] nv)")
    body = MASKED.replace(", seen)", ", seen, pk, pv)").replace("c = ", "c, nk, nv = ")
    refused(made(body, head), "attention_layout", "cache")


def test_merged_heads_are_not_the_pattern() -> None:
    body = "y = Attention<q_num_heads=4, kv_num_heads=4>(q, k, v)"
    refused(made(body, PLAIN_HEAD), "attention_layout", "")
