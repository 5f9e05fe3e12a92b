"""csrc/plan/window.h and matmul_shape.h against ONNX Runtime and NumPy; csrc/core/tuning_cache.h on files."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from onnx import helper

SOURCES = ["tests/csrc/window_matmul_tool.cc", "csrc/core/tuning_cache.cc", "csrc/core/cache_dir.cc"]
AUTO_PAD = ["NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"]


class Tool:
    """The compiled tool; `ask` returns one answer, or raises what the library threw."""

    def __init__(self, path: Path, env: dict[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **(env or {})}
        )

    def ask(self, *words: Any) -> str:
        def text(word: Any) -> str:
            return ",".join(map(str, word)) or "-" if isinstance(word, (list, tuple)) else str(word)

        assert self.process.stdin and self.process.stdout
        print(*map(text, words), file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline().strip()
        if answer.startswith("error: "):
            raise ValueError(answer)
        return answer

    def close(self) -> None:
        self.process.communicate()


@pytest.fixture(scope="module")
def executable(compile_cpp: Callable[..., Path]) -> Path:
    return compile_cpp(SOURCES)


@pytest.fixture(scope="module")
def tool(executable: Path) -> Iterator[Tool]:
    t = Tool(executable)
    yield t
    t.close()


def numbers(answer: str) -> list[list[int]]:
    return [[int(w) for w in part.split()] for part in answer.split("|")]


def ort_shape(op: str, inputs: dict[str, np.ndarray], **attributes: Any) -> tuple[int, ...]:
    values = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, a.shape) for n, a in inputs.items()]
    y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    graph = helper.make_graph([helper.make_node(op, list(inputs), ["y"], **attributes)], "g", values, [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return tuple(session.run(None, inputs)[0].shape)


@st.composite
def windows(draw: st.DrawFn) -> tuple[list[int], list[int], list[int], list[int], list[int], str]:
    rank = draw(st.integers(1, 3))

    def values(low: int, high: int, count: int = rank) -> list[int]:
        return draw(st.lists(st.integers(low, high), min_size=count, max_size=count))

    kernel, dilations = values(1, 4), values(1, 3)
    extents = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    size = [e + extra for e, extra in zip(extents, values(0, 8), strict=True)]
    pads = [draw(st.integers(0, kernel[i % rank] - 1)) for i in range(2 * rank)]
    return size, kernel, values(1, 4), pads, dilations, draw(st.sampled_from(AUTO_PAD))


def ask_window(tool: Tool, case: tuple[Any, ...], ceil_mode: bool) -> list[list[int]]:
    size, kernel, strides, pads, dilations, auto_pad = case
    written = pads if auto_pad == "NOTSET" else []
    answer = tool.ask("window", AUTO_PAD.index(auto_pad), int(ceil_mode), size, kernel, strides, written, dilations)
    return numbers(answer)[:3]


@given(case=windows())
def test_convolution_windows_have_onnx_runtimes_shape(tool: Tool, case: tuple[Any, ...]) -> None:
    size, kernel, strides, pads, dilations, auto_pad = case
    if auto_pad.startswith("SAME"):
        dilations = [1] * len(size)  # ONNX Runtime refuses others here
    out, begin, end = ask_window(tool, (size, kernel, strides, pads, dilations, auto_pad), False)
    attributes = {"pads": pads} if auto_pad == "NOTSET" else {"auto_pad": auto_pad}
    x, w = np.zeros((1, 1, *size), np.float32), np.zeros((1, 1, *kernel), np.float32)
    assert (1, 1, *out) == ort_shape("Conv", {"x": x, "w": w}, strides=strides, dilations=dilations, **attributes)
    if auto_pad in ("SAME_UPPER", "SAME_LOWER"):  # the odd element goes to the end or to the beginning
        extra = [e - b if auto_pad == "SAME_UPPER" else b - e for b, e in zip(begin, end, strict=True)]
        assert set(extra) <= {0, 1}


@given(case=windows())
def test_rounded_up_windows_have_onnx_runtimes_shape(tool: Tool, case: tuple[Any, ...]) -> None:
    size, kernel, strides, pads, dilations, _ = case
    out = ask_window(tool, (size, kernel, strides, pads, dilations, "NOTSET"), True)[0]
    x = np.zeros((1, 1, *size), np.float32)
    attributes = {"kernel_shape": kernel, "strides": strides, "pads": pads, "dilations": dilations}
    assert (1, 1, *out) == ort_shape("MaxPool", {"x": x}, ceil_mode=1, **attributes)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((0, 0, [3], [5], [1], [0, 0], [1]), "larger than the padded input"),
        ((0, 0, [3, 3], [2], [1], [], []), "kernel_shape has 1 values"),
        ((0, 0, [3], [2], [1, 1], [], []), "strides has 2"),
        ((0, 0, [3], [2], [1], [1], []), "pads has 1"),
        ((0, 0, [3], [2], [0], [], []), "must be positive"),
        ((0, 0, [3], [2], [1], [-1, 0], []), "negative pads"),
        ((0, 0, [3, 3, 3, 3], [1, 1, 1, 1], [], [], []), "4 spatial dimensions"),
    ],
)
def test_bad_windows_say_what_is_wrong(tool: Tool, words: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tool.ask("window", *words)


@given(case=windows(), data=st.data())
def test_transposed_windows_have_onnx_runtimes_shape(tool: Tool, case: tuple[Any, ...], data: st.DataObject) -> None:
    size, kernel, strides, pads, dilations, auto_pad = case
    size, rank = [min(n, 5) for n in size], len(size)
    extra = [data.draw(st.integers(0, s - 1)) for s in strides]
    full = [
        s * (n - 1) + (k - 1) * d + 1 + e for n, k, s, d, e in zip(size, kernel, strides, dilations, extra, strict=True)
    ]
    wanted = [max(f - data.draw(st.integers(-1, 2)), 1) for f in full] if data.draw(st.booleans()) else []
    assume(all(w - f + e < s for w, f, e, s in zip(wanted, full, extra, strides, strict=False)))
    if auto_pad.startswith("SAME") and not wanted:
        wanted = [min(n * s, f) for n, s, f in zip(size, strides, full, strict=True)]
    pads = pads if auto_pad == "NOTSET" else []
    attributes = {"auto_pad": auto_pad} if auto_pad != "NOTSET" else {"pads": pads}
    attributes |= {"output_shape": wanted} if wanted else {}
    x, w = np.zeros((1, 1, *size), np.float32), np.zeros((1, 1, *kernel), np.float32)
    how = {"strides": strides, "dilations": dilations, "output_padding": extra, **attributes}
    lead, tail = (pads or [0] * 2 * rank)[:rank], (pads or [0] * 2 * rank)[rank:]
    assume(wanted or all(f - a - b > 0 for f, a, b in zip(full, lead, tail, strict=True)))
    answer = tool.ask("spread", AUTO_PAD.index(auto_pad), 0, size, kernel, strides, pads, dilations, extra, wanted)
    out, begin, end = numbers(answer)[:3]
    assert (1, 1, *out) == ort_shape("ConvTranspose", {"x": x, "w": w}, **how)
    reached = [f - a - b for f, a, b in zip(full, begin, end, strict=True)]
    assert out == [max(w, r) for w, r in zip(wanted or reached, reached, strict=True)]


@st.composite
def products(draw: st.DrawFn) -> tuple[list[int], list[int], bool, bool]:
    """Shapes of A and B as MatMul takes them before any transposition, and which are stored transposed."""
    m, k, n = (draw(st.integers(1, 3)) for _ in range(3))
    lead = draw(st.lists(st.integers(1, 3), max_size=4))

    def operand(matrix: list[int]) -> list[int]:
        kept = lead[draw(st.integers(0, len(lead))) :]
        return [draw(st.sampled_from([d, 1])) for d in kept] + matrix

    a, b = operand([m, k]), operand([k, n])
    a = [k] if draw(st.booleans()) and len(a) == 2 else a
    b = [k] if draw(st.booleans()) and len(b) == 2 else b
    return a, b, draw(st.booleans()) and len(a) > 1, draw(st.booleans()) and len(b) > 1


def matrix(flat: np.ndarray, offset: int, rows: int, cols: int, transposed: bool) -> np.ndarray:
    stored = flat[offset : offset + rows * cols]
    return stored.reshape(cols, rows).T if transposed else stored.reshape(rows, cols)


@given(case=products())
def test_a_plan_of_strided_products_is_the_broadcast_product(tool: Tool, case: tuple[Any, ...]) -> None:
    shape_a, shape_b, trans_a, trans_b = case
    a = np.arange(1.0, 1 + np.prod(shape_a)).reshape(shape_a)
    b = np.arange(2.0, 2 + np.prod(shape_b)).reshape(shape_b)
    stored_a = np.ascontiguousarray(a.swapaxes(-1, -2)) if trans_a else a
    stored_b = np.ascontiguousarray(b.swapaxes(-1, -2)) if trans_b else b
    head, out_shape, calls = numbers(
        tool.ask("matmul", list(stored_a.shape), list(stored_b.shape), int(trans_a), int(trans_b))
    )
    m, n, k, batch, stride_a, stride_b = head
    flat_a, flat_b = stored_a.ravel(), stored_b.ravel()
    out = np.full(int(np.prod(out_shape)), np.nan)
    for at_a, at_b, at_d in zip(calls[0::3], calls[1::3], calls[2::3], strict=True):
        for i in range(batch):
            left = matrix(flat_a, at_a + i * stride_a, m, k, trans_a)
            right = matrix(flat_b, at_b + i * stride_b, k, n, trans_b)
            out[at_d + i * m * n : at_d + (i + 1) * m * n] = (left @ right).ravel()
    # Small integers in float64: exact, and a NaN left over would mean that an element was not written.
    np.testing.assert_array_equal(out.reshape(out_shape), a @ b)


def test_one_right_hand_matrix_needs_one_product(tool: Tool) -> None:
    head, out_shape, calls = numbers(tool.ask("matmul", [8, 128, 64], [64, 32], 0, 0))
    assert head == [8 * 128, 32, 64, 1, 0, 0] and out_shape == [8, 128, 32] and calls == [0, 0, 0]


def test_attention_scores_need_one_batched_product(tool: Tool) -> None:
    head, _, calls = numbers(tool.ask("matmul", [2, 12, 128, 64], [2, 12, 64, 128], 0, 0))
    assert head == [128, 128, 64, 24, 128 * 64, 64 * 128] and calls == [0, 0, 0]


def test_products_that_do_not_fit_name_both_shapes(tool: Tool) -> None:
    with pytest.raises(ValueError, match=r"\[2,3\] and \[4,5\].*3 and 4 differ"):
        tool.ask("matmul", [2, 3], [4, 5], 0, 0)
    with pytest.raises(ValueError, match="do not broadcast"):
        tool.ask("matmul", [2, 4, 4], [3, 4, 4], 0, 0)


def test_the_tuning_cache_survives_the_process_and_bad_lines(tool: Tool, tmp_path: Path) -> None:
    path = tmp_path / "tuning.txt"
    assert tool.ask("recall", path, "a") == "none"
    tool.ask("remember", path, "a", "1")
    tool.ask("remember", path, "b", "2")
    tool.ask("remember", path, "a", "3")
    assert [tool.ask("recall", path, k) for k in "ab"] == ["3", "2"]
    with path.open("a") as f:
        f.write("no separator\nc\t4\t5\n\t6\nd\t7")  # the last line has no end: its write was cut short
    assert [tool.ask("recall", path, k) for k in "abcd"] == ["3", "2", "none", "none"]
    path.write_bytes(bytes(range(256)))
    assert tool.ask("recall", path, "a") == "none"


def test_an_unwritable_tuning_cache_is_no_error(tool: Tool, tmp_path: Path) -> None:
    path = tmp_path / "missing" / "tuning.txt"
    assert tool.ask("remember", path, "a", "1") == "ok"
    assert tool.ask("recall", path, "a") == "none"


@pytest.mark.parametrize(
    ("value", "answer"),
    [("", "1"), ("on", "1"), ("off", "0"), ("thorough", "2"), ("only:gemm", "0 gemm"), ("only:", "0")],
)
def test_tuning_modes(executable: Path, value: str, answer: str) -> None:
    tool = Tool(executable, {"CUVIL_TUNING": value})
    assert tool.ask("mode") == answer
    tool.close()


def test_a_thorough_choice_serves_both_modes(tool: Tool) -> None:
    assert tool.ask("modes", "thorough") == "v v"
    assert tool.ask("modes", "plain") == "v none"


def test_an_unknown_tuning_mode_is_refused(executable: Path) -> None:
    tool = Tool(executable, {"CUVIL_TUNING": "fast"})
    with pytest.raises(ValueError, match='"fast"; on, off, thorough or only:PREFIX'):
        tool.ask("mode")
    tool.close()
