"""Validation and planning of cuvil::Pointwise programs."""

from __future__ import annotations

import pytest

from tests.csrc.pointwise_tool import SOURCES, Job, Tool

F32 = [("f32", (4,))]
LOAD = "load.f32 0"


@pytest.fixture(scope="module")
def tool(compile_cpp) -> Tool:
    return Tool(compile_cpp(SOURCES))


BAD = {
    "empty": (F32, [], [0], "0 instructions"),
    "blank": (F32, [""], [0], "instruction 0: empty"),
    "unknown op": (F32, [LOAD, "frobnicate.f32 0"], [1], "instruction 1: unknown operation in 'frobnicate.f32 0'"),
    "no dtype": (F32, ["load 0"], [0], "instruction 0: 'load 0' names no known dtype"),
    "unknown dtype": (F32, ["load.f99 0"], [0], "names no known dtype after load."),
    "string dtype": (F32, ["load.string 0"], [0], "names no known dtype"),
    "string input": ([("string", (4,)), ("f32", (4,))], ["load.f32 1"], [0], "input 0 is string"),
    "too many operands": (F32, [LOAD, "relu.f32 0 0"], [1], "has 2 operands, relu takes 1"),
    "too few operands": (F32, [LOAD, "add.f32 0"], [1], "has 1 operands, add takes 2"),
    "forward reference": (F32, [LOAD, "relu.f32 1"], [1], "operand 0 is instruction 1, required an earlier one"),
    "negative operand": (F32, [LOAD, "relu.f32 -1"], [1], "operand 0 is instruction -1"),
    "operand overflow": (F32, [LOAD, "relu.f32 99999999999999999999"], [1], "operand 1 is no number"),
    "operand text": (F32, [LOAD, "relu.f32 x"], [1], "operand 1 is no number"),
    "operand with tail": (F32, [LOAD, "relu.f32 0;"], [1], "operand 1 is no number"),
    "operand hex": (F32, [LOAD, "relu.f32 0x0"], [1], "operand 1 is no number"),
    "injected code": (F32, [LOAD, 'relu.f32 0); asm("trap;"); ('], [1], "has 3 operands, relu takes 1"),
    "injected dtype": (F32, ["load.f32;asm 0"], [0], "names no known dtype"),
    "load out of range": (F32, ["load.f32 1"], [0], "load of input 1, the node has 1"),
    "load of another dtype": (F32, ["load.f16 0"], [0], "load.f16 of input 0, which is f32"),
    "no inputs": ([], ["const.f32 0x0"], [0], "0 inputs"),
    "too many inputs": (F32 * 33, [LOAD], [0], "33 inputs, required 1 to 32"),
    "const without prefix": (F32, ["const.f32 12"], [0], "a constant is 0x"),
    "const too wide": (F32, ["const.f16 0x10000"], [0], "does not fit in f16"),
    "const too long": (F32, ["const.f64 0x11111111111111111"], [0], "at most 16 hexadecimal digits"),
    "const empty": (F32, ["const.f64 0x"], [0], "a constant is 0x"),
    "const bool": (F32, ["const.bool 0x2"], [0], "does not fit in bool"),
    "mixed dtypes": (F32, [LOAD, "cast.f16 0", "add.f32 0 1"], [2], "add.f32: operand 1 is f16, required f32"),
    "result dtype": (F32, [LOAD, "relu.f16 0"], [1], "relu.f16: operand 0 is f32, required f16"),
    "sqrt of integer": ([("i32", (4,))], ["load.i32 0", "sqrt.i32 0"], [1], "sqrt is not defined for i32"),
    "mod of float": (F32, [LOAD, "mod.f32 0 0"], [1], "mod is not defined for f32"),
    "and of float": (F32, [LOAD, "and.f32 0 0"], [1], "and is not defined for f32"),
    "neg of unsigned": ([("u8", (4,))], ["load.u8 0", "neg.u8 0"], [1], "neg is not defined for u8"),
    "add of bool": ([("bool", (4,))], ["load.bool 0", "add.bool 0 0"], [1], "add is not defined for bool"),
    "less of bool": ([("bool", (4,))], ["load.bool 0", "less.bool 0 0"], [1], "less is not defined for bool"),
    "comparison dtype": (F32, [LOAD, "less.f32 0 0"], [1], "less gives bool, found f32"),
    "isnan of integer": ([("i32", (4,))], ["load.i32 0", "isnan.bool 0"], [1], "isnan is not defined for i32"),
    "where condition": (F32, [LOAD, "where.f32 0 0 0"], [1], "operand 0 is f32, required bool"),
    "parameter not const": (F32, [LOAD, "elu.f32 0 0"], [1], "elu: operand 1 must be a const instruction"),
    "parameter dtype": (F32, [LOAD, "const.f64 0x0", "elu.f32 0 1"], [2], "operand 1 is f64, required f32"),
    "output range": (F32, [LOAD], [1], "output 0 is instruction 1, the program has 1"),
    "output negative": (F32, [LOAD], [-1], "output 0 is instruction -1"),
    "output huge": (F32, [LOAD], [2**40], "output 0 is instruction -1"),
    "no outputs": (F32, [LOAD], [], "0 outputs, required 1 to 16"),
    "too many outputs": (F32, [LOAD], [0] * 17, "17 outputs, required 1 to 16"),
    "too long": (F32, [LOAD] * 1025, [0], "1025 instructions, required 1 to 1024"),
    "shapes": ([("f32", (4,)), ("f32", (3,))], [LOAD], [0], "shapes [4] and [3] do not broadcast"),
}


