"""MatMul, Gemm and cuvil::FusedMatMul on the GPU against float64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st

import custom_ops
from custom_ops import activations, testing
from custom_ops.spec import Example
from tests.gpu.bounds import assert_sum_of_products, rounded
from tests.gpu.single_op import MakeSession, model, quick, sample

DTYPES = ["float32", "float16", "bfloat16", "float64"]
# Sizes that fill tiles, and odd ones whose rows are not aligned for vector loads.
MATMUL_SHAPES = [
    ([128, 64], [64, 256]),
    ([7, 13], [13, 11]),
    ([1, 768], [768, 3072]),
    ([33], [33]),
    ([33], [33, 5]),
    ([5, 33], [33]),
    ([33], [3, 33, 5]),
    ([2, 4, 16, 8], [8, 24]),
    ([2, 4, 16, 8], [2, 4, 8, 24]),
    ([2, 1, 16, 8], [1, 3, 8, 24]),
    ([3, 2, 1, 4, 5], [2, 6, 5, 3]),
    ([16, 8], [2, 3, 8, 24]),
]


@pytest.fixture(autouse=True)
def first_suggestion(monkeypatch: pytest.MonkeyPatch) -> None:
    """No measuring: what is tested is the plan, and every shape here would be measured for nothing."""
    monkeypatch.setenv("CUVIL_TUNING", "off")


def run(make: MakeSession, op: str, arrays: list[np.ndarray | None], dtype: str, **options: Any) -> np.ndarray:
    """The node's output twice, equal bit for bit. bfloat16 tensors are cast inside the model."""
    bfloat16 = dtype == "bfloat16"
    kind = np.float32 if bfloat16 else np.dtype(dtype)
    inputs = [None if a is None else a.astype(kind) for a in arrays]
    session = make(model(op, inputs, bfloat16=bfloat16, **options))
    constant = options.get("constant", ())
    feeds = {f"x{i}": a for i, a in enumerate(inputs) if a is not None and i not in constant}
    (first,), (second,) = session.run(None, feeds), session.run(None, feeds)
    np.testing.assert_array_equal(first, second)
    return first


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("a", "b"), MATMUL_SHAPES, ids=str)
def test_matmul(ep_session: MakeSession, a: list[int], b: list[int], dtype: str) -> None:
    x, y = rounded(sample(a, np.float64, 1), dtype), rounded(sample(b, np.float64, 2), dtype)
    found = run(ep_session, "MatMul", [x, y], dtype)
    assert_sum_of_products(found, np.asarray(x @ y), np.asarray(np.abs(x) @ np.abs(y)), a[-1], dtype)


@given(data=st.data())
@quick
def test_matmul_of_any_shape(ep_session: MakeSession, data: st.DataObject) -> None:
    m, k, n = (data.draw(st.integers(1, 70)) for _ in range(3))
    lead = data.draw(st.lists(st.integers(1, 3), max_size=3))
    sides = []
    for matrix in ([m, k], [k, n]):
        kept = lead[data.draw(st.integers(0, len(lead))) :]
        sides.append([data.draw(st.sampled_from([d, 1])) for d in kept] + matrix)
    test_matmul(ep_session, *sides, data.draw(st.sampled_from(DTYPES)))


@pytest.mark.parametrize(("a", "b"), [([3, 0], [0, 4]), ([0, 3], [3, 4]), ([2, 3, 0], [2, 0, 4]), ([0, 2, 3], [3, 4])])
def test_matmul_without_elements(ep_session: MakeSession, a: list[int], b: list[int]) -> None:
    x, y = np.ones(a, np.float32), np.ones(b, np.float32)
    np.testing.assert_array_equal(run(ep_session, "MatMul", [x, y], "float32"), x @ y)  # an empty sum is zero


def test_integer_products_are_left_to_the_cpu(ep_session: MakeSession) -> None:
    x = np.ones((2, 2), np.int32)
    with pytest.raises(Exception, match=r"(?i)fallback|not.*assigned|explicitly"):
        ep_session(model("MatMul", [x, x]))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("c", [None, [24], [1, 24], [16, 1], [1], [], [16, 24], [1, 1]], ids=str)
