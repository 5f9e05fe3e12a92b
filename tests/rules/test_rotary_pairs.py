"""rotary_pairs: one cosine and one sine for both elements of a pair."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from tests.rules.rule_testing import Case, apply, attributes, contract, count, fires, graph, ops

ANGLES = "c2 = Concat<axis=-1>(f, f) cos = Cos(c2) sin = Sin(c2) "
TURN = (
    "{0}h = Reshape({0}, heads) {0}a = Slice({0}h, c0, c4, c3, c1) {0}b = Slice({0}h, c4, c8, c3, c1) {0}n = Neg({0}b) "
    "{0}r = Concat<axis=-1>({0}n, {0}a) {0}x = Mul({0}h, cu) {0}s = Mul({0}r, su) {0}y = Add({0}x, {0}s) "
)
WIDEN = "cu = Unsqueeze(cos, c2a) su = Unsqueeze(sin, c2a) "
HEAD = "(float[B,S,16] q, float[B,S,16] k, float[B,S,4] f) => (float[B,S,2,8] qy, float[B,S,2,8] ky)"
CONSTANTS = {"heads": np.array([0, 0, 2, 8]), "c2a": np.array([2])} | {f"c{i}": np.array([i]) for i in (0, 1, 3, 4, 8)}
NEEDS = ("rotary",)


def made(angles: str = ANGLES, head: str = HEAD, **more: Any) -> onnx.ModelProto:
    text = angles + WIDEN + TURN.format("q") + TURN.format("k")
    return graph(f"{head} {{ {text} }}", 18, **CONSTANTS, **more)


test_contract = contract(Case("rotary_pairs", made, "c2", needs=NEEDS, times=2, kept=2))


def pairs(model: onnx.ModelProto) -> list[int]:
    return [attributes(n)["per_pair"] for n in model.graph.node if n.op_type == "RotaryEmbedding"]


def test_all_rotations_share_one_cosine_and_sine() -> None:
    result = fires(made(), "rotary_pairs", *NEEDS, times=2)
    found = ops(apply(made(), "rotary_pairs", "dead_code", *NEEDS).model)
    assert found["Cos"] == found["Sin"] == 1 and "Concat" not in found and pairs(result) == [1, 1]


def test_scaled_factors() -> None:
    angles = ANGLES.replace("cos = Cos(c2)", "c9 = Cos(c2) cos = Mul(c9, half)").replace(
        "sin = Sin(c2)", "s9 = Sin(c2) sin = Mul(s9, half)"
    )
    result = fires(made(angles, half=np.float32(0.5)), "rotary_pairs", *NEEDS, times=2)
    assert pairs(result) == [1, 1]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Concat<axis=-1>(f, f)", "Concat<axis=-1>(f, g)"),  # two different halves
        ("sin = Sin(c2)", "sin = Tanh(c2)"),
        ("cos = Cos(c2)", "c9 = Cos(c2) cos = CumSum(c9, two)"),
    ],
)
def test_other_factors_are_left_alone(old: str, new: str) -> None:
    head = HEAD.replace("[B,S,4] f", "[B,S,4] f, float[B,S,4] g")
    assert count(made(ANGLES.replace(old, new), head, two=np.int64(2)), "rotary_pairs", *NEEDS) == 0
