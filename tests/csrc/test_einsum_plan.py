"""The lowering of Einsum against numpy.einsum: each step is carried out by NumPy on flat memory."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

NAMES = ("einsum", "einsum_equation", "einsum_pair", "reduce", "shapes", "strided")
SOURCES = ["tests/csrc/einsum_tool.cc"] + [f"csrc/plan/{n}.cc" for n in NAMES]
Array = np.ndarray


class Tool:
    """The compiled einsum_tool; `plan` returns its answer, or raises what the library threw."""

    def __init__(self, path: Path) -> None:
        self.process = subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def plan(self, equation: str, shapes: Sequence[Sequence[int]]) -> dict[str, Any]:
        assert self.process.stdin and self.process.stdout
        words = [",".join(map(str, s)) or "-" for s in shapes]
        print("=" + equation.replace(" ", ""), *words, file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline().strip()
        if answer.startswith("error: "):
            raise ValueError(answer)
        found: dict[str, Any] = json.loads(answer)
        return found


@pytest.fixture(scope="module")
def tool(compile_cpp: Callable[..., Path]) -> Iterator[Tool]:
    t = Tool(compile_cpp(SOURCES))
    yield t
    t.process.communicate()


def look(data: Array, extents: Sequence[int], strides: Sequence[int], offset: int = 0) -> Array:
    """The elements that a view selects; reading outside the data fails."""
    index = np.full(tuple(extents), offset, np.int64)
    for axis, (e, s) in enumerate(zip(extents, strides, strict=True)):
        index += (np.arange(e) * s).reshape([-1 if i == axis else 1 for i in range(len(extents))])
    assert index.size == 0 or (index.min() >= 0 and index.max() < data.size)
    return np.asarray(data[index])


def matrices(data: Array, batch: int, stride: int, rows: int, columns: int, transposed: bool) -> Array:
    steps = (stride, 1, rows) if transposed else (stride, columns, 1)
    return look(data, (batch, rows, columns), steps)


def carry_out(step: dict[str, Any], tensors: list[Array]) -> Array:
    a, b = tensors[step["a"]], tensors[step["b"]]
    if step["kind"] == "copy":
        return look(a, step["view_extent"], step["view_stride"], step["offset"]).reshape(-1)
    if step["kind"] == "reduce":
        for pass_ in step["passes"]:
            a = a.reshape(pass_).sum(1).reshape(-1)
        return a
    if step["kind"] == "gemm":
        m, n, k, batch = (step[name] for name in ("m", "n", "k", "batch"))
        left = matrices(a, batch, step["stride_a"], m, k, step["trans_a"])
        return np.asarray(left @ matrices(b, batch, step["stride_b"], k, n, step["trans_b"])).reshape(-1)
    product = look(a, step["extent"], step["step_a"]) * look(b, step["extent"], step["step_b"])
    kept = len(step["extent"]) - step["reduced"]
    return np.asarray(product.sum(tuple(range(kept, product.ndim)))).reshape(-1)


def check(tool: Tool, equation: str, *shapes: Sequence[int]) -> list[str]:
    """Compares with NumPy, and returns the kinds of the steps. Whole numbers: sums are exact in any order."""
    rng = np.random.default_rng(0)
    operands = [rng.integers(-4, 5, tuple(s)) for s in shapes]
    expected = np.einsum(equation, *operands)
    plan = tool.plan(equation, shapes)
    assert plan["output"] == list(expected.shape)
    tensors = [x.reshape(-1) for x in operands]
    for step in plan["steps"]:
        tensors.append(carry_out(step, tensors))
        assert tensors[-1].size == step["elements"]
    if plan["zero"]:
        assert not plan["steps"] and not expected.any()
    elif expected.size:
        np.testing.assert_array_equal(tensors[-1].reshape(expected.shape), expected)
    else:
        assert not plan["steps"]
    return [step["kind"] for step in plan["steps"]]


CASES: list[tuple[str, list[list[int]], list[str]]] = [
    ("ij->ij", [[2, 3]], ["copy"]),
    ("ij->ji", [[2, 3]], ["copy"]),
    ("ij->", [[2, 3]], ["reduce"]),
    ("ijk->ik", [[2, 3, 4]], ["reduce"]),
    ("ijk->k", [[2, 3, 4]], ["reduce"]),
    ("ijk->ki", [[2, 3, 4]], ["reduce", "copy"]),
    ("ii->i", [[3, 3]], ["copy"]),
    ("ii", [[3, 3]], ["copy", "reduce"]),
    ("...ii->...i", [[2, 4, 3, 3]], ["copy"]),
    ("i...j->j...", [[2, 4, 3]], ["reduce", "copy"]),
    # Products of matrices as they lie in memory need no copy, whichever side is transposed.
    ("ij,jk->ik", [[2, 3], [3, 4]], ["gemm"]),
    ("ji,jk->ik", [[3, 2], [3, 4]], ["gemm"]),
    ("ij,kj->ik", [[2, 3], [4, 3]], ["gemm"]),
    ("ij,jk->ki", [[2, 3], [3, 4]], ["gemm"]),
    ("bij,bjk->bik", [[5, 2, 3], [5, 3, 4]], ["gemm"]),
    ("bhid,bhjd->bhij", [[2, 3, 4, 5], [2, 3, 6, 5]], ["gemm"]),
    ("bij,jk->bik", [[5, 2, 3], [3, 4]], ["gemm"]),
    ("ij,bjk->bik", [[2, 3], [5, 3, 4]], ["gemm"]),
    ("bc,cd,de->be", [[2, 3], [3, 4], [4, 5]], ["gemm", "gemm"]),
    ("...ij,...jk", [[5, 2, 3], [3, 4]], ["gemm"]),
    ("...ij,...jk->...ik", [[5, 2, 3], [1, 3, 4]], ["gemm"]),
    ("bnqd,bnkd->bnqk", [[2, 1, 4, 5], [2, 1, 6, 5]], ["gemm"]),
    ("bsnh,nhd->bsd", [[2, 3, 4, 5], [4, 5, 6]], ["gemm"]),
    ("bqhd,bkhd->bhqk", [[2, 3, 4, 5], [2, 6, 4, 5]], ["copy", "copy", "gemm"]),
    ("bchw,bkc->bkhw", [[2, 3, 4, 5], [2, 6, 3]], ["gemm"]),
    ("bhwc,hkc->bhwk", [[2, 3, 4, 5], [3, 6, 5]], ["copy", "gemm", "copy"]),
    # No row, no column, no sum: a product of views.
    ("i,j->ij", [[3], [4]], ["product"]),
    ("ij,ij->ij", [[3, 4], [3, 4]], ["product"]),
    ("ij,ji->ij", [[3, 4], [4, 3]], ["product"]),
    ("bi,bi->b", [[3, 4], [3, 4]], ["product"]),
    ("i,i->", [[4], [4]], ["product"]),
    ("i,i", [[5000], [5000]], ["gemm"]),
    (",ij->ij", [[], [3, 4]], ["product"]),
    ("ij,ij->", [[3, 4], [3, 4]], ["product"]),
    # Labels that one operand alone has are summed first.
    ("ij,k->i", [[3, 4], [5]], ["reduce", "reduce", "product"]),
    ("aab,bc->c", [[3, 3, 2], [2, 4]], ["copy", "reduce", "gemm"]),
    ("ab,bc,ca->", [[2, 3], [3, 4], [4, 2]], ["gemm", "product"]),
    ("a,b,c->abc", [[2], [3], [4]], ["product", "product"]),
]


@pytest.mark.parametrize(("equation", "shapes", "kinds"), CASES, ids=[c[0] for c in CASES])
def test_known(tool: Tool, equation: str, shapes: list[list[int]], kinds: list[str]) -> None:
    assert check(tool, equation, *shapes) == kinds


def test_dimensions_of_one_broadcast(tool: Tool) -> None:
    check(tool, "...ij,...jk->...ik", [5, 2, 3], [4, 1, 3, 6])
    check(tool, "...ij,...jk->...ik", [4, 1, 2, 3], [5, 3, 6])
    check(tool, "ij,jk->ik", [1, 1], [1, 1])
    check(tool, "...->...", [1, 1])


def test_nothing_to_sum(tool: Tool) -> None:
    assert check(tool, "ij,jk->ik", [2, 0], [0, 3]) == []
    assert check(tool, "ij,jk->ik", [0, 2], [2, 3]) == []
    assert check(tool, "ij->i", [2, 0]) == []


@pytest.mark.parametrize(
    ("equation", "shapes", "message"),
    [
        ("ij,jk->ik", [[2, 3]], "2 input terms for 1 inputs"),
        ("ij,jk->ik", [[2, 3], [4, 5]], "extent"),
        ("ij->ijk", [[2, 3]], "output alone"),
        ("ij->ii", [[2, 3]], "repeats 'i'"),
        ("i-j->i", [[2, 3]], "holds '-'"),
        ("...ij->ij", [[2, 3]], "ellipsis on one side"),
        ("ij->...ij", [[2, 3]], "ellipsis on one side"),
        ("......ij->...", [[2, 3]], "two ellipses"),
        ("ijk->i", [[2, 3]], "shape"),
        ("...ijk->...", [[2, 3]], "shape"),
    ],
)
def test_refuses(tool: Tool, equation: str, shapes: list[list[int]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tool.plan(equation, shapes)


@st.composite
def equations(draw: st.DrawFn) -> tuple[str, list[list[int]]]:
    extent = {label: draw(st.sampled_from([1, 2, 3, 4])) for label in "abcdefA"}
    ellipsis = draw(st.sampled_from(["", "...", "..."]))
    wide = draw(st.lists(st.sampled_from([1, 2, 3]), max_size=2)) if ellipsis else []
    terms, shapes = [], []
    for _ in range(draw(st.integers(1, 3))):
        before, after = (draw(st.lists(st.sampled_from(list(extent)), max_size=2)) for _ in range(2))
        own = wide[draw(st.integers(0, len(wide))) :] if draw(st.booleans()) else wide
        own = [draw(st.sampled_from([1, e])) for e in own]
        terms.append("".join(before) + ellipsis + "".join(after))
        shapes.append([*(extent[c] for c in before), *own, *(extent[c] for c in after)])
    equation = ",".join(terms)
    if draw(st.booleans()):
        used = sorted({c for c in equation if c.isalpha()})
        kept = draw(st.permutations([c for c in used if draw(st.booleans())])) if used else []
        at = draw(st.integers(0, len(kept)))
        equation += "->" + "".join(kept[:at]) + ellipsis + "".join(kept[at:])
    return equation, shapes


@settings(max_examples=500, deadline=None)
@given(equations())
def test_any_equation(tool: Tool, case: tuple[str, list[list[int]]]) -> None:
    equation, shapes = case
    if np.einsum(equation, *(np.zeros(s) for s in shapes)).ndim > 8:  # more than a tensor of the provider may have
        with pytest.raises(ValueError, match="rank above 8"):
            tool.plan(equation, shapes)
        return
    check(tool, equation, *shapes)


def test_a_result_of_rank_9_is_refused(tool: Tool) -> None:
    with pytest.raises(ValueError, match="rank above 8"):
        tool.plan("...,e...ad,bc...fA", [[1, 1], [1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]])
