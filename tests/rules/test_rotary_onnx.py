"""rotary_onnx: RotaryEmbedding of opset 23, as torch's dynamo exporter writes it."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.rules.rule_testing import RTOL, Case, apply, attributes, contract, fires, graph, node_of, ops, refused, run

B, S, N, H = 2, 5, 4, 8
SYMBOLS = {"B": B, "S": S, "P": 16}
HEAD = f"(float[B,S,{N * H}] q, float[B,S,4] c, float[B,S,4] s) => (float[B,{N},S,{H}] y)"
SPLIT = "q4 = Reshape(q, heads) x = Transpose<perm=[0,2,1,3]>(q4) "
WEIGHTS = {
    "heads": np.array([0, 0, N, H]),
    "top": np.array([2**63 - 1]),
    "last": np.array([-1]),
    **{f"c{i}": np.array([i]) for i in (0, 4)},
}


def made(body: str, head: str = HEAD) -> onnx.ModelProto:
    used = {k: v for k, v in WEIGHTS.items() if any(f"{a}{k}{b}" in body for a in " (" for b in ",)")}
    model = graph(f"{head} {{ {body} }}", 23, **used)
    model.ir_version = 10
    return model


PLAIN = SPLIT + "y = RotaryEmbedding(x, c, s)"

test_contract = contract(Case("rotary_onnx", lambda: made(PLAIN), "x", kept=1))


def fused(model: onnx.ModelProto, **expected: int) -> onnx.ModelProto:
    result = fires(model, "rotary_onnx", "dead_code", symbols=SYMBOLS)
    found = attributes(node_of(result, "RotaryEmbedding"))
    wanted = {"num_heads": N, "rotary_dim": H, "interleaved": 0, "per_pair": 1, "rotated_heads": 0} | expected
    assert found == wanted
    return result


@pytest.mark.parametrize("interleaved", [0, 1])
def test_heads(interleaved: int) -> None:
    body = SPLIT + f"y = RotaryEmbedding<interleaved={interleaved}>(x, c, s)"
    result = fused(made(body), interleaved=interleaved)
    assert ops(result) == {"cuvil::RotaryEmbedding": 1, "Reshape": 1, "Transpose": 1}
    assert list(node_of(result, "RotaryEmbedding").input) == ["q", "c", "s"]


def test_merged_heads() -> None:
    head = HEAD.replace(f"[B,{N},S,{H}] y", f"[B,S,{N * H}] y")
    result = fused(made(f"y = RotaryEmbedding<num_heads={N}>(q, c, s)", head))
    assert ops(result) == {"cuvil::RotaryEmbedding": 1}


def test_part_of_each_head_by_attribute() -> None:
    head = HEAD.replace("[B,S,4] c", "[B,S,2] c").replace("[B,S,4] s", "[B,S,2] s")
    fused(made(SPLIT + "y = RotaryEmbedding<rotary_embedding_dim=4>(x, c, s)", head), rotary_dim=4)


def test_part_of_each_head_cut_out() -> None:
    head = HEAD.replace("[B,S,4] c", "[B,S,2] c").replace("[B,S,4] s", "[B,S,2] s")
    body = SPLIT.replace(" x =", " z =") + "x = Slice(z, c0, c4, last) rest = Slice(z, c4, top, last) "
    result = fused(made(body + "e = RotaryEmbedding(x, c, s) y = Concat<axis=3>(e, rest)", head), rotary_dim=4)
    assert ops(result) == {"cuvil::RotaryEmbedding": 1, "Reshape": 1, "Transpose": 1}


def test_caches_and_positions() -> None:
    head = HEAD.replace("float[B,S,4] c, float[B,S,4] s", "float[16,4] c, float[16,4] s, int64[B,S] j")
    result = fused(made(SPLIT + "i = Abs(j) y = RotaryEmbedding(x, c, s, i)", head))
    assert ops(result)["Gather"] == 2


def test_angles_of_one_batch_work_for_any() -> None:
    # ONNX Runtime's kernel refuses them for B > 1, which is what torch's exporter writes.
    model = made(PLAIN, HEAD.replace("[B,S,4]", "[1,S,4]"))
    new = apply(model, "rotary_onnx").model
    rng = np.random.default_rng(0)
    q = rng.standard_normal((B, S, N * H)).astype(np.float32)
    c, s = (rng.standard_normal((1, S, 4)).astype(np.float32) for _ in range(2))
    (found,) = run(new, {"q": q, "c": c, "s": s})
    for i in range(B):
        (alone,) = run(model, {"q": q[i : i + 1], "c": c, "s": s}, plain=True)
        np.testing.assert_allclose(found[i : i + 1], alone, rtol=RTOL, atol=RTOL)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"x = Transpose<perm=[0,2,1,3]>(q4)": "x1 = Transpose<perm=[0,2,1,3]>(q4) x = Neg(x1)"}, "not transposed"),
        ({"[B,S,4] c": "[B,T,4] c", "[B,S,4] s": "[B,T,4] s"}, "sizes of the cosines"),
        ({"[B,S,4] c": "[C,S,4] c", "[B,S,4] s": "[C,S,4] s"}, "sizes of the cosines"),
        ({"[B,S,4] s": "[B,S,K] s"}, "one element for each pair"),
    ],
)
def test_refusals(change: dict[str, str], reason: str) -> None:
    head, body = HEAD, PLAIN
    for old, new in change.items():
        assert old in head + body
        head, body = head.replace(old, new), body.replace(old, new)
    refused(made(body, head), "rotary_onnx", reason)