@pytest.mark.parametrize(
    ("trans_a", "trans_b", "alpha", "beta"), [(0, 0, 1.0, 1.0), (1, 1, 0.5, -2.0), (0, 1, 1.0, 0.0)]
)
def test_gemm(
    ep_session: MakeSession, c: list[int] | None, trans_a: int, trans_b: int, alpha: float, beta: float, dtype: str
) -> None:
    m, k, n = 16, 40, 24
    a = rounded(sample([k, m] if trans_a else [m, k], np.float64, 1), dtype)
    b = rounded(sample([n, k] if trans_b else [k, n], np.float64, 2), dtype)
    bias = None if c is None else rounded(sample(c, np.float64, 3), dtype)
    left, right = a.T if trans_a else a, b.T if trans_b else b
    add = 0.0 if bias is None else beta * bias
    attrs = {"transA": trans_a, "transB": trans_b, "alpha": alpha, "beta": beta}
    found = run(ep_session, "Gemm", [a, b, bias], dtype, attrs=attrs)
    magnitude = abs(alpha) * (np.abs(left) @ np.abs(right)) + np.abs(add)
    # A broadcast C is scaled and rounded in Y before the product is added: one rounding more, of a term of the sum.
    magnitude = magnitude + (k * np.abs(add) if dtype in ("float16", "bfloat16") else 0)
    assert_sum_of_products(found, alpha * (left @ right) + add, magnitude, k, dtype)


@pytest.mark.parametrize("c", [[4], [3, 1], [3, 4]], ids=str)
def test_gemm_over_nothing_is_beta_c(ep_session: MakeSession, c: list[int]) -> None:
    a, b, bias = np.zeros((3, 0), np.float32), np.zeros((0, 4), np.float32), sample(c)
    found = run(ep_session, "Gemm", [a, b, bias], "float32", attrs={"beta": 2.0})
    np.testing.assert_array_equal(found, np.broadcast_to(2 * bias, (3, 4)))


def test_gemm_refuses_shapes_that_do_not_fit(ep_session: MakeSession) -> None:
    m = model("Gemm", [sample([3, 4]), sample([5, 6])])
    for value in m.graph.input:  # unknown to shape inference, so that the kernel meets them
        value.type.tensor_type.ClearField("shape")
    with pytest.raises(Exception, match="inner dimensions 4 and 5 differ"):
        ep_session(m).run(None, {"x0": sample([3, 4]), "x1": sample([5, 6])})


def fused(inputs: tuple[np.ndarray | None, ...], attrs: dict[str, Any], dtype: ir.DataType) -> testing.Case:
    return testing.build(custom_ops.specs()["FusedMatMul"], Example("case", inputs, attrs), opset=20, dtype=dtype)


KINDS = {"float32": ir.DataType.FLOAT, "float16": ir.DataType.FLOAT16}
PARAMS = {"LeakyRelu": [0.1], "Elu": [1.0], "Clip": [-0.5, 0.75], "HardSigmoid": [0.2, 0.5]}


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("activation", list(activations.PARAMS))
@pytest.mark.parametrize("operands", ["bias", "z", "bias z", "scalar z", ""])
@pytest.mark.parametrize("trans_b", [0, 1])
def test_fused_matmul(ep_session: MakeSession, operands: str, activation: str, trans_b: int, dtype: str) -> None:
    a, w = sample([2, 9, 64], np.float64, 1), sample([64, 40], np.float64, 2) / 8
    bias = {"bias": sample([40], np.float64, 3), "scalar": sample([1], np.float64, 3)}.get(operands.split(" ")[0])
    z = sample([2, 9, 40], np.float64, 4) if "z" in operands else None
    attrs = {"transB": trans_b, "activation": activation, "activation_params": PARAMS.get(activation, [])}
    case = fused((a, w.T.copy() if trans_b else w, bias, z), attrs, KINDS[dtype])
    (found,) = ep_session(case.model).run(None, case.feeds)
    # The activations' slopes are at most 1.5 (HardSwish): errors before them hardly grow.
    added = [v for v in (bias, z) if v is not None]
    magnitude = 1.5 * (np.abs(a) @ np.abs(w) + sum(np.abs(v) for v in added))
    # Other activations are a pass of their own, over sums that cuBLASLt rounded.
    between = 0.0 if activation in ("", "Relu", "GeluTanh") else 1.5 * np.abs(sum(added, a @ w))
    assert_sum_of_products(found, np.asarray(case.expected[0]), magnitude, 64, dtype, between)


def test_choices_are_measured_once_and_remembered(
    ep_session: MakeSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CUVIL_TUNING", "on")
    monkeypatch.setenv("CUVIL_CACHE_DIR", str(tmp_path))
    x, y = sample([64, 512], np.float64, 1), sample([512, 128], np.float64, 2)
    first = run(ep_session, "MatMul", [x, y], "float16")
    (file,) = (tmp_path / "tuning").glob("cublaslt-*.txt")
    remembered = file.read_text()
    assert remembered.count("\n") == 1 and "1x64x128x512" in remembered
    second = run(ep_session, "MatMul", [x, y], "float16")
    np.testing.assert_array_equal(first, second)  # the same algorithm: the same bits
    assert file.read_text() == remembered
    file.write_text(remembered.replace(remembered.split("\t")[1].strip(), "ff.ff.ff.ff.ff.ff.ff.ff"))
    run(ep_session, "MatMul", [x, y], "float16")  # an algorithm that does not exist is measured anew
    assert "ff.ff" not in file.read_text()
