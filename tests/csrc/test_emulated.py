"""What generated kernels compute: shapes, tails and broadcasts, and the semantics of instructions, run on the CPU."""

from __future__ import annotations

import math
import shutil

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.csrc.emulator import DTYPES, Emulator
from tests.csrc.pointwise_tool import SOURCES, Job, Tool

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ compiles the emulated kernels")

FLOATS = ["f32", "f16", "bf16", "f64"]
INTEGERS = ["i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64"]


@pytest.fixture(scope="module")
def emulator(compile_cpp, tmp_path_factory) -> Emulator:
    return Emulator(Tool(compile_cpp(SOURCES)), tmp_path_factory.mktemp("emulated"))


def bits(value: float, dtype: str) -> str:
    return "0x" + np.array([value]).astype(DTYPES[dtype]).tobytes()[::-1].hex()


def same(found: np.ndarray, want: np.ndarray) -> None:
    assert found.dtype == want.dtype and found.shape == want.shape
    np.testing.assert_array_equal(found.astype(np.float64), want.astype(np.float64))


# --- Indexing: y = a + b of integers is exact, so any wrong element shows.


@st.composite
def broadcast_shapes(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    full = draw(st.lists(st.sampled_from([1, 2, 3, 4, 5, 8, 13, 16]), max_size=6))
    while math.prod(full) > 20_000:
        full.pop()

    def operand() -> tuple[int, ...]:
        kept = [d if draw(st.booleans()) else 1 for d in full]
        return tuple(kept[draw(st.integers(0, len(full))) :])

    return operand(), operand()


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(broadcast_shapes(), st.booleans(), st.sampled_from([1, 132]))
def test_broadcast_of_any_shapes(emulator: Emulator, shapes, aligned: bool, sms: int) -> None:
    a, b = (
        np.arange(1, math.prod(s) + 1, dtype=np.int32).reshape(s) * k for s, k in zip(shapes, (1, 1000), strict=True)
    )
    job = Job([("i32", a.shape), ("i32", b.shape)], ["load.i32 0", "load.i32 1", "add.i32 0 1"], [2], aligned, sms=sms)
    (found,) = emulator.run(job, [a, b], ["i32"])
    same(found, a + b)


@pytest.mark.parametrize("count", [1, 3, 4, 5, 255, 1023, 1024, 1025, 4096, 70_001])
@pytest.mark.parametrize("aligned", [True, False])
def test_odd_sizes_of_mixed_widths(emulator: Emulator, count: int, aligned: bool) -> None:
    half, single = np.arange(count) % 1000, np.arange(count)
    code = ["load.f16 0", "cast.f32 0", "load.f32 1", "add.f32 1 2", "load.u8 2", "cast.f32 4", "mul.f32 3 5"]
    inputs = [half.astype(np.float16), single.astype(np.float32), (single % 3).astype(np.uint8)]
    job = Job([(t, (count,)) for t in ("f16", "f32", "u8")], code, [6, 1], aligned, sms=1)
    product, cast = emulator.run(job, inputs, ["f32", "f32"])
    same(product, ((half + single) * (single % 3)).astype(np.float32))
    same(cast, half.astype(np.float32))


def test_empty(emulator: Emulator) -> None:
    job = Job([("f32", (0, 3)), ("f32", (3,))], ["load.f32 0", "load.f32 1", "add.f32 0 1"], [2])
    assert emulator.run(job, [np.empty((0, 3), np.float32), np.ones(3, np.float32)], ["f32"])[0].shape == (0, 3)


# --- Rounding: each instruction rounds to its dtype, and nothing is contracted.


@pytest.mark.parametrize("dtype", FLOATS)
def test_every_instruction_rounds(emulator: Emulator, dtype: str) -> None:
    rng = np.random.default_rng(0)
    x, y, z = (rng.standard_normal(1000).astype(DTYPES[dtype]) for _ in range(3))
    code = [f"load.{dtype} {i}" for i in range(3)]
    code += [f"mul.{dtype} 0 1", f"add.{dtype} 3 2", f"div.{dtype} 4 1", f"sub.{dtype} 5 0"]
    (found,) = emulator.run(Job([(dtype, (1000,))] * 3, code, [6]), [x, y, z], [dtype])
    same(found, ((x * y + z) / y - x).astype(DTYPES[dtype]))


@pytest.mark.parametrize("dtype", FLOATS)
def test_constants_keep_their_bits(emulator: Emulator, dtype: str) -> None:
    values = [0.0, -0.0, 1.0, -2.5, 1e-7, 6e-8, 65504.0, math.inf, -math.inf, math.nan]
    code = [f"load.{dtype} 0", *(f"const.{dtype} {bits(v, dtype)}" for v in values)]
    outputs = emulator.run(Job([(dtype, (2,))], code, range(1, 11)), [np.zeros(2, DTYPES[dtype])], [dtype] * 10)
    for found, value in zip(outputs, values, strict=True):
        want = np.full(2, value).astype(DTYPES[dtype])
        same(found, want)
        np.testing.assert_array_equal(np.signbit(found), np.signbit(want))


# --- Semantics against numpy.

SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.7, -3.7, 100.0, -100.0, math.inf, -math.inf, math.nan]


