"""attention_cache: attention appends keys and values to the cache itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from tests.rules.rule_testing import (
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
    weight,
)

H = 8
SYMBOLS = {"B": 2, "S": 3, "P": 4, "V": 4, "T": 7}
HEAD = (
    "(float[B,S,32] q, float[B,S,16] k, float[B,S,16] v, float[B,2,P,8] pk, float[B,2,V,8] pv, float[B,1,S,T] m) => "
    "(float[B,S,32] y, float[B,2,T,8] kc, float[B,2,W,8] vc)"
)
SPLIT = "".join(f"{n}4 = Reshape({n}, heads) {n}t = Transpose<perm=[0,2,1,3]>({n}4) " for n in "qkv")
JOIN = "kc = Concat<axis=2>(pk, kt) vc = Concat<axis=-2>(pv, vt) "
REPEAT = "{0}u = Unsqueeze({0}c, two) {0}e = Expand({0}u, groups) {0}r = Reshape({0}e, repeated) "
CORE = (
    REPEAT.format("k")
    + REPEAT.format("v")
    + "kT = Transpose<perm=[0,1,3,2]>(kr) s = MatMul(qt, kT) ss = Mul(s, root) sm = Add(ss, m) "
    "w = Softmax<axis=-1>(sm) c = MatMul(w, vr) ct = Transpose<perm=[0,2,1,3]>(c) y = Reshape(ct, whole)"
)
CONSTANTS = {
    "heads": np.array([0, 0, -1, H]),
    "whole": np.array([0, 0, -1]),
    "two": np.array([2]),
    "groups": np.array([1, 1, 2, 1, 1]),
    "repeated": np.array([0, 4, -1, H]),
    "root": np.float32(H**-0.5),
}


def made(body: str = SPLIT + JOIN + CORE, head: str = HEAD, **more: Any) -> onnx.ModelProto:
    return graph(f"{head} {{ {body} }}", 18, **CONSTANTS, **more)


def with_any_sizes() -> onnx.ModelProto:
    return made(head=HEAD.replace("float[B,1,S,T] m", "float[B,1,S,1] m"))


test_contract = contract(Case("attention_cache", with_any_sizes, "sm", needs=("attention",)))


def test_sizes_of_the_caches_need_not_have_equal_names() -> None:
    # torch's exporter names each cache's length anew.
    result = fires(made(), "attention_cache", "attention", symbols=SYMBOLS)
    assert ops(result) == {"cuvil::Attention": 1}
    node = node_of(result, "Attention")
    assert list(node.input) == ["q", "k", "v", "m", "pk", "pv"] and list(node.output) == ["y", "kc", "vc"]
    assert attributes(node)["kv_num_heads"] == 2


@pytest.mark.parametrize(("batch", "rows", "past"), [(1, 1, 9), (3, 5, 0), (2, 4, 1)])
def test_first_and_later_tokens(batch: int, rows: int, past: int) -> None:
    model = made()
    inputs = feeds(model, {"B": batch, "S": rows, "P": past, "V": past, "T": past + rows})
    result = apply(model, "attention_cache", "attention").model
    for old, new in zip(run(model, inputs, plain=True), run(result, inputs), strict=True):
        np.testing.assert_allclose(new, old, rtol=2e-5, atol=2e-5)


def test_heads_that_were_computed_on_stay_transposed() -> None:
    body = SPLIT.replace("kt = Transpose<perm=[0,2,1,3]>(k4)", "k9 = Transpose<perm=[0,2,1,3]>(k4) kt = Neg(k9)")
    result = fires(made(body + JOIN + CORE), "attention_cache", "attention", symbols=SYMBOLS)
    assert ops(result) == {"cuvil::Attention": 1, "Reshape": 1, "Transpose": 1, "Neg": 1}
    assert list(node_of(result, "Attention").input)[2:] == ["v", "m", "pk", "pv"]


def test_projections_of_one_tensor_are_packed_again() -> None:
    head = HEAD.replace("float[B,S,32] q, float[B,S,16] k, float[B,S,16] v", "float[B,S,24] x")
    body = "q = MatMul(x, wq) k = MatMul(x, wk) v = MatMul(x, wv) " + SPLIT + JOIN + CORE
    weights = {f"w{n}": weight(24, size, seed=i) for i, (n, size) in enumerate({"q": 32, "k": 16, "v": 16}.items())}
    result = fires(made(body, head, **weights), "attention_cache", "attention", "qkv_packing", symbols=SYMBOLS)
    assert ops(result) == {"cuvil::Attention": 1, "MatMul": 1}
    node = node_of(result, "Attention")
    assert attributes(node)["layout"] == "packed" and list(node.input)[1:] == ["", "", "m", "pk", "pv"]
    assert list(node.output) == ["y", "kc", "vc"]


def test_only_one_cache_is_refused() -> None:
    head = HEAD.replace(", float[B,2,V,8] pv", "").replace("float[B,S,16] v", "float[B,T,16] v")
    body = SPLIT + JOIN.replace("vc = Concat<axis=-2>(pv, vt)", "vc = Identity(vt)") + CORE
    refused(made(body, head.replace("W,8]", "T,8]")), "attention_cache", "only the keys or only", "attention")


@pytest.mark.parametrize("axis", ["0", "1"])
def test_other_joins_are_not_a_cache(axis: str) -> None:
    # Heads or batches that are put together from two tensors.
    sizes = {"0": ("C,2,S,8", "C,2,S,8"), "1": ("B,1,S,8", "B,1,S,8")}[axis]
    head = HEAD.replace("B,2,P,8", sizes[0]).replace("B,2,V,8", sizes[1]).replace("B,1,S,T", "1,1,S,S")
    head = head.replace("float[B,S,16]", "float[B,S,8]") if axis == "1" else head
    head = head.replace("B,2,T,8", "D,2,S,8").replace("B,2,W,8", "D,2,S,8")
    body = (SPLIT + JOIN + CORE).replace("axis=2>(pk", f"axis={axis}>(pk").replace("axis=-2>(pv", f"axis={axis}>(pv")
    assert count(made(body, head), "attention_cache", "attention") == 0


def test_idempotent() -> None:
    once = apply(made(), "attention_cache", "attention").model
    assert apply(once, "attention_cache", "attention", "qkv_packing").model == once
