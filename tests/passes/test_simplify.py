"""Local simplifications: what goes, what must stay, and that no bit changes."""

from __future__ import annotations

import numpy as np
import pytest

from tests.passes.pass_testing import basic, made, normal, ops, same

X = normal(2, 3, 4)


@pytest.mark.parametrize(
    ("body", "weights"),
    [
        ("a = Identity(x) y = Relu(a)", {}),
        ("a = Dropout(x) y = Relu(a)", {}),
        ("a = Cast<to=1>(x) y = Relu(a)", {}),
        ("a = Cast<to=11>(x) b = Cast<to=1>(a) y = Relu(b)", {}),
        ("a = Reshape(x, s) y = Relu(a)", {"s": np.array([2, 3, 4])}),
        ("a = Transpose<perm=[0, 1, 2]>(x) y = Relu(a)", {}),
        ("a = Transpose<perm=[1, 2, 0]>(x) b = Transpose<perm=[2, 0, 1]>(a) y = Relu(b)", {}),
        ("a = Slice(x, z, e) y = Relu(a)", {"z": np.array([0]), "e": np.array([2**63 - 1])}),
        ("a = Slice(x, z, e) y = Relu(a)", {"z": np.array([0, 0]), "e": np.array([2, 3])}),
        ("a = Pad(x, p) y = Relu(a)", {"p": np.zeros(6, np.int64)}),
        ("a = Expand(x, s) y = Relu(a)", {"s": np.array([1, 1])}),
        ("a = Mul(x, one) y = Relu(a)", {"one": np.float32(1)}),
        ("a = Sub(x, zero) y = Relu(a)", {"zero": np.float32(0)}),
        ("a = Concat<axis=1>(x) y = Relu(a)", {}),
    ],
)
def test_goes(body: str, weights: dict[str, np.ndarray]) -> None:
    model = made(f"(float[2,3,4] x) => (float[2,3,4] y) {{ {body} }}", **weights)
    result = basic(model)
    assert ops(result.model) == {"Relu": 1}
    same(model, result, x=X)


@pytest.mark.parametrize(
    ("body", "shape", "weights"),
    [
        ("a = Add(x, zero) y = Relu(a)", "2,3,4", {"zero": np.float32(0)}),  # -0 + 0 is +0
        ("a = Mul(x, one) y = Relu(a)", "1,2,3,4", {"one": np.ones((1, 1, 1, 1), np.float32)}),  # raises the rank
        ("a = Cast<to=10>(x) b = Cast<to=1>(a) y = Relu(b)", "2,3,4", {}),  # narrows
        ("a = Expand(x, s) y = Relu(a)", "1,2,3,4", {"s": np.array([1, 1, 1, 1])}),  # raises the rank
        ("a = Slice(x, z, e, t) y = Relu(a)", "1,3,4", {"z": np.array([0]), "e": np.array([1]), "t": np.array([0])}),
        ("a = Transpose(x) b = Transpose<perm=[0, 2, 1]>(a) y = Relu(b)", "4,2,3", {}),
    ],
)
def test_stays(body: str, shape: str, weights: dict[str, np.ndarray]) -> None:
    model = made(f"(float[2,3,4] x) => (float[{shape}] y) {{ {body} }}", **weights)
    result = basic(model)
    assert sum(ops(result.model).values()) > 1
    same(model, result, x=np.where(X < 0, np.float32(-0.0), X))


@pytest.mark.parametrize(("first", "second"), [([0], [1]), ([1], [0]), ([0, 3], [2]), ([-1], [0, 2]), ([2], [-1, 1])])
def test_axes_are_inserted_at_once(first: list[int], second: list[int]) -> None:
    rank = 3 + len(first) + len(second)
    text = f"(float[2,3,4] x) => (float[{','.join('abcdef'[:rank])}] y) {{ a = Unsqueeze(x, s) y = Unsqueeze(a, t) }}"
    model = made(text, s=np.array(first), t=np.array(second))
    result = basic(model)
    assert ops(result.model) == {"Unsqueeze": 1}
    same(model, result, x=X)


def test_axes_that_are_not_known_stay_apart() -> None:
    text = "(float[2,3,4] x, int64[1] t) => (float[a,b,c,d,e] y) { a = Unsqueeze(x, s) y = Unsqueeze(a, t) }"
    model = made(text, s=np.array([0]))
    result = basic(model)
    assert ops(result.model) == {"Unsqueeze": 2}
    same(model, result, x=X, t=np.array([2]))


def test_outer_reshape_that_copies_an_inner_size_keeps_the_inner_one() -> None:
    body = "a = Reshape(x, s) y = Reshape(a, t)"
    model = made(f"(float[2,3,4] x) => (float[6,2,2] y) {{ {body} }}", s=np.array([6, 4]), t=np.array([0, 2, 2]))
    result = basic(model)
    assert ops(result.model)["Reshape"] == 2
    same(model, result, x=X)