def pairs(values) -> tuple[np.ndarray, np.ndarray]:
    grid = np.array([(a, b) for a in values for b in values])
    return grid[:, 0], grid[:, 1]


def run_ops(emulator: Emulator, dtype: str, ops: dict[str, str], *inputs: np.ndarray) -> dict[str, np.ndarray]:
    """`ops`: name of the op -> result dtype; all applied to the inputs by one kernel."""
    loads = [f"load.{dtype} {i}" for i in range(len(inputs))]
    operands = " ".join(str(i) for i in range(len(inputs)))
    found = {}
    for start in range(0, len(ops), 16):
        part = list(ops.items())[start : start + 16]
        code = loads + [f"{op}.{result} {operands}" for op, result in part]
        outputs = [len(loads) + i for i in range(len(part))]
        job = Job([(dtype, i.shape) for i in inputs], code, outputs)
        results = emulator.run(job, inputs, [result for _, result in part])
        found |= dict(zip((op for op, _ in part), results, strict=True))
    return found


@pytest.mark.parametrize("dtype", FLOATS)
def test_exact_unary(emulator: Emulator, dtype: str) -> None:
    x = np.array(SPECIAL).astype(DTYPES[dtype])
    want = {
        "neg": -x,
        "abs": np.abs(x),
        "floor": np.floor(x),
        "ceil": np.ceil(x),
        "round": np.rint(x),
        "sign": np.where(np.isnan(x), x.dtype.type(0), np.sign(x)),
        "relu": np.maximum(x, 0),
        "identity": x,
    }
    found = run_ops(emulator, dtype, dict.fromkeys(want, dtype), x)
    for op in want:
        same(found[op], want[op].astype(DTYPES[dtype]))
    tests = run_ops(emulator, dtype, {"isnan": "bool", "isinf": "bool"}, x)
    same(tests["isnan"], np.isnan(x))
    same(tests["isinf"], np.isinf(x))


