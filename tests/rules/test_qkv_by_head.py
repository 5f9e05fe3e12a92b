"""qkv_by_head: GPT-NeoX's packed projection, which alternates queries, keys and values by head."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.rules.rule_testing import Case, attributes, contract, fires, graph, node_of, ops, refused, weight

N, H = 4, 8
SYMBOLS = {"B": 2, "S": 5}
THREE = f"float[B,{N},S,{H}] "
HEAD = f"(float[B,S,24] x) => ({THREE}q, {THREE}k, {THREE}v)"
PROJECT = "p = MatMul(x, w) pb = Add(b, p) z = Reshape(pb, heads) t = Transpose<perm=[0,2,1,3]>(z) "
CUTS = {
    "split": "q, k, v = Split<axis=-1>(t) ",
    "slice": "".join(f"{n} = Slice(t, c{H * i}, c{H * (i + 1)}, last) " for i, n in enumerate("qkv")),
}
WEIGHTS = {
    "w": weight(24, 3 * N * H, scale=0.2),
    "b": weight(3 * N * H),
    "heads": np.array([0, 0, N, 3 * H]),
    "whole": np.array([0, 0, -1]),
    "last": np.array([-1]),
    "root": np.float32(0.3),
    **{f"c{i}": np.array([i]) for i in (0, 4, 8, 16, 24)},
}


def made(body: str = PROJECT + CUTS["split"], head: str = HEAD, opset: int = 17) -> onnx.ModelProto:
    used = {k: v for k, v in WEIGHTS.items() if any(f"{a}{k}{b}" in body for a in " (" for b in ",)")}
    return graph(f"{head} {{ {body} }}", opset, **used)


test_contract = contract(Case("qkv_by_head", made, "p"))


@pytest.mark.parametrize("cut", list(CUTS))
@pytest.mark.parametrize("opset", [13, 18])
def test_blocks_in_order(cut: str, opset: int) -> None:
    body = CUTS[cut].replace("Split<axis=-1>", "Split<axis=-1, num_outputs=3>" if opset >= 18 else "Split<axis=-1>")
    result = fires(made(PROJECT + body, opset=opset), "qkv_by_head", symbols=SYMBOLS)
    assert ops(result) == {"MatMul": 1, "Add": 1, "Split": 1, "Reshape": 3, "Transpose": 3}


def test_without_bias_and_transpose() -> None:
    three = f"float[B,S,{N},{H}] "
    head = f"(float[B,S,24] x) => ({three}q, {three}k, {three}v)"
    body = "p = MatMul(x, w) t = Reshape(p, heads) " + CUTS["slice"]
    assert ops(fires(made(body, head), "qkv_by_head", symbols=SYMBOLS))["Split"] == 1


def test_attention_of_one_packed_product() -> None:
    attend = (
        "kx = Transpose<perm=[0,1,3,2]>(k) s = MatMul(q, kx) ss = Mul(s, root) e = Softmax<axis=-1>(ss) "
        "c = MatMul(e, v) ct = Transpose<perm=[0,2,1,3]>(c) y = Reshape(ct, whole)"
    )
    head = "(float[B,S,24] x) => (float[B,S,32] y)"
    result = fires(made(PROJECT + CUTS["split"] + attend, head), "qkv_by_head", "attention", symbols=SYMBOLS)
    assert ops(result) == {"MatMul": 1, "Add": 1, "cuvil::Attention": 1}
    assert attributes(node_of(result, "Attention"))["layout"] == "packed"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"z = Reshape(pb, heads)": "g = Sigmoid(pb) z = Reshape(g, heads)"}, "not a product with constant"),
        ({") => (": f") => (float[B,S,{3 * N * H}] pb, "}, "graph output"),
        ({"perm=[0,2,1,3]": "perm=[2,0,1,3]", f"[B,{N},S,{H}] ": f"[{N},B,S,{H}] "}, ""),
        ({"Slice(t, c8, c16, last)": "Slice(t, c4, c16, last)", THREE + "k": f"float[B,{N},S,12] k"}, ""),
        ({"Slice(t, c8, c16, last)": "Slice(t, c0, c8, last)"}, ""),
        ({") => (": f") => (float[B,{N},S,24] t, "}, ""),
    ],
)
def test_near_misses(change: dict[str, str], reason: str) -> None:
    head, body = HEAD, PROJECT + CUTS["slice"]
    for old, new in change.items():
        assert old in head + body
        head, body = head.replace(old, new), body.replace(old, new)
    refused(made(body, head), "qkv_by_head", reason)
