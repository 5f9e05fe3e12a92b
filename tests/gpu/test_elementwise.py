"""Each standard elementwise op as a single node, against ONNX Runtime's CPU provider."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from cuvil_onnx.passes.limits import newest_opset_and_ir
from tests.gpu.single_op import MakeSession, check, sample

Array = np.ndarray
INTEGERS = [np.int32, np.int64, np.int8, np.uint8, np.int16, np.uint16, np.uint32, np.uint64]

# Both sides approximate; ONNX Runtime's own polynomials for exp, tanh and erf are good to about 1e-6 in float32.
# float16: each side rounds once from float32, and may do so to neighbouring values.
TOLERANCE = {
    np.float32: {"rtol": 4e-6, "atol": 2e-6},
    np.float16: {"rtol": 2e-3, "atol": 2e-3},
    np.float64: {"rtol": 1e-6, "atol": 1e-6},
}
EXACT = {"Abs", "Neg", "Floor", "Ceil", "Round", "Sign", "Relu"}

opset_28 = pytest.mark.skipif(newest_opset_and_ir()[0] < 28, reason="this ONNX Runtime knows no opset 28")

SHAPES = [(), (1,), (7,), (0, 3), (3, 1025), (2, 3, 4, 5), (2, 1, 2, 1, 3, 1, 2, 2)]

anything, positive, unit, above_one = (
    lambda x: x * 3,
    lambda x: abs(x) + x.dtype.type(0.01),
    lambda x: np.tanh(x).astype(x.dtype),
    lambda x: abs(x) + x.dtype.type(1),
)
UNARY: dict[str, tuple[Any, dict[str, Any]]] = {
    **dict.fromkeys([*EXACT, "Exp", "Erf", "Tanh", "Sigmoid", "Sin", "Cos", "Atan"], (anything, {})),
    **dict.fromkeys(["Sinh", "Cosh", "Asinh", "Softplus", "Softsign", "HardSwish", "Mish"], (anything, {})),
    **dict.fromkeys(["Asin", "Acos", "Tan"], (unit, {})),
    "Atanh": (lambda x: unit(x) * x.dtype.type(0.9), {}),
    **dict.fromkeys(["Sqrt", "Reciprocal", "Log"], (positive, {})),
    "Acosh": (above_one, {}),
    "LeakyRelu": (anything, {"alpha": 0.2}),
    "Elu": (anything, {"alpha": 0.7}),
    "Celu": (anything, {"alpha": 0.7}),
    "Selu": (anything, {}),
    "ThresholdedRelu": (anything, {"alpha": 0.5}),
    "HardSigmoid": (anything, {"alpha": 0.3, "beta": 0.4}),
    "Shrink": (anything, {"lambd": 0.6, "bias": 0.25}),
}


@pytest.mark.parametrize("op", UNARY)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shape", [(3, 1025)])
def test_unary(ep_session: MakeSession, op: str, dtype: Any, shape: tuple[int, ...]) -> None:
    if op == "Celu" and dtype != np.float32:
        pytest.skip("ONNX defines Celu for float32 only before opset 28")
    domain, attrs = UNARY[op]
    x = domain(sample(shape, dtype)).astype(dtype)
    if op == "Round":  # ties
        x = (np.arange(x.size).reshape(shape) % 40 / 2 - 10).astype(dtype)
    check(ep_session, op, [x], attrs, opset=20, **({} if op in EXACT else TOLERANCE[dtype]))


@pytest.mark.parametrize("shape", SHAPES)
def test_shapes(ep_session: MakeSession, shape: tuple[int, ...]) -> None:
    check(ep_session, "Relu", [sample(shape)])
    check(ep_session, "Add", [sample(shape), sample(shape, seed=1)])
    check(ep_session, "Mul", [sample(shape), sample((1,), seed=1)])


@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_gelu(ep_session: MakeSession, approximate: str, dtype: Any) -> None:
    check(
        ep_session, "Gelu", [3 * sample((3, 1025), dtype)], {"approximate": approximate}, opset=20, **TOLERANCE[dtype]
    )


BROADCAST = [
    ((5, 7), (5, 7)),
    ((2, 8, 6, 6), (8, 1, 1)),
    ((2, 8, 7, 7), (8, 1, 1)),
    ((4, 1), (1, 9)),
    ((3, 4, 8), (8,)),
]
BROADCAST += [((2, 1, 3, 1, 8), (5, 1, 4, 8)), ((1,), (3, 5)), ((2, 3, 1, 5, 1, 7, 1, 2), (1, 3, 4, 1, 6, 1, 8, 2))]


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div", "PRelu"])
@pytest.mark.parametrize("shapes", BROADCAST, ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64])
def test_arithmetic(ep_session: MakeSession, op: str, shapes: Any, dtype: Any) -> None:
    a, b = sample(shapes[0], dtype), sample(shapes[1], dtype, 1)
    if op == "PRelu" and np.broadcast_shapes(a.shape, b.shape) != a.shape:
        pytest.skip("PRelu broadcasts the slope only")
    # One rounding on both sides. float16: ONNX Runtime computes in float32 and rounds to float16 too.
    check(ep_session, op, [a, b])


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul"])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_integer_arithmetic_wraps(ep_session: MakeSession, op: str, dtype: Any) -> None:
    limits = np.iinfo(dtype)
    rng = np.random.default_rng(0)
    a, b = (rng.integers(limits.min, limits.max, (71, 101), dtype=dtype, endpoint=True) for _ in range(2))
    formula = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply}[op]
    check(ep_session, op, [a, b], expected=[formula(a, b)])


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("fmod", [0, 1])
def test_integer_division(ep_session: MakeSession, dtype: Any, fmod: int) -> None:
    a, b = sample((71, 101), dtype), sample((71, 101), dtype, 1)
    safe = np.where(b == 0, 1, b).astype(dtype)
    zero = dtype(0)
    remainder = np.where(b == 0, zero, (np.fmod if fmod else np.mod)(a, safe))
    check(ep_session, "Mod", [a, b], {"fmod": fmod}, expected=[remainder.astype(dtype)])
    truncated = np.where(b == 0, zero, np.trunc(a / safe).astype(dtype))
    check(ep_session, "Div", [a, b], expected=[truncated.astype(dtype)])


def test_float_mod(ep_session: MakeSession) -> None:
    check(ep_session, "Mod", [5 * sample((71, 101)), sample((71, 101), seed=1)], {"fmod": 1})


@opset_28
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64])
def test_float_mod_of_the_floored_quotient(ep_session: MakeSession, dtype: Any) -> None:
    a, b = 5 * sample((71, 101), dtype), sample((71, 101), dtype, 1)
    special = np.array([math.nan, math.inf, -math.inf, 0.0, -0.0, 1.5, -2.5, 3], dtype)
    a[:8, :8], b[:8, :8] = special, special[:, None]
    with np.errstate(invalid="ignore"):
        r = np.fmod(a, b)  # exact, and what np.mod starts from too; that gives no signed zeros in float16
        expected = np.where(r == 0, np.copysign(dtype(0), b), np.where((r < 0) != (b < 0), r + b, r))
    (found,) = check(ep_session, "Mod", [a, b], {"fmod": 0}, opset=28, expected=[expected])
    zeros = found == 0
    np.testing.assert_array_equal(np.signbit(found[zeros]), np.signbit(expected[zeros]))


@pytest.mark.parametrize("op", ["Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64, np.int32, np.int64])
def test_comparisons(ep_session: MakeSession, op: str, dtype: Any) -> None:
    a, b = np.round(sample((71, 101), dtype)), np.round(sample((101,), dtype, 1))
    if a.dtype.kind == "f":
        a[0, :3] = [math.nan, math.inf, -math.inf]
    check(ep_session, op, [a, b])


@pytest.mark.parametrize("op", ["And", "Or", "Xor", "Equal"])
def test_logic(ep_session: MakeSession, op: str) -> None:
    check(ep_session, op, [sample((71, 101), np.bool_), sample((101,), np.bool_, 1)])


def test_not(ep_session: MakeSession) -> None:
    check(ep_session, "Not", [sample((71, 101), np.bool_)])


@pytest.mark.parametrize("op", ["BitwiseAnd", "BitwiseOr", "BitwiseXor"])
@pytest.mark.parametrize("dtype", [np.int32, np.uint8, np.int64])
def test_bitwise(ep_session: MakeSession, op: str, dtype: Any) -> None:
    a, b = sample((71, 101), dtype), sample((71, 101), dtype, 1)
    check(ep_session, op, [a, b], opset=18)
    check(ep_session, "BitwiseNot", [a], opset=18)


@pytest.mark.parametrize("direction", ["LEFT", "RIGHT"])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint32, np.uint64])
def test_bit_shift(ep_session: MakeSession, direction: str, dtype: Any) -> None:
    a, b = sample((71, 101), dtype), (sample((71, 101), dtype, 1) % 8).astype(dtype)
    check(ep_session, "BitShift", [a, b], {"direction": direction})


@opset_28
@pytest.mark.parametrize("direction", ["LEFT", "RIGHT"])
@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32, np.int64])
def test_bit_shift_of_signed_integers(ep_session: MakeSession, direction: str, dtype: Any) -> None:
    a, width = sample((71, 101), dtype), 8 * np.dtype(dtype).itemsize
    a[0, :4] = [np.iinfo(dtype).min, np.iinfo(dtype).max, -1, 1]
    # Also counts that shift every bit out: only the extension of the sign is left then.
    b = np.resize(np.arange(-2, width + 3), a.shape).astype(dtype)
    inside = (b >= 0) & (b < width)
    count = np.where(inside, b, 0).astype(dtype)
    if direction == "LEFT":
        expected = np.where(inside, np.left_shift(a, count), 0)
    else:
        expected = np.where(inside, np.right_shift(a, count), np.where(a < 0, -1, 0))
    check(ep_session, "BitShift", [a, b], {"direction": direction}, opset=28, expected=[expected.astype(dtype)])


@opset_28
@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_celu_of_other_floats(ep_session: MakeSession, dtype: Any) -> None:
    x = 3 * sample((71, 101), dtype)
    wide = x.astype(np.float64)
    alpha = float(np.float32(0.7))
    expected = np.where(wide > 0, wide, alpha * np.expm1(wide / alpha)).astype(dtype)
    check(ep_session, "Celu", [x], {"alpha": 0.7}, opset=28, expected=[expected], **TOLERANCE[dtype])


SPECIAL = np.array([math.nan, math.inf, -math.inf, 0.0, -0.0, 1.5, -2.5, 3e38], np.float32)


@pytest.mark.parametrize("op", ["Min", "Max"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_min_and_max_propagate_nan(ep_session: MakeSession, op: str, dtype: Any) -> None:
    with np.errstate(over="ignore"):
        special = SPECIAL.astype(dtype)
    a, b = np.repeat(special, 8).reshape(8, 8), np.tile(special, (8, 1))
    formula = np.minimum if op == "Min" else np.maximum
    check(ep_session, op, [a, b], expected=[formula(a, b)])


@pytest.mark.parametrize("op", ["Min", "Max", "Sum", "Mean"])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_variadic(ep_session: MakeSession, op: str, count: int) -> None:
    inputs = [sample((9, 33) if i % 2 == 0 else (33,), seed=i) for i in range(count)]
    # The order of a sum is not defined: a few units of the last place of its terms.
    loose = {"rtol": 0, "atol": 2e-6} if op in ("Sum", "Mean") else {}
    check(ep_session, op, inputs, **loose)


def test_special_values(ep_session: MakeSession) -> None:
    for op in ("Abs", "Neg", "Floor", "Ceil", "Round", "IsNaN", "IsInf"):
        check(ep_session, op, [SPECIAL], opset=20)
    check(ep_session, "Sign", [SPECIAL], expected=[np.nan_to_num(np.sign(SPECIAL))])
    check(ep_session, "Relu", [SPECIAL], expected=[np.where(SPECIAL < 0, 0, SPECIAL).astype(np.float32)])
    check(ep_session, "IsInf", [SPECIAL], {"detect_negative": 0})
    check(ep_session, "IsInf", [SPECIAL], {"detect_positive": 0})
    # Saturation, not NaN, far from 0.
    far = np.array([-1e4, -200, -90, 90, 200, 1e4], np.float32)
    for op in ("Sigmoid", "Tanh", "Softplus", "Mish", "HardSwish", "Erf"):
        check(ep_session, op, [far], opset=18, rtol=2e-6, atol=1e-30 if op != "Mish" else 1e-28)


@pytest.mark.parametrize("exponent", [2.0, 3.0, 0.5, -1.0, 1.7])
def test_pow_of_floats(ep_session: MakeSession, exponent: float) -> None:
    x = positive(sample((9, 33)))
    check(
        ep_session, "Pow", [x, np.array(exponent, np.float32)], **({} if exponent in (2, 3) else TOLERANCE[np.float32])
    )


@pytest.mark.parametrize(
    ("base", "exponent"),
    [
        (np.float32, np.int64),
        (np.float32, np.float64),
        (np.int32, np.int32),
        (np.int64, np.int32),
        (np.int32, np.float32),
    ],
)
def test_pow_of_mixed_types(ep_session: MakeSession, base: Any, exponent: Any) -> None:
    x = (np.arange(71 * 101).reshape(71, 101) % 9 + 1).astype(base)
    y = np.array([0, 1, 2, 3, 5], exponent).repeat(21)[:101]
    check(ep_session, "Pow", [x, y], rtol=2e-6)


@pytest.mark.parametrize("base", [np.int32, np.int64])
@pytest.mark.parametrize("exponent", [np.float32, np.float64])
def test_pow_of_integers_to_fractions(ep_session: MakeSession, base: Any, exponent: Any) -> None:
    # The result is cut to an integer: the root of a square must not come out as 2.9999999999999996.
    x, y = np.arange(1, 401, dtype=base)[:, None], np.array([0.5, 1, 1.5, 2.5, 3, 0, -1], exponent)
    check(ep_session, "Pow", [x, y])


FLOATS, ALL = [np.float32, np.float16, np.float64], [np.float32, np.float16, np.float64, np.bool_, *INTEGERS]


@pytest.mark.parametrize("source", ALL)
@pytest.mark.parametrize("target", ALL)
def test_cast(ep_session: MakeSession, source: Any, target: Any) -> None:
    x = sample((71, 101), source)
    if x.dtype.kind == "f":
        x = x * 20
    if np.dtype(target).kind == "u":
        x = np.abs(x) if x.dtype.kind in "fi" else x
    check(ep_session, "Cast", [x], {"to": helper.np_dtype_to_tensor_dtype(np.dtype(target))}, opset=19)


def test_cast_rounds_to_nearest_even_and_overflows(ep_session: MakeSession) -> None:
    x = np.array([1 + 2**-11, 1 + 3 * 2**-11, 65519, 65520, -1e9, 6e-8, 2e-8, math.nan, -0.0], np.float32)
    with np.errstate(over="ignore"):
        check(ep_session, "Cast", [x], {"to": TensorProto.FLOAT16}, expected=[x.astype(np.float16)])


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64])
def test_clip_before_opset_11(ep_session: MakeSession, dtype: Any) -> None:
    x = sample((71, 101), dtype)
    for attrs, low, high in (
        ({"min": -0.5, "max": 0.25}, -0.5, 0.25),
        ({"max": 0.5}, -math.inf, 0.5),
        ({}, -math.inf, math.inf),
    ):
        check(ep_session, "Clip", [x], attrs, opset=10, expected=[np.clip(x, dtype(low), dtype(high))])


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64, np.int32, np.int64, np.uint8])
def test_clip(ep_session: MakeSession, dtype: Any) -> None:
    x = sample((71, 101), dtype)
    low, high = np.array(1, dtype), np.array(3, dtype)
    check(ep_session, "Clip", [x, low, high], expected=[np.clip(x, low, high)])
    check(ep_session, "Clip", [x, low], expected=[np.maximum(x, low)])
    check(ep_session, "Clip", [x, None, high], expected=[np.minimum(x, high)])
    check(ep_session, "Clip", [x], expected=[x])
    check(ep_session, "Clip", [x, high, low], expected=[np.full_like(x, 1)])


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int64, np.uint8, np.bool_])
def test_where(ep_session: MakeSession, dtype: Any) -> None:
    condition = sample((71, 1), np.bool_)
    check(ep_session, "Where", [condition, sample((71, 101), dtype), sample((101,), dtype, 1)])


@pytest.mark.parametrize(
    ("op", "opset"), [("Add", 7), ("Relu", 7), ("Elu", 7), ("Sum", 7), ("Equal", 11), ("Where", 9), ("Mod", 10)]
)
def test_old_opsets(ep_session: MakeSession, op: str, opset: int) -> None:
    dtype = np.int32 if op in ("Equal", "Mod") else np.float32
    x, y = sample((71, 101), dtype), sample((71, 101), dtype, 1)
    inputs = {"Relu": [x], "Elu": [x], "Where": [x > 0, x, y], "Mod": [x, np.abs(y) + 1]}.get(op, [x, y])
    check(ep_session, op, [np.asarray(i) for i in inputs], opset=opset, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("op", ["Add", "Relu", "Sigmoid", "Cast"])
def test_bfloat16(ep_session: MakeSession, op: str) -> None:
    x, y = sample((9, 33)), sample((9, 33), seed=1)
    inputs = [x, y] if op == "Add" else [x]

    def rounded(v: Array) -> Array:
        bits = np.ascontiguousarray(v, np.float32).view(np.uint32)
        return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)

    a, b = rounded(x), rounded(y)
    want = {"Add": rounded(a + b), "Relu": np.maximum(a, 0), "Sigmoid": rounded(1 / (1 + np.exp(-a))), "Cast": a}[op]
    attrs = {"to": TensorProto.BFLOAT16} if op == "Cast" else {}
    # Sigmoid: the float32 result may round to the neighbouring bfloat16.
    check(ep_session, op, inputs, attrs, bfloat16=True, expected=[want], rtol=2**-7 if op == "Sigmoid" else 0)
