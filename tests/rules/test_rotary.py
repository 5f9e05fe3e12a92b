"""rotary: rotary position embeddings in the ways that exporters write them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.rules.rule_testing import Case, apply, attributes, contract, count, fires, graph, node_of, ops, refused

B, S, N, H, R = 2, 5, 4, 8, 4
SYMBOLS = {"B": B, "S": S}
HEAD = f"(float[B,S,{N * H}] q, float[B,S,{H}] c3, float[B,S,{H}] s3) => (float[B,{N},S,{H}] y)"
SPLIT = "q4 = Reshape(q, heads) x = Transpose<perm=[0,2,1,3]>(q4) "
SIDES = "cos = Unsqueeze(c3, c1) sin = Unsqueeze(s3, c1) "
SLICES = "a = Slice(x, c0, c4, c3i, c1) b = Slice(x, c4, top, c3i, c1) "
HALVES = SLICES + "n = Neg(b) t = Concat<axis=-1>(n, a) "
SUM = "p = Mul(x, cos) r = Mul(t, sin) y = Add(p, r)"
EVERY = "a = Slice(x, c0, top, last, c2) b = Slice(x, c1, top, last, c2) n = Neg(b) "
STACK = "nu = Unsqueeze(n, last) au = Unsqueeze(a, last) st = Concat<axis=-1>(nu, au) t = Reshape(st, whole) "
CROSS = "ac = Mul(a, cos) bs = Mul(b, sin) bc = Mul(cos, b) as = Mul(sin, a) lo = Sub(ac, bs) hi = Add(as, bc) "
WEIGHTS = {
    "heads": np.array([0, 0, N, H]),
    "merged": np.array([0, 0, N * H]),
    "whole": np.array([0, N, -1, H]),
    "pairs": np.array([0, 0, 0, H // 2, 2]),
    "top": np.array([2**63 - 1]),
    "last": np.array([-1]),
    "c3i": np.array([3]),
    "i0": np.array(0),
    "i1": np.array(1),
    **{f"c{i}": np.array([i]) for i in (0, 1, 2, 4, 8)},
}


def made(body: str, head: str = HEAD, opset: int = 17, **more: np.ndarray) -> onnx.ModelProto:
    used = {k: v for k, v in {**WEIGHTS, **more}.items() if any(f"{a}{k}{b}" in body for a in " (" for b in ",)")}
    return graph(f"{head} {{ {body} }}", opset, **used)


def fused(model: onnx.ModelProto, *needs: str, **expected: int) -> onnx.ModelProto:
    result = fires(model, "rotary", *needs, symbols=SYMBOLS)
    found = attributes(node_of(result, "RotaryEmbedding"))
    wanted = {"num_heads": N, "rotary_dim": H, "interleaved": 0, "per_pair": 0, "rotated_heads": 0} | expected
    assert found == wanted
    return result


PLAIN = SPLIT + SIDES + HALVES + SUM

# What others read stays for them: the rotation is fused all the same.
test_contract = contract(Case("rotary", lambda: made(PLAIN), "p", kept=1))


def test_reads_merged_heads_and_the_angles_as_they_were() -> None:
    result = fused(made(PLAIN), "dead_code")
    assert list(node_of(result, "RotaryEmbedding").input) == ["q", "c3", "s3"]
    assert ops(result) == {"cuvil::RotaryEmbedding": 1, "Reshape": 1, "Transpose": 1}


@pytest.mark.parametrize(
    "change",
    [
        {"Mul(x, cos)": "Mul(cos, x)", "Mul(t, sin)": "Mul(sin, t)", "Add(p, r)": "Add(r, p)"},
        {SLICES: "a, b = Split<axis=-1>(x) "},
        {SLICES: "a, b = Split<axis=3>(x, both) "},
        {"a = Slice(x, c0, c4, c3i, c1)": "a = Slice(x, m8, m4, last)"},
    ],
)
def test_other_spellings(change: dict[str, str]) -> None:
    body = PLAIN
    for old, new in change.items():
        assert old in body
        body = body.replace(old, new)
    fused(made(body, both=np.array([4, 4]), m8=np.array([-8]), m4=np.array([-4])))


def test_neighbours() -> None:
    fused(made(SPLIT + SIDES + EVERY + STACK + SUM), interleaved=1)


PAIR_HEAD = HEAD.replace(f"{H}] c3", f"{H // 2}] c3").replace(f"{H}] s3", f"{H // 2}] s3")
PAIR_HEADS = SPLIT + SIDES


def test_halves_joined() -> None:
    fused(made(PAIR_HEADS + SLICES + CROSS + "y = Concat<axis=-1>(lo, hi)", PAIR_HEAD), per_pair=1)


OF_PAIRS = {
    "slice": EVERY.replace("n = Neg(b) ", ""),
    "gather": "x5 = Reshape(x, pairs) a = Gather<axis=-1>(x5, i0) b = Gather<axis=4>(x5, i1) ",
    "split": "x5 = Reshape(x, pairs) a5, b5 = Split<axis=-1>(x5) a = Squeeze(a5, last) b = Squeeze(b5, last) ",
}


@pytest.mark.parametrize("kind", list(OF_PAIRS))
def test_neighbours_joined(kind: str) -> None:
    stack = "lu = Unsqueeze(lo, last) hu = Unsqueeze(hi, last) st = Concat<axis=-1>(lu, hu) y = Reshape(st, whole)"
    fused(made(PAIR_HEADS + OF_PAIRS[kind] + CROSS + stack, PAIR_HEAD), per_pair=1, interleaved=1)


PART = (
    "x = Slice(z, c0, c4, c3i, c1) rest = Slice(z, c4, top, c3i, c1) a = Slice(x, c0, c2, c3i, c1) "
    "b = Slice(x, c2, top, c3i, c1) n = Neg(b) t = Concat<axis=-1>(n, a) "
)
PART_HEAD = HEAD.replace(f"{H}] c3", f"{R}] c3").replace(f"{H}] s3", f"{R}] s3")
PART_BODY = SPLIT.replace(" x =", " z =") + SIDES + PART + SUM.replace("y =", "e =") + " y = Concat<axis=-1>(e, rest)"


def test_part_of_each_head() -> None:
    result = fused(made(PART_BODY, PART_HEAD), "dead_code", rotary_dim=R)
    assert ops(result) == {"cuvil::RotaryEmbedding": 1, "Reshape": 1, "Transpose": 1}


@pytest.mark.parametrize("join", ["Concat<axis=-1>(rest, e)", "Concat<axis=2>(e, rest)", "Concat<axis=-1>(e, other)"])
def test_a_part_that_is_joined_differently_is_refused(join: str) -> None:
    body = PART_BODY.replace("Concat<axis=-1>(e, rest)", join).replace("a = Slice", "other = Neg(rest) a = Slice")
    head = PART_HEAD.replace("] y)", "] y)" if "axis=2" not in join else "] w)").replace(f"{N},S,{H}] w", f"{N},W,4] y")
    refused(made(body, head), "rotary", "not transposed")


def test_nothing_left_to_join() -> None:
    body = SPLIT + SIDES + HALVES + SUM.replace("y =", "e =")
    body += " rest = Slice(x, c8, top, c3i, c1) y = Concat<axis=-1>(e, rest)"
    result = fused(made(body), "dead_code")
    assert ops(result)["Concat"] == 0


def test_heads_that_were_never_transposed() -> None:
    body = SPLIT.replace("x = Transpose<perm=[0,2,1,3]>(q4)", "x = Identity(q4)") + SIDES.replace("c1)", "c2)") + HALVES
    head = HEAD.replace(f"[B,{N},S,{H}] y", f"[B,S,{N},{H}] y")
    result = fused(made(body + SUM, head), "identity", "dead_code")
    assert ops(result) == {"cuvil::RotaryEmbedding": 1, "Reshape": 1}


@pytest.mark.parametrize(
    ("cos", "needed"),
    [
        (f"[1,S,{H}]", {}),  # already as the op wants them
        (f"[S,{H}]", {"Reshape": 1}),
        (f"[B,1,S,{H}]", {"Squeeze": 2}),
        (f"[1,1,S,{H}]", {"Squeeze": 2}),
        (f"[{H}]", {}),
    ],
)
def test_angles_of_any_rank(cos: str, needed: dict[str, int]) -> None:
    head = HEAD.replace(f"[B,S,{H}] c3", f"{cos} cos").replace(f"[B,S,{H}] s3", f"{cos} sin")
    result = fused(made(SPLIT + HALVES + SUM, head), "dead_code")
    assert all(ops(result)[op] >= times for op, times in needed.items())


def test_two_tensors_rotated_by_the_same_angles() -> None:
    second = PLAIN.replace(SIDES, "")
    for name in ("q4", "x", "a", "b", "n", "t", "p", "r", "y"):
        for before, after in (
            (f" {name} =", f" {name}2 ="),
            (f"({name},", f"({name}2,"),
            (f", {name})", f", {name}2)"),
        ):
            second = second.replace(before, after)
        second = second.replace(f"({name})", f"({name}2)")
    second = second.replace("q4 = Reshape(q,", "q42 = Reshape(k,")
    head = HEAD.replace("float[B,S,8] c3", f"float[B,S,{N * H}] k, float[B,S,8] c3")
    head = head.replace("] y)", f"] y, float[B,{N},S,{H}] y2)")
    model = made(PLAIN.replace("c3, c1", "c3, c1") + " " + second, head)
    result = fires(model, "rotary", "dead_code", times=2, symbols=SYMBOLS)
    inputs = [list(n.input)[1:] for n in result.graph.node if n.op_type == "RotaryEmbedding"]
    assert inputs[0] == inputs[1] == ["c3", "s3"]


@pytest.mark.parametrize("dtype", ["float16", "double"])
def test_other_types(dtype: str) -> None:
    model = made(PLAIN, HEAD.replace("float[", f"{dtype}["))
    # fp16: the sum of two products is rounded once instead of three times.
    tolerance = {"rtol": 4e-3, "atol": 4e-3} if dtype == "float16" else {}
    fires(model, "rotary", symbols=SYMBOLS, **tolerance)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"Neg(b)": "Neg(a)"}, ""),
        ({"Concat<axis=-1>(n, a)": "Concat<axis=-1>(a, n)"}, ""),
        ({"Concat<axis=-1>(n, a)": "Concat<axis=2>(n, a)"}, ""),
        ({"Neg(b)": "Abs(b)"}, ""),
        ({"Mul(x, cos)": "Mul(q8, cos)", "x = Tr": "q8 = Transpose<perm=[0,2,1,3]>(q4) x = Tr"}, ""),
        ({"Add(p, r)": "Sub(p, r)"}, ""),
        ({"Slice(x, c0, c4,": "Slice(x, c1, c5,"}, ""),
        ({f"[B,S,{H}] c3": "[B,S,1] c3", f"[B,S,{H}] s3": "[B,S,1] s3"}, "one element for each"),
        ({f"[B,S,{H}] s3": f"[1,S,{H}] s3"}, "other types or shapes"),
        ({f"[B,S,{H}] c3": f"[C,S,{H}] c3", f"[B,S,{H}] s3": f"[C,S,{H}] s3"}, "the same for all heads"),
        ({"x = Transpose<perm=[0,2,1,3]>(q4)": "x1 = Transpose<perm=[0,2,1,3]>(q4) x = Sigmoid(x1)"}, "not transposed"),
    ],
)
def test_near_misses(change: dict[str, str], reason: str) -> None:
    head, body = HEAD, PLAIN
    for old, new in change.items():
        assert old in head + body
        head, body = head.replace(old, new), body.replace(old, new)
    if "axis=2" in body:
        body = body.replace("Mul(t, sin)", "Mul(x, sin)")
    model = made(body, head, c5=np.array([5]))
    refused(model, "rotary", reason)


def test_angles_that_differ_by_head_are_refused() -> None:
    head = HEAD.replace(f"[B,S,{H}] c3", f"[B,{N},S,{H}] cos").replace(f"[B,S,{H}] s3", f"[B,{N},S,{H}] sin")
    refused(made(SPLIT + HALVES + SUM, head), "rotary", "the same for all heads")


def test_idempotent_with_attention_in_between() -> None:
    once = apply(made(PLAIN), "rotary").model
    assert count(once, "rotary") == 0


def test_a_squeeze_in_a_branch_is_not_read_from_outside() -> None:
    head = f"(float[B,S,{N * H}] q, float[1,1,S,{H}] cos, float[1,1,S,{H}] sin) => (float[B,{N},S,{H}] y)"
    model = made(SPLIT + HALVES + SUM, head)
    branches = []
    for name, op in (("then", "Neg"), ("else", "Abs")):
        nodes = [helper.make_node("Squeeze", ["cos", "c1"], [f"{name}_s"]), helper.make_node(op, [f"{name}_s"], [name])]
        out = helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, "S", H])
        branches.append(helper.make_graph(nodes, name, [], [out]))
    model.graph.input.append(helper.make_tensor_value_info("cond", TensorProto.BOOL, []))
    model.graph.node.append(
        helper.make_node("If", ["cond"], ["extra"], then_branch=branches[0], else_branch=branches[1])
    )
    model.graph.output.append(helper.make_tensor_value_info("extra", TensorProto.FLOAT, [1, "S", H]))
    fires(model, "rotary", symbols=SYMBOLS)
