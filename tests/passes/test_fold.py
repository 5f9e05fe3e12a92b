"""Constant folding: what is computed here, and what never may be."""

from __future__ import annotations

import numpy as np
import pytest

from tests.passes.pass_testing import basic, made, normal, ops, same


def test_a_chain_of_constants_becomes_one() -> None:
    body = "a = Add(c, c) b = Transpose(a) d = Sqrt(b) y = Mul(x, d)"
    model = made(f"(float[3,2] x) => (float[3,2] y) {{ {body} }}", c=np.abs(normal(2, 3)))
    result = basic(model)
    assert ops(result.model) == {"Mul": 1}
    same(model, result, x=normal(3, 2))


def test_non_finite_results_are_what_the_cpu_computes() -> None:
    body = "r = Reciprocal(z) n = Mul(r, z) y = Add(x, n)"
    model = made(f"(float[3] x) => (float[3] y) {{ {body} }}", z=np.array([0, -0.0, 4], np.float32))
    result = basic(model)
    assert ops(result.model) == {"Add": 1}
    same(model, result, x=normal(3))


def test_results_that_grow_the_model_are_left_to_run_time() -> None:
    body = "c = ConstantOfShape<value = float[1] {1.0}>(s) y = Mul(x, c)"
    model = made(f"(float[1] x) => (float[1024,1024] y) {{ {body} }}", s=np.array([1024, 1024]))
    result = basic(model)
    assert ops(result.model)["ConstantOfShape"] == 1
    assert result.model.ByteSize() < 10_000
    small = made(f"(float[1] x) => (float[8,8] y) {{ {body} }}", s=np.array([8, 8]))
    assert ops(basic(small).model) == {"Mul": 1}


def test_a_table_used_twice_is_not_stored_twice() -> None:
    body = "t = Transpose(table) e = Gather(table, i) y = MatMul(e, t)"
    model = made(f"(int64[4] i) => (float[4,20000] y) {{ {body} }}", table=normal(20000, 32))
    assert ops(basic(model).model)["Transpose"] == 1


@pytest.mark.parametrize(
    "body",
    [
        "a = RandomNormal<shape=[4]>() y = Add(x, a)",
        "a = RandomUniformLike(c) y = Add(x, a)",
        "a = Bernoulli(c) y = Add(x, a)",
    ],
)
def test_random_numbers_are_drawn_at_run_time(body: str) -> None:
    model = made(f"(float[4] x) => (float[4] y) {{ {body} }}", c=np.full(4, 0.5, np.float32))
    assert sum(ops(basic(model).model).values()) == 2


@pytest.mark.parametrize("divisor", [0, -1])
@pytest.mark.parametrize("op", ["Div", "Mod"])
def test_integer_division_that_may_trap_is_not_tried(op: str, divisor: int) -> None:
    model = made(
        f"(int64[2] x) => (int64[2] y) {{ q = {op}(a, d) y = Add(x, q) }}",
        a=np.array([-(2**63), 5]),
        d=np.array([divisor, 3]),
    )
    assert ops(basic(model).model)[op] == 1, "and the process is still alive"


def test_a_node_that_fails_here_stays() -> None:
    model = made("(float[2] x) => (float[2] y) { g = Gather(c, i) y = Add(x, g) }", c=normal(3), i=np.array([0, 7]))
    result = basic(model)
    assert ops(result.model)["Gather"] == 1


def test_quantized_weights_stay_quantized() -> None:
    body = "w = DequantizeLinear(q, s) y = MatMul(x, w)"
    model = made(
        f"(float[2,4] x) => (float[2,4] y) {{ {body} }}",
        q=np.arange(16, dtype=np.int8).reshape(4, 4),
        s=np.float32(0.1),
    )
    assert ops(basic(model).model)["DequantizeLinear"] == 1


def test_a_constant_output_keeps_its_name() -> None:
    model = made("(float[2] x) => (float[2] y, float[2] k) { k = Neg(c) y = Add(x, k) }", c=normal(2))
    result = basic(model)
    assert [o.name for o in result.model.graph.output] == ["y", "k"]
    assert "Neg" not in ops(result.model)
    same(model, result, x=normal(2))


def test_initializers_that_the_caller_may_override_are_no_constants() -> None:
    model = made("(float[2] x, float[2] c) => (float[2] y) { a = Neg(c) y = Add(x, a) }", c=normal(2))
    result = basic(model)
    assert ops(result.model) == {"Neg": 1, "Add": 1}
    same(model, result, x=normal(2), c=normal(2, seed=5))


@pytest.mark.parametrize("most", [1, 2, 3])
def test_many_nodes_are_run_a_few_at_a_time(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cuvil_onnx.passes.fold.SESSION_NODES", most)
    body = "a = Add(c, c) b = Transpose(a) d = Sqrt(b) e = Mul(b, d) f = Add(e, b) y = Mul(x, f)"
    model = made(f"(float[3,2] x) => (float[3,2] y) {{ {body} }}", c=np.abs(normal(2, 3)))
    result = basic(model)
    assert ops(result.model) == {"Mul": 1}
    same(model, result, x=normal(3, 2))


def test_what_reads_a_node_that_fails_stays_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The Gather is out of range, which is an error at run time too."""
    monkeypatch.setattr("cuvil_onnx.passes.fold.SESSION_NODES", 1)
    body = "g = Gather(c, i) h = Neg(g) k = Neg(c) m = Add(x, k) y = Add(m, h)"
    model = made(f"(float[3] x) => (float[3] y) {{ {body} }}", c=normal(3), i=np.array(7))
    assert ops(basic(model).model) == {"Gather": 1, "Neg": 1, "Add": 2}
