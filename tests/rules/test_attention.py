"""attention: the written-out forms of multi-head attention."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.rules.rule_testing import Case, attributes, contract, fires, graph, node_of, ops, refused, weight

B, S, T, N, H = 2, 5, 7, 4, 8
HEAD = "(float[B,S,32] q, float[B,T,32] k, float[B,T,32] v, float[B,1,1,T] mask) => (float[B,S,32] y)"
SPLIT = (
    "q4 = Reshape(q, heads) qt = Transpose<perm=[0,2,1,3]>(q4) "
    "k4 = Reshape(k, heads) kt = Transpose<perm=[0,2,3,1]>(k4) "
    "v4 = Reshape(v, heads) vt = Transpose<perm=[0,2,1,3]>(v4) "
)
SCORES = "qk = MatMul(qt, kt) sc = Div(qk, root) sm = Add(sc, mask) p = Softmax<axis=-1>(sm) "
MERGE = "c = MatMul(p, vt) ct = Transpose<perm=[0,2,1,3]>(c) y = Reshape(ct, whole)"
CONSTANTS = {
    "heads": np.array([0, 0, N, H]),
    "whole": np.array([0, 0, N * H]),
    "root": np.float32(8**0.5),
    "scale": np.float32(0.25),
    "w": weight(32, 32),
}
SYMBOLS = {"B": B, "S": S, "T": T}


def made(body: str, head: str = HEAD, opset: int = 17, **changes: np.ndarray) -> onnx.ModelProto:
    weights = {**CONSTANTS, **changes}
    used = {k: v for k, v in weights.items() if f" {k})" in body or f"({k}," in body or f" {k}," in body}
    return graph(f"{head} {{ {body} }}", opset, **used)


# The last product may be read by others: then the heads are not merged for the fused op alone.
test_contract = contract(Case("attention", lambda: made(SPLIT + SCORES + MERGE), "sc"))


def fused(model: onnx.ModelProto, **expected: object) -> onnx.NodeProto:
    result = fires(model, "attention", symbols=SYMBOLS)
    node = node_of(result, "Attention")
    found = attributes(node)
    for key, value in {"num_heads": N, "scale": pytest.approx(8**-0.5), **expected}.items():
        assert found[key] == value
    return node


def test_inputs_and_attributes() -> None:
    assert list(fused(made(SPLIT + SCORES + MERGE)).input) == ["q", "k", "v", "mask"]


@pytest.mark.parametrize(
    ("split", "scores", "scale"),
    [
        (SPLIT, "qk = MatMul(qt, kt) sc = Mul(scale, qk) sm = Add(mask, sc) p = Softmax<axis=3>(sm) ", 0.25),
        (
            SPLIT.replace("(q, heads)", "(qs, heads)").replace("q4 =", "qs = Mul(q, scale) q4 =", 1),
            "qk = MatMul(qt, kt) sm = Add(qk, mask) p = Softmax<axis=-1>(sm) ",
            0.25,
        ),
        (
            SPLIT,
            "qs = Mul(qt, scale) ks = Div(kt, root) qk = MatMul(qs, ks) sm = Add(qk, mask) p = Softmax<axis=-1>(sm) ",
            0.25 / 8**0.5,
        ),
        (
            SPLIT.replace("kt = Transpose<perm=[0,2,3,1]>(k4)", "k5 = Transpose<perm=[0,2,1,3]>(k4) ")
            + "kt = Transpose<perm=[0,1,3,2]>(k5) ",
            SCORES,
            8**-0.5,
        ),
    ],
)
def test_scale_and_transposes_anywhere(split: str, scores: str, scale: float) -> None:
    fused(made(split + scores + MERGE), scale=pytest.approx(scale))


def test_without_mask() -> None:
    head = HEAD.replace(", float[B,1,1,T] mask", "")
    scores = "qk = MatMul(qt, kt) sc = Div(qk, root) p = Softmax<axis=-1>(sc) "
    assert list(fused(made(SPLIT + scores + MERGE, head)).input) == ["q", "k", "v"]


@pytest.mark.parametrize("mask", ["[B,4,S,T]", "[1,1,S,T]", "[S,T]", "[B,1,S,T]"])
def test_masks_that_broadcast(mask: str) -> None:
    fused(made(SPLIT + SCORES + MERGE, HEAD.replace("[B,1,1,T] mask", f"{mask} mask")))


@pytest.mark.parametrize("keys", [1, T])
def test_the_values_tell_that_a_mask_has_as_many_keys(keys: int) -> None:
    model = made(SPLIT + SCORES + MERGE, HEAD.replace("[B,1,1,T] mask", "[B,1,1,U] mask"))
    fires(model, "attention", symbols={**SYMBOLS, "U": keys})


def test_shapes_computed_at_run_time() -> None:
    body = (
        "z = Constant<value=int64 {0}>() o = Constant<value=int64 {1}>() "
        "hs = Constant<value=int64[2] {4, 8}>() ws = Constant<value=int64[1] {32}>() "
        "ax = Constant<value=int64[1] {0}>() "
    )
    for name in "qkv":
        body += (
            f"{name}s = Shape({name}) {name}b = Gather({name}s, z) {name}n = Gather({name}s, o) "
            f"{name}b1 = Unsqueeze({name}b, ax) {name}n1 = Unsqueeze({name}n, ax) "
            f"{name}h = Concat<axis=0>({name}b1, {name}n1, hs) "
        )
    split = SPLIT
    for name in "qkv":
        split = split.replace(f"Reshape({name}, heads)", f"Reshape({name}, {name}h)")
    tail = (
        "c = MatMul(p, vt) ct = Transpose<perm=[0,2,1,3]>(c) cs = Shape(ct) cb = Gather(cs, z) cn = Gather(cs, o) "
        "cb1 = Unsqueeze(cb, ax) cn1 = Unsqueeze(cn, ax) w3 = Concat<axis=0>(cb1, cn1, ws) y = Reshape(ct, w3)"
    )
    model = made(body + split + SCORES + tail)
    result = fires(model, "attention", "shape_chain", "dead_code", symbols=SYMBOLS)
    assert ops(result) == {"cuvil::Attention": 1}


def test_half_with_float32_softmax() -> None:
    head = HEAD.replace("float[", "float16[")
    scores = (
        "qk = MatMul(qt, kt) sc = Div(qk, root) sm = Add(sc, mask) s32 = Cast<to=1>(sm) p32 = Softmax<axis=-1>(s32) "
        "p = Cast<to=10>(p32) "
    )
    model = made(SPLIT + scores + MERGE, head, root=np.float16(8**0.5))
    result = fires(model, "attention", rtol=4e-3, atol=4e-3, symbols=SYMBOLS)
    assert ops(result) == {"cuvil::Attention": 1}


PACKED_HEAD = "(float[B,S,96] x) => (float[B,S,32] y)"
PACKED = "r = Reshape(x, five) t = Transpose<perm=[2,0,3,1,4]>(r) "
PACKED_SCORES = (
    "ks = Transpose<perm=[0,1,3,2]>(kt) qs = Mul(qt, scale) qz = Add(qs, zero) "
    "qk = MatMul(qz, ks) p = Softmax<axis=-1>(qk) "
)
CHOICES = {
    "gather": "qt = Gather<axis=0>(t, i0) kt = Gather<axis=0>(t, i1) vt = Gather<axis=0>(t, i2) ",
    "slice": "".join(
        f"{n}s = Slice(t, a{i}, a{i + 1}, a0, a1) {n}t = Squeeze({n}s, a0) ".replace("qs", "q1")
        for i, n in enumerate("qkv")
    )
    .replace("ks =", "k1 =")
    .replace("(ks,", "(k1,"),
    "split": "q1, k1, v1 = Split<axis=0>(t) qt = Squeeze(q1, a0) kt = Squeeze(k1, a0) vt = Squeeze(v1, a0) ",
}
INDICES = {f"i{i}": np.array(i) for i in range(3)} | {f"a{i}": np.array([i]) for i in range(4)}


def packed(choice: str, **changes: np.ndarray) -> onnx.ModelProto:
    shapes = {"five": np.array([0, 0, 3, N, H]), "zero": np.float32(0)}
    return made(PACKED + choice + PACKED_SCORES + MERGE, PACKED_HEAD, **{**shapes, **INDICES, **changes})


@pytest.mark.parametrize("kind", list(CHOICES))
def test_three_parts_of_one_tensor(kind: str) -> None:
    node = fused(packed(CHOICES[kind]), scale=pytest.approx(0.25), layout="packed")
    assert list(node.input) == ["x"]


def test_parts_in_another_order_are_merged_one_by_one() -> None:
    choice = CHOICES["gather"].replace("(t, i0)", "(t, i3)").replace("(t, i1)", "(t, i0)").replace("i3", "i1")
    node = fused(packed(choice), scale=pytest.approx(0.25), layout="separate")
    assert len(set(node.input)) == 3


def test_scaled_values_are_refused() -> None:
    choice = CHOICES["gather"].replace("vt =", "v1 =") + "vt = Mul(v1, scale) "
    refused(packed(choice), "attention", "values are scaled")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"axis=-1": "axis=2"}, "not over the keys"),
        ({"(q, heads)": "(q, two)"}, "different heads"),
        ({"[B,1,1,T] mask": "[C,1,1,T] mask"}, "mask is not known to fit"),
        ({"[B,1,1,T] mask": "[B,1,U,T] mask"}, "mask is not known to fit"),
        ({"[B,T,32] k": "[C,T,32] k", "[B,T,32] v": "[C,T,32] v"}, "batch sizes are not known"),
        ({"sc = Div(qk, root) sm = Add(sc, mask)": "sc = Add(qk, mask) sm = Div(sc, root)"}, "before the scale"),
        ({"perm=[0,2,1,3]>(q4)": "perm=[2,0,1,3]>(q4)"}, "queries are not"),
        ({"perm=[0,2,1,3]>(c)": "perm=[0,1,2,3]>(c)", "whole": "flat"}, "not merged"),
    ],
)
def test_refusals(change: dict[str, str], reason: str) -> None:
    head, body = HEAD, SPLIT + SCORES + MERGE
    for old, new in change.items():
        head, body = head.replace(old, new), body.replace(old, new)
    shapes = {"two": np.array([0, 0, 2, 16]), "flat": np.array([0, 4, -1])}
    if reason == "different heads":
        # The product needs equal head sizes: queries of 2 heads of 16 against keys of 2 heads of 16, values of 4.
        body = body.replace("(k, heads)", "(k, two)").replace("float[B,1,1,T] mask", "float[1,1,1,T] mask")
        shapes["two"] = np.array([0, 0, 1, 32])
    refused(made(body, head, **shapes), "attention", reason)


def test_double_precision_is_refused() -> None:
    model = made(SPLIT + SCORES + MERGE, HEAD.replace("float[", "double["), root=np.float64(8**0.5))
    refused(model, "attention", "element type")


def test_softmax_of_something_else_is_not_the_pattern() -> None:
    refused(graph("(float[2,3,4,5] x) => (float[2,3,4,5] y) { y = Softmax(x) }"), "attention", "")