@pytest.mark.parametrize("dtype", FLOATS)
def test_exact_binary(emulator: Emulator, dtype: str) -> None:
    a, b = (v.astype(DTYPES[dtype]) for v in pairs(SPECIAL))
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    with np.errstate(all="ignore"):
        want = {
            "min": np.minimum(wide_a, wide_b),
            "max": np.maximum(wide_a, wide_b),
            "fmod": np.fmod(wide_a, wide_b),
            "prelu": np.where(a < 0, a * b, a).astype(np.float64),
        }
    found = run_ops(emulator, dtype, dict.fromkeys(want, dtype), a, b)
    for op in want:
        same(found[op], want[op].astype(DTYPES[dtype]))
    with np.errstate(invalid="ignore"):
        compare = {"equal": a == b, "less": a < b, "less_equal": a <= b, "greater": a > b, "greater_equal": a >= b}
    found = run_ops(emulator, dtype, dict.fromkeys(compare, "bool"), a, b)
    for op in compare:
        same(found[op], compare[op])


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers(emulator: Emulator, dtype: str) -> None:
    limits = np.iinfo(DTYPES[dtype])
    values = [
        limits.min,
        limits.min + 1,
        limits.max,
        limits.max - 1,
        0,
        1,
        2,
        3,
        7,
        10,
        *([-1, -2, -7] if limits.min else []),
    ]
    grid = [(a, b) for a in values for b in values]
    a, b = (np.array([p[i] for p in grid], dtype=DTYPES[dtype]) for i in (0, 1))
    width = 8 * a.itemsize

    def wrap(number: int) -> int:
        number &= (1 << width) - 1
        return number - (1 << width) if limits.min and number >> (width - 1) else number

    def truncated(x: int, y: int) -> int:
        return 0 if y == 0 else (abs(x) // abs(y)) * (1 if (x < 0) == (y < 0) else -1)

    def power(x: int, y: int) -> int:
        if y < 0:
            return x if x == 1 else (x if y % 2 else 1) if x == -1 else 0
        return pow(x, y, 1 << width)

    formulas = {
        "add": lambda x, y: x + y,
        "sub": lambda x, y: x - y,
        "mul": lambda x, y: x * y,
        "div": truncated,
        "mod": lambda x, y: x % y if y else 0,
        "fmod": lambda x, y: x - truncated(x, y) * y if y else 0,
        "min": min,
        "max": max,
        "pow": power,
        "bitand": lambda x, y: x & y,
        "bitor": lambda x, y: x | y,
        "bitxor": lambda x, y: x ^ y,
        "shl": lambda x, y: x << y if 0 <= y < width else 0,
        "shr": lambda x, y: x >> y if 0 <= y < width else (-1 if x < 0 else 0),
    }
    found = run_ops(emulator, dtype, dict.fromkeys(formulas, dtype), a, b)
    for op, formula in formulas.items():
        want = np.array([wrap(formula(x, y)) for x, y in grid], dtype=DTYPES[dtype])
        np.testing.assert_array_equal(found[op], want, err_msg=op)
    signed = {"neg": lambda x: -x, "relu": lambda x: max(x, 0)} if limits.min else {}
    unary = signed | {"abs": abs, "sign": lambda x: (x > 0) - (x < 0), "bitnot": lambda x: ~x}
    found = run_ops(emulator, dtype, dict.fromkeys(unary, dtype), a)
    for op, formula in unary.items():
        np.testing.assert_array_equal(
            found[op], np.array([wrap(formula(int(x))) for x in a], DTYPES[dtype]), err_msg=op
        )


def test_booleans(emulator: Emulator) -> None:
    a, b = np.array([False, False, True, True]), np.array([False, True, False, True])
    found = run_ops(emulator, "bool", dict.fromkeys(["and", "or", "xor", "equal"], "bool"), a, b)
    for op, want in {"and": a & b, "or": a | b, "xor": a ^ b, "equal": a == b}.items():
        same(found[op], want)
    same(run_ops(emulator, "bool", {"not": "bool"}, a)["not"], ~a)


@pytest.mark.parametrize("source", [*FLOATS, *INTEGERS, "bool"])
def test_casts(emulator: Emulator, source: str) -> None:
    values = [0, 1, -1, 2.5, -2.5, 3.99, 127, 128, 255, 300, 40_000, 70_000, -70_000, 1e9, -1e9, 5e9, 1e30, -1e30]
    values += [math.inf, -math.inf, math.nan]
    if source == "bool":
        x = np.array([True, False])
    elif source in INTEGERS:
        limits = np.iinfo(DTYPES[source])
        x = np.array([int(v) for v in values if math.isfinite(v) and limits.min <= v <= limits.max], DTYPES[source])
    else:
        with np.errstate(over="ignore"):
            x = np.array(values).astype(DTYPES[source])
    targets = [*FLOATS, *INTEGERS, "bool"]
    code = [f"load.{source} 0", *(f"cast.{t} 0" for t in targets)]
    results = emulator.run(Job([(source, x.shape)], code, range(1, 1 + len(targets))), [x], targets)
    for target, found in zip(targets, results, strict=True):
        want = np.array([cast(v, target) for v in x.tolist()], DTYPES[target])
        if target == "bf16":  # numpy's comparison knows no NaN of bfloat16
            found, want = found.astype(np.float32), want.astype(np.float32)
        np.testing.assert_array_equal(found, want, err_msg=target)


def cast(value: float, target: str):
    """As prelude_arithmetic.cc and ONNX say."""
    if target == "bool":
        return value != 0
    if target in FLOATS:
        with np.errstate(over="ignore"):
            narrow = np.float64(value) if target == "f64" else np.float32(value).astype(DTYPES[target])
        return narrow
    if isinstance(value, float) and math.isnan(value):
        return 0
    unsigned64 = target == "u64" and value >= 0
    width = 8 * np.dtype(DTYPES[target]).itemsize
    through = 32 if isinstance(value, float) and (width < 32 or target == "i32") else 64
    low, high = (0, 2**64 - 1) if unsigned64 else (-(2 ** (through - 1)), 2 ** (through - 1) - 1)
    whole = low if value <= low else high if value >= high else int(value)
    whole &= (1 << width) - 1
    return whole - (1 << width) if target.startswith("i") and whole >> (width - 1) else whole


@pytest.mark.parametrize("dtype", FLOATS)
def test_functions(emulator: Emulator, dtype: str) -> None:
    x = np.concatenate([np.linspace(-6, 6, 241), [-80, -20, 20, 80]]).astype(DTYPES[dtype])
    v = x.astype(np.float64)
    erf = np.vectorize(math.erf)
    softplus = np.logaddexp(0, v)
    with np.errstate(all="ignore"):
        want = {
            "exp": np.exp(v),
            "log": np.log(v),
            "sqrt": np.sqrt(v),
            "reciprocal": 1 / v,
            "erf": erf(v),
            "tanh": np.tanh(v),
            "sigmoid": 1 / (1 + np.exp(-v)),
            "sin": np.sin(v),
            "cos": np.cos(v),
            "tan": np.tan(v),
            "asin": np.arcsin(v),
            "acos": np.arccos(v),
            "atan": np.arctan(v),
            "sinh": np.sinh(v),
            "cosh": np.cosh(v),
            "asinh": np.arcsinh(v),
            "acosh": np.arccosh(v),
            "atanh": np.arctanh(v),
            "softplus": softplus,
            "softsign": v / (1 + np.abs(v)),
            "hardswish": v * np.clip(v / 6 + 0.5, 0, 1),
            "gelu": 0.5 * v * (1 + erf(v / math.sqrt(2))),
            "gelu_tanh": 0.5 * v * (1 + np.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v**3))),
            "silu": v / (1 + np.exp(-v)),
            "mish": v * np.tanh(softplus),
        }
        found = run_ops(emulator, dtype, dict.fromkeys(want, dtype), x)
        # A few roundings of the working precision (1 + erf cancels for negative x: absolute error), then one of dtype.
        step = {"f32": 2**-24, "f16": 2**-11, "bf16": 2**-8, "f64": 2**-53}[dtype]
        for op in want:
            limit = float(np.finfo(np.float32).max) if dtype != "f64" else math.inf
            expected = want[op].astype(DTYPES[dtype] if dtype != "bf16" else np.float32).astype(np.float64)
            expected = np.where(np.abs(want[op]) > limit, want[op], expected)
            np.testing.assert_allclose(
                found[op].astype(np.float64), expected, rtol=16 * step, atol=16 * step, err_msg=op
            )


