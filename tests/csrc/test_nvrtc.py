"""Generated kernels compile: every instruction on every dtype, and random programs, for the oldest and the newest
architecture of the default build. NVRTC needs no GPU."""

from __future__ import annotations

import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.csrc.pointwise_tool import SOURCES, Job, Tool, nvrtc_directory

pytestmark = pytest.mark.skipif(nvrtc_directory() is None, reason="nvidia-cuda-nvrtc is not installed")

FLOATS = ("f32", "f16", "bf16", "f64")
SIGNED, UNSIGNED = ("i8", "i16", "i32", "i64"), ("u8", "u16", "u32", "u64")
NUMBERS = FLOATS + SIGNED + UNSIGNED
ALL = (*NUMBERS, "bool")


def table(names: str, dtypes: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    return dict.fromkeys(names.split(), dtypes)


# Instruction -> dtypes it is defined for, by number and kind of operands.
UNARY = {
    **table("sqrt reciprocal exp log erf tanh sigmoid sin cos tan asin acos atan sinh cosh asinh acosh atanh", FLOATS),
    **table("floor ceil round softplus softsign hardswish gelu gelu_tanh silu mish", FLOATS),
    **table("neg relu", FLOATS + SIGNED),
    **table("abs sign", NUMBERS),
    **table("identity", ALL),
    **table("not", ("bool",)),
    **table("bitnot", SIGNED + UNSIGNED),
}
BINARY = {
    **table("add sub mul div pow fmod min max prelu", NUMBERS),
    **table("mod bitand bitor bitxor shl shr", SIGNED + UNSIGNED),
    **table("and or xor", ("bool",)),
}
COMPARE = {**table("equal", ALL), **table("less less_equal greater greater_equal", NUMBERS)}
# Instruction -> number of constant parameters.
PARAMETRIC = {
    "leaky_relu": 1,
    "elu": 1,
    "celu": 1,
    "thresholded_relu": 1,
    "quick_gelu": 1,
    "selu": 2,
    "hard_sigmoid": 2,
}


@pytest.fixture(scope="module")
def tool(compile_cpp) -> Tool:
    return Tool(compile_cpp(SOURCES))


def check(tool: Tool, jobs: list[Job]) -> None:
    for line in tool.run(jobs):
        assert line.startswith("ok ") and int(line.rsplit("image=", 1)[1]) > 1000, line


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize("sm", [80, 90])
def test_every_instruction_compiles(tool: Tool, dtype: str, sm: int) -> None:
    code = [f"load.{dtype} 0", f"load.{dtype} 1", "load.bool 2"]
    code += [f"{op}.{dtype} 0" for op, dtypes in UNARY.items() if dtype in dtypes]
    code += [f"{op}.{dtype} 0 1" for op, dtypes in BINARY.items() if dtype in dtypes]
    code += [f"where.{dtype} 2 0 1", *([f"clip.{dtype} 0 1 0"] if dtype != "bool" else [])]
    values = list(range(3, len(code)))
    code += [f"{op}.bool 0 1" for op, dtypes in COMPARE.items() if dtype in dtypes]
    if dtype in FLOATS:
        code += ["isnan.bool 0", "isinf.bool 0", "const.f32 0x3f000000", f"const.{dtype} 0x1"]
        alpha = len(code) - 2
        for op, count in PARAMETRIC.items():
            values.append(len(code))
            code.append(f"{op}.{dtype} 0 " + " ".join(str(alpha + i) for i in range(count)))
    values += [i for i, c in enumerate(code) if ".bool" in c and i > 2]
    for other in ALL:
        values.append(len(code))
        code.append(f"cast.{other} 0")
    inputs = [(dtype, (4096,)), (dtype, (4096,)), ("bool", (4096,))]
    check(tool, [Job(inputs, code, values[i : i + 16], sm=sm) for i in range(0, len(values), 16)])


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    """A random program whose every instruction is legal, on inputs that broadcast."""
    full = draw(st.lists(st.integers(1, 9), min_size=1, max_size=5))
    inputs = []
    for _ in range(draw(st.integers(1, 4))):
        shape = tuple(d if draw(st.booleans()) else 1 for d in full)[draw(st.integers(0, len(full))) :]
        inputs.append((draw(st.sampled_from(ALL)), shape))
    code = [f"load.{dtype} {i}" for i, (dtype, _) in enumerate(inputs)]
    types = [dtype for dtype, _ in inputs]

    def add(text: str, dtype: str) -> None:
        code.append(text)
        types.append(dtype)

    for _ in range(draw(st.integers(1, 30))):
        a = draw(st.integers(0, len(types) - 1))
        dtype = types[a]
        alike = [i for i, t in enumerate(types) if t == dtype]
        b = draw(st.sampled_from(alike))
        kind = draw(st.sampled_from(["cast", "unary", "binary", "compare", "where", "const"]))
        table = {"unary": UNARY, "binary": BINARY, "compare": COMPARE}.get(kind, {})
        legal = [op for op, dtypes in table.items() if dtype in dtypes]
        conditions = [i for i, t in enumerate(types) if t == "bool"]
        if kind == "cast":
            target = draw(st.sampled_from(ALL))
            add(f"cast.{target} {a}", target)
        elif kind == "const":
            add(f"const.{dtype} 0x{draw(st.integers(0, 1 if dtype == 'bool' else 255)):x}", dtype)
        elif kind == "where" and conditions:
            add(f"where.{dtype} {draw(st.sampled_from(conditions))} {a} {b}", dtype)
        elif legal:
            op = draw(st.sampled_from(legal))
            operands = f"{a}" if kind == "unary" else f"{a} {b}"
            add(f"{op}.{'bool' if kind == 'compare' else dtype} {operands}", "bool" if kind == "compare" else dtype)
    outputs = draw(st.lists(st.integers(0, len(code) - 1), min_size=1, max_size=4))
    return Job(inputs, code, outputs, aligned=draw(st.booleans()), sms=draw(st.sampled_from([1, 132])))


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(jobs(), st.sampled_from([80, 90]))
def test_random_programs_compile(tool: Tool, job: Job, sm: int) -> None:
    job.sm = sm
    check(tool, [job])


def test_the_longest_program_of_the_slowest_instruction_compiles_in_seconds(tool: Tool) -> None:
    # Inlined a thousand times, a sine takes minutes.
    code = ["load.f64 0", *(f"sin.f64 {i}" for i in range(1023))]
    start = time.monotonic()
    check(tool, [Job([("f64", (2**20,))], code, [1023], sm=90)])
    assert time.monotonic() - start < 20  # about 1 s on an idle core


def test_wide_indices_compile(tool: Tool) -> None:
    inputs = [("u8", (2**16, 2**15 + 1)), ("u8", (2**15 + 1,)), ("u8", (2**16, 1))]
    code = ["load.u8 0", "load.u8 1", "load.u8 2", "add.u8 0 1", "add.u8 3 2"]
    (line,) = tool.run([Job(inputs, code, [4], sm=90)])
    assert line.startswith("ok ") and " wide=1 " in line and " image=" in line


def test_unknown_architecture_is_refused_and_newer_ones_get_ptx(tool: Tool) -> None:
    old, new = tool.run([Job([("f32", (4,))], ["load.f32 0"], [0], sm=sm) for sm in (50, 990)])
    assert old.startswith("error NVRTC ") and "does not support this device's architecture, sm_50" in old
    assert new.startswith("ok ")


def test_missing_nvrtc_names_the_package(compile_cpp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.csrc.pointwise_tool.nvrtc_directory", lambda: None)
    (line,) = Tool(compile_cpp(SOURCES)).run([Job([("f32", (4,))], ["load.f32 0"], [0], sm=90)])
    if line.startswith("ok "):
        pytest.skip("the system has an NVRTC of its own")
    assert "pip install nvidia-cuda-nvrtc" in line
