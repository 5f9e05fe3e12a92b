"""cuvil::MatMulInt4: a matrix product with a weight of 4 or 8 bits, scaled in groups, with what follows it.

The body is DequantizeLinear over the weight [K, N] along K, then MatMul: the one form that ONNX Runtime's CPU provider
fuses to MatMulNBits (groups of 16, 32, 64, 128 and 256, and whole columns; float32 and float16; a following bias, too).
It keeps the weight as it is laid out in ordinary models, so that nothing has to be transposed. Groups of other sizes
stay two nodes there and are right, but slow.

K need not be divisible by the group: the last group is shorter, as DequantizeLinear defines it (tried on ONNX Runtime
1.31: ceil(K / group) scales are accepted and fused, and the padding of MatMulNBits has no influence).

Scales must be initializers: MatMulNBits at accuracy level 4 gives zeros for computed ones (ONNX Runtime 1.31, 1.32).

Float zero points, which DequantizeLinear cannot hold, are `offsets`: a group's weights are code * scale + offset, and
the product gains (sum of A over the group) * offset, a thin product beside the fused one. GGUF's Q4_1 is that without
any conversion, since m * sum(a) + d * sum(q * a) needs no rounded zero point m / d.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir

from custom_ops import activations
from custom_ops.body import Body
from custom_ops.shapes import Dim, shape
from custom_ops.spec import Array, Attribute, AttrValue, Call, Example, Inferred, Input, OpSpec, Output, normal, rng

A, B, SCALES, ZERO_POINTS, OFFSETS, BIAS, Z = range(7)
"""Positions of the inputs."""

CODES = (ir.DataType.INT4, ir.DataType.UINT4, ir.DataType.INT8, ir.DataType.UINT8)
MIN_OPSET = 21
"""The first opset with 4-bit types and DequantizeLinear over groups."""


def _body(body: Body, call: Call, inputs: Sequence[ir.Value | None]) -> Sequence[ir.Value]:
    a, b, scales, zero_points, offsets, bias, z = inputs
    assert a is not None and b is not None and scales is not None
    # ORT's CPU provider has no bfloat16 product. With offsets both products are larger than their sum, which float16
    # would not survive. Otherwise float16 runs on the devices where the product is native.
    wide = body.dtype == ir.DataType.BFLOAT16 or (offsets is not None and body.half)
    dtype = ir.DataType.FLOAT if wide else body.dtype

    def up(x: ir.Value) -> ir.Value:
        return body.cast(x, dtype, body.dtype)

    a = up(a)
    rank = len(call.shape(B) or ())
    if call.attrs["block_size"]:
        attrs = {"axis": rank - 2, "block_size": call.attrs["block_size"]}
        weight = body.op("DequantizeLinear", b, up(scales), zero_points, **attrs)
    else:
        weight = body.op("DequantizeLinear", b, up(scales), zero_points, axis=rank - 1)
    y = body.op("MatMul", a, weight)
    if offsets is not None:
        y = body.op("Add", y, _offset_product(body, call, a, up(offsets)))
    for term in (bias, z):
        if term is not None:
            y = body.op("Add", y, up(term))
    y = body.activation(call.attrs["activation"], call.attrs["activation_params"], y, dtype)
    return [body.cast(y, body.dtype, dtype)]


def _offset_product(body: Body, call: Call, a: ir.Value, offsets: ir.Value) -> ir.Value:
    """A's sums over the groups, times the offsets."""
    group = call.attrs["block_size"]
    if not group:
        total = body.op("ReduceSum", a, body.constant([-1], ir.DataType.INT64), keepdims=1)
        return body.op("Mul", total, offsets)
    rows = _rows(call)
    groups = -(-rows // group)
    if groups * group != rows:
        pads = body.constant([0, groups * group - rows], ir.DataType.INT64)
        a = body.op("Pad", a, pads, None, body.constant([-1], ir.DataType.INT64))
    # A of any rank: the dimensions before the last as they are, then [groups, group].
    lead = body.op("Shape", a, end=-1)
    split = body.op("Concat", lead, body.constant([groups, group], ir.DataType.INT64), axis=0)
    sums = body.op("ReduceSum", body.op("Reshape", a, split), body.constant([-1], ir.DataType.INT64), keepdims=0)
    return body.op("MatMul", sums, offsets)


def _rows(call: Call) -> int:
    b = call.shape(B)
    assert b is not None and isinstance(b[-2], int)
    return b[-2]


def _check(call: Call) -> None:
    activations.check(call)
    if call.opset < MIN_OPSET:
        raise call.fail(f"4-bit weights need opset {MIN_OPSET}, the model has {call.opset}")
    b = call.shape(B)
    if b is None or len(b) not in (2, 3) or not b.is_static():
        raise call.fail(f"input B must have a known shape [K, N] or [E, K, N], got {b}")
    codes = call.inputs[B]
    assert codes is not None
    if codes.dtype not in CODES:
        allowed = ", ".join(str(c) for c in CODES)
        raise call.fail(f"input B must be one of {allowed}, got {codes.dtype}")
    group = call.attrs["block_size"]
    if group < 0:
        raise call.fail(f"block_size must be positive, or 0 for whole columns, got {group}")
    rows, columns = b[-2:]
    assert isinstance(rows, int)
    expected = [*b[:-2], -(-rows // group), columns] if group else [columns]
    if not group and len(b) == 3:
        raise call.fail("a weight of rank 3 needs groups (block_size > 0)")
    for index, name in ((SCALES, "scales"), (ZERO_POINTS, "zero_points"), (OFFSETS, "offsets")):
        if not call.has(index):
            continue
        value = call.inputs[index]
        assert value is not None
        if value.shape is None or list(value.shape) != expected:
            raise call.fail(f"input {name} must have the shape {expected}, got {value.shape}")
        dtype = codes.dtype if index == ZERO_POINTS else call.dtype
        if value.dtype != dtype:
            raise call.fail(f"input {name} must be {dtype}, got {value.dtype}")
    if call.has(OFFSETS) and len(b) == 3:
        raise call.fail("a weight of rank 3 has no offsets")


def _infer(call: Call) -> Sequence[Inferred]:
    a, b = call.shape(A), call.shape(B)
    if a is None or b is None or len(a) < 2 or len(b) != 2:
        return [(call.dtype, None)]
    columns: Dim = b[-1]
    return [(call.dtype, shape([*a[:-1], columns]))]


def dequantize(codes: Array, scales: Array, zero_points: Array | None, offsets: Array | None, block_size: int) -> Array:
    """The weight [..., K, N] in the precision of `scales`: (codes - zero_points) * scales + offsets.

    Args:
        codes: [..., K, N], as numbers.
        scales: [..., ceil(K / block_size), N], or [N] for block_size 0; zero points and offsets likewise.
    """
    rows = codes.shape[-2]

    def spread(x: Array) -> Array:
        return np.repeat(x, block_size, axis=-2)[..., :rows, :] if block_size else x

    numbers = codes.astype(scales.dtype)
    if zero_points is not None:
        numbers = numbers - spread(zero_points.astype(scales.dtype))
    weight = numbers * spread(scales)
    return weight if offsets is None else weight + spread(offsets.astype(scales.dtype))


def _reference(inputs: Sequence[Array | None], attrs: Mapping[str, Any]) -> Sequence[Array]:
    a, b, scales, zero_points, offsets, bias, z = (*inputs, *[None] * 7)[:7]
    assert a is not None and b is not None and scales is not None
    y = a @ dequantize(b, scales, zero_points, offsets, attrs["block_size"])
    y = y + (0 if bias is None else bias) + (0 if z is None else z)
    return [activations.reference(attrs["activation"], attrs["activation_params"], y)]


_DTYPES = {"i4": ml_dtypes.int4, "u4": ml_dtypes.uint4, "i8": np.int8, "u8": np.uint8}
_LOW = {"i4": -8, "u4": 0, "i8": -128, "u8": 0}


def _weight(
    name: str,
    rows: int,
    columns: int,
    group: int,
    kind: str,
    *,
    zero: bool = False,
    offset: bool = False,
    lead: int = 0,
) -> tuple[Array, Array, Array | None, Array | None]:
    """Random codes, scales such that weights are of order 0.3, zero points, offsets."""
    generator = rng(name)
    low, span = _LOW[kind], 16 if kind[1] == "4" else 256
    outer = (lead,) if lead else ()
    shape_of_scales = (*outer, -(-rows // group), columns) if group else (columns,)
    codes = generator.integers(low, low + span, (*outer, rows, columns)).astype(_DTYPES[kind])
    scales = generator.uniform(0.5, 1.5, shape_of_scales).astype(np.float32) / span
    middle = low + span // 2
    zeros = generator.integers(middle - 2, middle + 3, shape_of_scales).astype(_DTYPES[kind]) if zero else None
    offsets = (-scales * (middle + generator.uniform(-1, 1, shape_of_scales))).astype(np.float32) if offset else None
    return codes, scales, zeros, offsets


def _examples() -> Iterable[Example]:
    def example(name: str, a: Array, group: int, columns: int, kind: str, **options: Any) -> Example:
        terms = options.pop("terms", (None, None))
        attrs: dict[str, AttrValue] = {"block_size": group, **options.pop("attrs", {})}
        weight = _weight(name, a.shape[-1], columns, group, kind, **options)
        return Example(name, (a, *weight, *terms), attrs, opset=MIN_OPSET, constant=(B, SCALES, ZERO_POINTS, OFFSETS))

    a = normal("a4", 3, 5, 64, scale=0.5)
    bias, z = normal("bias4", 40), normal("z4", 3, 5, 40)
    yield example("symmetric", a, 32, 40, "i4")
    yield example("zero_points", a, 32, 40, "u4", zero=True)
    yield example("signed_zero_points", a, 16, 40, "i4", zero=True)
    yield example("offsets", a, 32, 40, "u4", offset=True)
    yield example("bias_residual", a, 32, 40, "u4", zero=True, terms=(bias, z))
    yield example("residual_only", a, 32, 40, "i4", terms=(None, z), attrs={"activation": "Relu"})
    yield example("swish", a, 32, 40, "i4", terms=(bias, None), attrs={"activation": "Swish"})
    clip: dict[str, AttrValue] = {"activation": "Clip", "activation_params": [-0.5, 0.75]}
    yield example("clip", a, 32, 40, "u4", zero=True, attrs=clip)
    yield example("whole_columns", a, 0, 40, "i4")
    yield example("whole_columns_offsets", a, 0, 40, "u4", offset=True)
    for group in (16, 64, 128, 256):
        yield example(f"group_{group}", normal(f"g{group}", 4, 2 * group, scale=0.3), group, 24, "u4", zero=True)
    yield example("odd", normal("odd4", 7, 45), 32, 13, "u4", zero=True)
    yield example("odd_offsets", normal("odd4o", 2, 3, 45), 32, 13, "u4", offset=True)
    yield example("short", normal("short4", 2, 5), 32, 3, "i4")
    yield example("one_row", normal("row4", 1, 256, scale=0.3), 128, 96, "u4", zero=True)
    yield example("eight_bits", a, 32, 40, "u8", zero=True)
    yield example("eight_bits_symmetric", a, 32, 40, "i8", terms=(bias, None))
    yield example("experts", normal("experts", 3, 4, 64, scale=0.5), 32, 24, "i4", lead=3)


SPEC = OpSpec(
    name="MatMulInt4",
    doc="Y = activation(A @ W + bias + Z) with W = (B - zero_points) * scales + offsets, where each scale, zero point "
    "and offset belongs to `block_size` consecutive rows of B in one column, the last group possibly fewer. B has 4 "
    "bits (the name), or 8. Sums are float32 for 16-bit tensors and rounded once. B, scales, zero_points and offsets "
    "are initializers. A weight of rank 3 is a product for each of E, as in MatMul.",
    inputs=(
        Input("A", "[..., M, K]", "left operand"),
        Input("B", "[K, N] or [E, K, N]", "codes", dtypes="int4, uint4, int8, uint8"),
        Input("scales", "[ceil(K / block_size), N], [E, ceil(K / block_size), N]; [N] for block_size 0", "scales"),
        Input("zero_points", "the shape of scales", "codes that mean 0; 0 when absent", dtypes="B's", optional=True),
        Input("offsets", "the shape of scales", "added to the weights; not for rank 3", optional=True),
        Input("bias", "[N], or broadcasting to it", "added to each row", optional=True),
        Input("Z", "the shape of Y", "residual", optional=True),
    ),
    outputs=(Output("Y", "[..., M, N]", "result"),),
    attributes=(
        Attribute("block_size", ir.AttributeType.INT, "rows that share a scale; 0: all of them"),
        Attribute(
            "activation", ir.AttributeType.STRING, activations.DOC, default="", allowed=tuple(activations.PARAMS)
        ),
        Attribute("activation_params", ir.AttributeType.FLOATS, "parameters of the activation", default=()),
    ),
    body=_body,
    infer=_infer,
    reference=_reference,
    examples=_examples,
    check=_check,
)