@pytest.mark.parametrize("dtype", FLOATS)
def test_parameters_clip_and_where(emulator: Emulator, dtype: str) -> None:
    x = np.array([*SPECIAL, -3, 3, 0.25]).astype(DTYPES[dtype])
    v = x.astype(np.float64)
    consts = [f"const.f32 {bits(c, 'f32')}" for c in (0.25, 0.5)] + [f"const.{dtype} {bits(c, dtype)}" for c in (-1, 2)]
    ops = ["leaky_relu {} 1", "elu {} 1", "selu {} 1 2", "celu {} 1", "hard_sigmoid {} 1 2", "thresholded_relu {} 1"]
    ops += ["quick_gelu {} 1", "clip {} 3 4", "clip {} 4 3"]
    code = [f"load.{dtype} 0", *consts]
    code += [f"{op.split()[0]}.{dtype} {op.split(' ', 1)[1].format(0)}" for op in ops]
    code += ["greater.bool 0 4", f"where.{dtype} {len(code)} 4 0"]
    outputs = [*range(5, 5 + len(ops)), len(code) - 1]
    found = emulator.run(Job([(dtype, x.shape)], code, outputs), [x], [dtype] * len(outputs))
    with np.errstate(all="ignore"):
        want = [
            np.where(v < 0, 0.25 * v, v),
            np.where(v < 0, 0.25 * np.expm1(v), v),
            0.5 * np.where(v > 0, v, 0.25 * np.expm1(v)),
            np.where(v > 0, v, 0.25 * np.expm1(v / 0.25)),
            np.clip(0.25 * v + 0.5, 0, 1),
            np.where(v > 0.25, v, 0),
            v / (1 + np.exp(-0.25 * v)),
            np.clip(v, -1, 2),
            np.where(np.isnan(v), v, -1),
            np.where(v > 2, 2, v),
        ]
        want[6][v == -math.inf] = math.nan  # -inf * 0
        step = {"f32": 2**-24, "f16": 2**-11, "bf16": 2**-8, "f64": 2**-53}[dtype]
        for result, expected in zip(found, want, strict=True):
            np.testing.assert_allclose(result.astype(np.float64), expected, rtol=8 * step, atol=8 * step)


def test_power_of_two_and_three_multiplies(emulator: Emulator) -> None:
    x = np.random.default_rng(1).standard_normal(999).astype(np.float32)
    code = ["load.f32 0", f"const.f32 {bits(2, 'f32')}", f"const.f32 {bits(3, 'f32')}", "pow.f32 0 1", "pow.f32 0 2"]
    square, cube = emulator.run(Job([("f32", (999,))], code, [3, 4]), [x], ["f32", "f32"])
    same(square, x * x)
    same(cube, x * x * x)