def test_an_input_passed_through_keeps_its_identity() -> None:
    model = made("(float[2,3,4] x) => (float[2,3,4] y, float[2,3,4] z) { y = Identity(x) r = Relu(x) z = Identity(r) }")
    result = basic(model)
    assert ops(result.model) == {"Identity": 1, "Relu": 1}
    assert [o.name for o in result.model.graph.output] == ["y", "z"]
    same(model, result, x=X)


def test_dropout_in_training_mode_stays() -> None:
    model = made("(float[8] x) => (float[8] y) { y = Dropout(x, r, t) }", r=np.float32(0.5), t=np.array(True))
    assert ops(basic(model).model)["Dropout"] == 1


BRANCHES = (
    "y = If(c) <then_branch = t () => (float[2,3,4] r) { k = Exp(x) r = Neg(k) },"
    " else_branch = e () => (float[2,3,4] r) { k = Neg(x) r = Abs(k) }>"
)


@pytest.mark.parametrize(("condition", "taken"), [(True, {"Exp", "Neg"}), (False, {"Neg", "Abs"})])
def test_an_if_that_is_decided_becomes_its_branch(condition: bool, taken: set[str]) -> None:
    model = made(f"(float[2,3,4] x) => (float[2,3,4] y) {{ {BRANCHES} }}", c=np.array(condition))
    result = basic(model)
    assert set(ops(result.model)) == taken
    assert [o.name for o in result.model.graph.output] == ["y"]
    same(model, result, x=X)


def test_an_if_that_is_not_decided_stays() -> None:
    model = made(f"(float[2,3,4] x, bool c) => (float[2,3,4] y) {{ {BRANCHES} }}")
    result = basic(model)
    assert set(ops(result.model)) == {"If"}
    same(model, result, x=X, c=np.array(True))


def test_a_decided_branch_may_return_an_outer_value_or_a_constant() -> None:
    branches = (
        "y, z = If(c) <then_branch = t () => (float[2,3,4] p, float[2] q)"
        " { p = Identity(x) q = Constant<value = float[2] {1.0, 2.0}>() },"
        " else_branch = e () => (float[2,3,4] p, float[2] q)"
        " { p = Neg(x) q = Constant<value = float[2] {0.0, 0.0}>() }>"
    )
    model = made(f"(float[2,3,4] x) => (float[2,3,4] y, float[2] z) {{ {branches} }}", c=np.array(True))
    result = basic(model)
    assert set(ops(result.model)) == {"Identity", "Constant"}
    same(model, result, x=X)


def test_nested_decisions() -> None:
    inner = (
        "r = If(d) <then_branch = u () => (float[2,3,4] i) { k = Exp(x) i = Neg(k) },"
        " else_branch = v () => (float[2,3,4] i) { k = Neg(x) i = Abs(k) }>"
    )
    then = f"then_branch = t () => (float[2,3,4] r) {{ {inner} }}"
    other = "else_branch = e () => (float[2,3,4] r) { r = Neg(x) }"
    text = f"(float[2,3,4] x) => (float[2,3,4] y) {{ y = If(c) <{then}, {other}> }}"
    model = made(text, c=np.array(True), d=np.array(False))
    result = basic(model)
    assert set(ops(result.model)) == {"Neg", "Abs"}
    same(model, result, x=X)


STATE = "n = Shape<start=1, end=2>(x) s = Concat<axis=0>(two, n, four) z = Expand(zero, s) h = Slice(z, a0, a1, a0) "
RECURRENT = {
    "two": np.array([2]),
    "four": np.array([4]),
    "a0": np.array([0]),
    "a1": np.array([1]),
    "r": normal(1, 16, 4),
    "w": normal(1, 16, 4, seed=1),
}


@pytest.mark.parametrize("opset", [15, 17])
@pytest.mark.parametrize(("zero", "goes"), [(0.0, True), (-0.0, False), (0.5, False)])
def test_a_first_state_of_zeros_goes(opset: int, zero: float, goes: bool) -> None:
    body = STATE + "y, yh = LSTM<hidden_size=4>(x, w, r, , , h, h) "
    weights = {**RECURRENT, "zero": np.float32(zero)}
    model = made(f"(float[5,B,4] x) => (float[5,1,B,4] y, float[1,B,4] yh) {{ {body} }}", opset, **weights)
    result = basic(model)
    assert (ops(result.model) == {"LSTM": 1}) is goes
    same(model, result, x=normal(5, 3, 4))


def test_one_of_two_states_may_be_zeros() -> None:
    body = STATE + "y = LSTM<hidden_size=4>(x, w, r, , , h, c) "
    head = "(float[5,B,4] x, float[1,B,4] c) => (float[5,1,B,4] y)"
    model = made(f"{head} {{ {body} }}", **RECURRENT, zero=np.float32(0))
    result = basic(model)
    assert ops(result.model) == {"LSTM": 1} and list(result.model.graph.node[0].input)[3:] == ["", "", "", "c"]
    same(model, result, x=normal(5, 3, 4), c=normal(1, 3, 4))
