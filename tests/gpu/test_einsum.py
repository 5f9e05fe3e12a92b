"""Einsum against numpy.einsum in float64. bfloat16 needs opset 28, which ONNX Runtime does not load yet."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given

from tests.csrc.test_einsum_plan import CASES, equations
from tests.gpu.bounds import rounded
from tests.gpu.single_op import MakeSession, check, model, quick, sample

Array = np.ndarray


def einsum(make: MakeSession, equation: str, operands: list[Array], opset: int = 12) -> None:
    """Whole numbers from -2 to 2: every partial result is exact in every type, so that a wrong element shows."""
    wide = [x.astype(np.float64) for x in operands]
    exact = np.einsum(equation, *wide)
    largest = np.einsum(equation, *map(np.abs, wide))
    limit = 2.0 ** {"float32": 24, "float16": 11, "float64": 53}[operands[0].dtype.name]
    # Beyond that a result is rounded once a step; at most four steps.
    unit = 0.0 if largest.size == 0 or largest.max() <= limit else 4 / limit
    attrs = {"equation": equation}
    expected = [exact.astype(operands[0].dtype)]
    check(make, "Einsum", operands, attrs, opset=opset, expected=expected, rtol=unit, atol=unit)


def is_onnx(equation: str, shapes: list[list[int]]) -> bool:
    """ONNX's shape inference wants ellipses of one rank; NumPy is more liberal."""
    terms = equation.split("->")[0].split(",")
    wide = {len(s) - (len(t) - 3) for t, s in zip(terms, shapes, strict=True) if "..." in t}
    return len(wide) <= 1


def whole(shapes: list[list[int]], dtype: type = np.float32) -> list[Array]:
    rng = np.random.default_rng(1)
    return [rng.integers(-2, 3, tuple(s)).astype(dtype) for s in shapes]


KNOWN = [case for case in CASES if is_onnx(*case[:2])]


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64])
@pytest.mark.parametrize(("equation", "shapes", "kinds"), KNOWN, ids=[c[0] for c in KNOWN])
def test_known(ep_session: MakeSession, equation: str, shapes: list[list[int]], kinds: list[str], dtype: type) -> None:
    einsum(ep_session, equation, whole(shapes, dtype))


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("bqhd,bkhd->bhqk", [[2, 65, 4, 32], [2, 33, 4, 32]]),
        ("bhqk,bkhd->bqhd", [[2, 4, 65, 33], [2, 33, 4, 32]]),
        ("bhwc,hkc->bhwk", [[2, 14, 14, 64], [14, 14, 64]]),
        ("bid,bd->bi", [[3, 100, 257], [3, 257]]),
        ("bi,bi->b", [[300, 77], [300, 77]]),
        ("i,i->", [[100000], [100000]]),
        ("...ij->...", [[2, 3, 70, 90]]),
    ],
)
def test_models(ep_session: MakeSession, equation: str, shapes: list[list[int]], dtype: type) -> None:
    """Equations of attention, position embeddings and dot products, on real numbers."""
    operands = [sample(s, dtype, i) for i, s in enumerate(shapes)]
    wide = [rounded(x.astype(np.float64), x.dtype.name) for x in operands]
    exact, magnitude = np.einsum(equation, *wide), np.einsum(equation, *map(np.abs, wide))
    (found,) = ep_session(model("Einsum", operands, {"equation": equation})).run(
        None, {f"x{i}": x for i, x in enumerate(operands)}
    )
    # Products and sums in float32, in any order: below terms * 2**-24 of the sum of magnitudes, and in fact its square
    # root; one rounding to the type a step, of which there are two with a sum before.
    terms = max(x.size for x in operands) / max(exact.size, 1) + 1
    unit = {"float32": 2.0**-24, "float16": 2.0**-11}[np.dtype(dtype).name]
    bound = 4 * np.sqrt(terms) * 2.0**-24 * magnitude + 2 * unit * np.abs(exact) + 2.0**-24
    assert found.dtype == dtype and found.shape == exact.shape
    assert (np.abs(found - exact) <= bound).all()


@quick
@given(equations())
def test_any_equation(ep_session: MakeSession, case: tuple[str, list[list[int]]]) -> None:
    equation, shapes = case
    assume(is_onnx(equation, shapes))
    einsum(ep_session, equation, whole(shapes))


def test_shapes_may_change_from_run_to_run(ep_session: MakeSession) -> None:
    m = model("Einsum", whole([[2, 3], [3, 4]]), {"equation": "ij,jk->ik"})
    for name, tensor in zip(("x0", "x1"), m.graph.input, strict=True):
        for i, dim in enumerate(tensor.type.tensor_type.shape.dim):
            dim.dim_param = f"{name}{i}"
    session = ep_session(m)
    for i, j, k in ((2, 3, 4), (4, 3, 2), (1, 1, 1), (2, 0, 3), (0, 2, 3), (2, 3, 4)):
        a, b = whole([[i, j], [j, k]])
        (found,) = session.run(None, {"x0": a, "x1": b})
        np.testing.assert_array_equal(found, a @ b)


def test_empty(ep_session: MakeSession) -> None:
    einsum(ep_session, "ij,jk->ik", whole([[2, 0], [0, 3]]))
    einsum(ep_session, "ij,jk->ik", whole([[0, 2], [2, 3]]))
    einsum(ep_session, "ij->i", whole([[2, 0]]))


def test_as_onnx_runtime(ep_session: MakeSession) -> None:
    operands = whole([[2, 3, 4], [4, 5]])
    for equation in ("bij,jk->bik", "...ij,jk", "bij,jk->kb", "bij , jk -> b k i"):
        check(ep_session, "Einsum", operands, {"equation": equation}, opset=12)


def test_integers_are_left_to_the_cpu(ep_session: MakeSession) -> None:
    with pytest.raises(Exception, match=r"(?i)fallback|not.*assigned|explicitly"):
        ep_session(model("Einsum", [sample((2, 2), np.int32)], {"equation": "ij->ji"}))