@pytest.mark.parametrize("name", BAD)
def test_refused(tool: Tool, name: str) -> None:
    inputs, code, outputs, message = BAD[name]
    (line,) = tool.run([Job(inputs, code, outputs)])
    assert line.startswith("error ") and message in line


GOOD = {
    "extra spaces": (F32, ["  load.f32   0 "], [0]),
    "longest": (F32, [LOAD] * 1024, [1023]),
    "one value twice": (F32, [LOAD], [0, 0]),
    "unused input": ([("f32", (4,)), ("f16", (4,))], [LOAD], [0]),
    "f32 parameter of f16": ([("f16", (4,))], ["load.f16 0", "const.f32 0x3f000000", "leaky_relu.f16 0 1"], [2]),
    "f64 constant": (F32, ["const.f64 0xffffffffffffffff"], [0]),
}


@pytest.mark.parametrize("name", GOOD)
def test_accepted(tool: Tool, name: str) -> None:
    (line,) = tool.run([Job(*GOOD[name])])
    assert line.startswith("ok ")


def plan(tool: Tool, *inputs: tuple[str, tuple[int, ...]], **options) -> dict[str, str]:
    code = [f"load.{dtype} {i}" for i, (dtype, _) in enumerate(inputs)]
    return tool.facts(Job(inputs, code, [0], **options))


def test_plan_collapses_equal_shapes(tool: Tool) -> None:
    facts = plan(tool, ("f32", (8, 3, 5)), ("f32", (8, 3, 5)), ("f32", (1, 1, 1)))
    assert (facts["rank"], facts["access"], facts["vector"]) == ("0", "001", "4")


def test_plan_of_a_channel_bias(tool: Tool) -> None:
    # N, C, H*W: the bias moves along the middle one.
    facts = plan(tool, ("f32", (8, 64, 56, 56)), ("f32", (64, 1, 1)))
    assert (facts["rank"], facts["rows"], facts["access"]) == ("3", "1", "02")
    # 7 * 7 is no multiple of the vector: coordinates are computed for each element.
    assert plan(tool, ("f32", (8, 64, 7, 7)), ("f32", (64, 1, 1)))["rows"] == "0"


def test_plan_drops_unit_dimensions(tool: Tool) -> None:
    facts = plan(tool, ("f16", (4, 1, 6, 1, 8)), ("f16", (1, 6, 1, 8)))
    assert (facts["rank"], facts["shape"]) == ("2", "[4,1,6,1,8]")


def test_plan_takes_vectors_of_the_widest_type(tool: Tool) -> None:
    assert plan(tool, ("f16", (1024,)))["vector"] == "8"
    assert plan(tool, ("f16", (1024,)), ("f32", (1024,)))["vector"] == "4"
    assert plan(tool, ("f64", (1024,)), ("u8", (1024,)))["vector"] == "2"
    assert plan(tool, ("f16", (1024,)), ("f64", (1,)))["vector"] == "8"
    assert plan(tool, ("f32", (1024,)), aligned=False)["vector"] == "1"


def test_plan_switches_to_wide_indices_before_they_overflow(tool: Tool) -> None:
    # One tile is 4096 elements, and the last may reach over the end.
    assert plan(tool, ("u8", (2**31 - 2**16,)))["wide"] == "0"
    assert plan(tool, ("u8", (2**31,)))["wide"] == "1"


def test_plan_unrolls_and_streams_large_tensors_only(tool: Tool) -> None:
    large, small = plan(tool, ("f32", (2**26,))), plan(tool, ("f32", (2**16,)))
    assert (large["unroll"], large["stream"]) == ("4", "1")
    assert (small["unroll"], small["stream"]) == ("1", "0")


def test_plan_of_an_empty_tensor_launches_nothing(tool: Tool) -> None:
    assert plan(tool, ("f32", (0, 4)), ("f32", (1, 1))) == {"shape": "[0,4]"}
