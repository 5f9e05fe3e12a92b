"""mask_rows: attention masks without what is always true."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import onnx
import pytest

from tests.rules.rule_testing import Case, contract, count, feeds, fires, graph, node_of, ops, run

HEAD = "(float[B,S,32] q, float[B,S,32] k, float[B,S,32] v, bool[B,1,1,S] seen) => (float[B,S,32] y)"
SPLIT = "".join(f"{n}4 = Reshape({n}, heads) {n}t = Transpose<perm=[0,2,1,3]>({n}4) " for n in "qkv")
POSITIONS = "qs = Shape<start=1, end=2>(q) s0 = Squeeze(qs) r = Range(i0, s0, i1) p = Unsqueeze(r, axes) "
MASK = "ge = GreaterOrEqual(p, i0) both = And(yes, ge) all = And(both, seen) m = Where(all, none, hide) "
CORE = (
    "kT = Transpose<perm=[0,1,3,2]>(kt) s = MatMul(qt, kT) ss = Mul(s, root) sm = Add(ss, m) "
    "w = Softmax<axis=-1>(sm) c = MatMul(w, vt) ct = Transpose<perm=[0,2,1,3]>(c) y = Reshape(ct, whole)"
)
CONSTANTS = {
    "heads": np.array([0, 0, -1, 8]),
    "whole": np.array([0, 0, -1]),
    "i0": np.int64(0),
    "i1": np.int64(1),
    "axes": np.array([0, 1, 3]),
    "yes": np.array(True),
    "none": np.float32(0),
    "hide": np.float32(-1e4),
    "root": np.float32(8**-0.5),
}
NEEDS = ("attention", "dead_code")


def made(mask: str = MASK, head: str = HEAD, **more: Any) -> onnx.ModelProto:
    return graph(f"{head} {{ {SPLIT}{POSITIONS}{mask}{CORE} }}", 18, **CONSTANTS, **more)


test_contract = contract(Case("mask_rows", made, "sm", needs=("attention",)))


@pytest.mark.parametrize("test", ["GreaterOrEqual(p, i0)", "LessOrEqual(i0, p)", "GreaterOrEqual(p, below)"])
def test_fires(test: str) -> None:
    model = made(MASK.replace("GreaterOrEqual(p, i0)", test), below=np.int64(-3))
    result = fires(model, "mask_rows", *NEEDS, symbols={"B": 2, "S": 5})
    assert ops(result) == {"cuvil::Attention": 1, "Where": 1}
    assert node_of(result, "Where").input[0] == "seen"


def test_padding_on_both_sides() -> None:
    model = made()
    inputs = feeds(model, {"B": 2, "S": 6})
    inputs["seen"][0, ..., :2], inputs["seen"][1, ..., 4:] = False, False
    result = fires(model, "mask_rows", *NEEDS, symbols={"B": 2, "S": 6})
    (old,), (new,) = run(model, inputs, plain=True), run(result, inputs)
    np.testing.assert_allclose(new, old, rtol=2e-5, atol=2e-5)


def test_two_attentions_share_their_mask() -> None:
    second = re.sub(r"\b(kT|s|ss|sm|w|c|ct|y)\b", r"\1_2", CORE.replace("=-1>", "=MINUS>")).replace("=MINUS>", "=-1>")
    body = f"{SPLIT}{POSITIONS}{MASK}{CORE} {second}".replace("y = Reshape", "y_1 = Reshape") + " y = Add(y_1, y_2)"
    result = fires(
        graph(f"{HEAD} {{ {body} }}", 18, **CONSTANTS), "mask_rows", *NEEDS, times=2, symbols={"B": 2, "S": 5}
    )
    assert ops(result) == {"cuvil::Attention": 2, "Where": 1, "Add": 1}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("GreaterOrEqual(p, i0)", "GreaterOrEqual(p, i1)"),  # hides the first query
        ("GreaterOrEqual(p, i0)", "LessOrEqual(p, i0)"),
        ("And(both, seen)", "Xor(both, seen)"),
        ("And(yes, ge)", "Or(no, ge)"),
    ],
)
def test_near_misses(old: str, new: str) -> None:
    mask = MASK.replace("And(yes, ge)", "And(ge, seen)") if "yes" not in old else MASK
    assert old in mask
    assert count(made(mask.replace(old, new), no=np.array(False)), "mask_rows", *NEEDS) == 0
