"""How each operator makes shapes from shapes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx_ir as ir

from cuvil_onnx.passes._dims import Dim, Dims
from cuvil_onnx.passes._sizes import MAX_VECTOR, Sizes
from cuvil_onnx.passes._vectors import elements, window_of

Rule = Callable[[ir.Node, Sizes], "Dims | None"]


def propagate(node: ir.Node, sizes: Sizes) -> list[Dims | None]:
    """The shapes of a node's outputs as far as they are known; also takes note of shape vectors."""
    domain = "" if node.domain in ("ai.onnx", "cuvil") else node.domain
    if domain == "" and len(node.outputs) == 1:
        made, output = elements(node, sizes), node.outputs[0]
        if made is not None and len(made) <= MAX_VECTOR and (len(made) == 1 or sizes.is_row(output)):
            sizes.vectors[output] = made
    if domain == "" and node.op_type == "Split":
        return _split(node, sizes)
    if node.domain == "cuvil" and node.op_type in ("LayerNorm", "Pointwise"):
        operands = [i for k, i in enumerate(node.inputs) if node.op_type == "Pointwise" or k in (0, 3, 4)]
        return [_broadcast(operands, sizes)] * len(node.outputs)
    rule = {"": _RULES, "com.microsoft": _MICROSOFT}.get(domain, {}).get(node.op_type)
    first = rule(node, sizes) if rule is not None and node.inputs else None
    return [first, *[None] * (len(node.outputs) - 1)]


def _broadcast(values: Sequence[ir.Value | None], sizes: Sizes) -> Dims | None:
    shapes = [sizes.of(v) for v in values if v is not None]
    known = [s for s in shapes if s is not None]
    return sizes.names.broadcast_all(known) if known and len(known) == len(shapes) else None


def _elementwise(node: ir.Node, sizes: Sizes) -> Dims | None:
    return _broadcast(node.inputs, sizes)


def _same(node: ir.Node, sizes: Sizes) -> Dims | None:
    return sizes.of(node.inputs[0])


def _matmul(node: ir.Node, sizes: Sizes) -> Dims | None:
    a, b = sizes.of(node.inputs[0]), sizes.of(node.inputs[1])
    if a is None or b is None or len(a) < 2 or len(b) < 2:
        return None
    columns = b[-2] if sizes.ctx.attr(node, "transB", 0) else b[-1]
    return (*sizes.names.broadcast_all([a[:-2], b[:-2]]), a[-2], columns) if len(a) + len(b) > 4 else (a[0], columns)


def _gemm(node: ir.Node, sizes: Sizes) -> Dims | None:
    a, b = sizes.of(node.inputs[0]), sizes.of(node.inputs[1])
    if a is None or b is None:
        return None
    return a[1 if sizes.ctx.attr(node, "transA", 0) else 0], b[0 if sizes.ctx.attr(node, "transB", 0) else 1]


def _transpose(node: ir.Node, sizes: Sizes) -> Dims | None:
    x = sizes.of(node.inputs[0])
    if x is None:
        return None
    return tuple(x[i] for i in sizes.ctx.attr(node, "perm", range(len(x) - 1, -1, -1)))


def _conv(node: ir.Node, sizes: Sizes) -> Dims | None:
    w = sizes.of(node.inputs[1])
    kernel = None if w is None else [d for d in w[2:] if isinstance(d, int)]
    if w is None or kernel is None or len(kernel) != len(w) - 2:
        return None
    return _sliding(node, sizes, kernel, w[0])


def _pool(node: ir.Node, sizes: Sizes) -> Dims | None:
    x = sizes.of(node.inputs[0])
    if x is None:
        return None
    last = sizes.ctx.attr(node, "layout", "NCHW") == "NHWC"
    channels = x[-1 if last else 1]
    if node.op_type.startswith("Global") or sizes.ctx.attr(node, "global", 0):
        ones: Dims = (1,) * (len(x) - 2)
        return (x[0], *ones, channels) if last else (x[0], channels, *ones)
    return _sliding(node, sizes, list(sizes.ctx.attr(node, "kernel_shape", ())), channels)


def _sliding(node: ir.Node, sizes: Sizes, kernel: Sequence[int], channels: Dim) -> Dims | None:
    x = sizes.of(node.inputs[0])
    n = len(kernel)
    if x is None or len(x) != n + 2 or sizes.ctx.attr(node, "auto_pad", "NOTSET") not in ("NOTSET", "VALID", ""):
        return None
    last = sizes.ctx.attr(node, "layout", "NCHW") == "NHWC"
    strides, pads = sizes.ctx.attr(node, "strides", [1] * n), sizes.ctx.attr(node, "pads", [0] * 2 * n)
    dilations = sizes.ctx.attr(node, "dilations", [1] * n)
    ceil = bool(sizes.ctx.attr(node, "ceil_mode", 0))
    spatial = [
        sizes.names.window(d, kernel[i], strides[i], pads[i] + pads[i + n], dilations[i], ceil)
        for i, d in enumerate(x[1:-1] if last else x[2:])
    ]
    return (x[0], *spatial, channels) if last else (x[0], channels, *spatial)


def _reshape(node: ir.Node, sizes: Sizes) -> Dims | None:
    x, target = sizes.of(node.inputs[0]), sizes.vector(node.inputs[1])
    if target is None or any(t is None for t in target):
        return None
    wanted: list[Dim] = [t for t in target if t is not None]
    for axis, dim in enumerate(wanted):
        if dim == 0 and not sizes.ctx.attr(node, "allowzero", 0):
            if x is None or axis >= len(x):
                return None
            wanted[axis] = x[axis]
    if -1 in wanted:
        hole = wanted.index(-1)
        rest = [*wanted[:hole], *wanted[hole + 1 :]]
        if x is None or -1 in rest:
            return None
        wanted[hole] = sizes.names.remainder(x, rest)
    return tuple(wanted)


def _expand(node: ir.Node, sizes: Sizes) -> Dims | None:
    x, target, given = sizes.of(node.inputs[0]), sizes.vector(node.inputs[1]), node.inputs[1]
    if x is None or target is None or given is None:
        return None
    # One element that is not known leaves only its own dimension unknown.
    wanted = [sizes.names.formula(f"{given.name}[{i}]") if t is None else t for i, t in enumerate(target)]
    return sizes.names.broadcast_all([x, tuple(wanted)])


def _gather(node: ir.Node, sizes: Sizes) -> Dims | None:
    data, indices = sizes.of(node.inputs[0]), sizes.of(node.inputs[1])
    if data is None or indices is None:
        return None
    axis = sizes.ctx.attr(node, "axis", 0) % len(data)
    return (*data[:axis], *indices, *data[axis + 1 :])


def _matmul_nbits(node: ir.Node, sizes: Sizes) -> Dims | None:
    a = sizes.of(node.inputs[0])
    return None if not a else (*a[:-1], sizes.ctx.attr(node, "N"))


def _gather_block_quantized(node: ir.Node, sizes: Sizes) -> Dims | None:
    """Two codes of 4 bits lie in a byte along the last axis."""
    found = sizes.of(node.inputs[0])
    indices = sizes.of(node.inputs[1])
    if not found or indices is None or not isinstance(found[-1], int):
        return None
    in_byte = 8 // sizes.ctx.attr(node, "bits", 4) if sizes.ctx.dtype(node.inputs[0]) == ir.DataType.UINT8 else 1
    data = (*found[:-1], found[-1] * in_byte)
    axis = sizes.ctx.attr(node, "gather_axis", 0) % len(data)
    return (*data[:axis], *indices, *data[axis + 1 :])


def _gather_elements(node: ir.Node, sizes: Sizes) -> Dims | None:
    return sizes.of(node.inputs[1])


def _gather_nd(node: ir.Node, sizes: Sizes) -> Dims | None:
    data, indices = sizes.of(node.inputs[0]), sizes.of(node.inputs[1])
    if data is None or not indices or not isinstance(indices[-1], int):
        return None
    return (*indices[:-1], *data[sizes.ctx.attr(node, "batch_dims", 0) + indices[-1] :])


def _unsqueeze(node: ir.Node, sizes: Sizes) -> Dims | None:
    x, axes = sizes.of(node.inputs[0]), sizes.ints(node, "axes", 1)
    if x is None or axes is None:
        return None
    rank = len(x) + len(axes)
    places = {a % rank for a in axes}
    rest = iter(x)
    return tuple(1 if i in places else next(rest) for i in range(rank))


def _squeeze(node: ir.Node, sizes: Sizes) -> Dims | None:
    x, axes = sizes.of(node.inputs[0]), sizes.ints(node, "axes", 1)
    if x is None or axes is None:
        return None
    places = {a % len(x) for a in axes}
    return tuple(d for i, d in enumerate(x) if i not in places)


def _concat(node: ir.Node, sizes: Sizes) -> Dims | None:
    shapes = [sizes.of(v) for v in node.inputs]
    known = [s for s in shapes if s is not None]
    if len(known) != len(shapes):
        return None
    axis = sizes.ctx.attr(node, "axis", 0) % len(known[0])
    total: Dim = 0
    for dims in known:
        total = sizes.names.add(total, dims[axis])
    # The inputs agree on the other axes: a number among them is what all are.
    merged = [next((s[i] for s in known if isinstance(s[i], int)), known[0][i]) for i in range(len(known[0]))]
    merged[axis] = total
    return tuple(merged)


def _slice(node: ir.Node, sizes: Sizes) -> Dims | None:
    x = sizes.of(node.inputs[0])
    starts, ends = sizes.ints(node, "starts", 1), None
    if x is None or starts is None:
        return None
    given = sizes.ctx.attr(node, "ends")
    ends = tuple(given) if given is not None else sizes.vector(node.inputs[2] if len(node.inputs) > 2 else None)
    axes = sizes.ints_or(node, "axes", 3, list(range(len(starts))))
    steps = sizes.ints_or(node, "steps", 4, [1] * len(starts))
    if ends is None or axes is None or steps is None or not len(ends) == len(starts) == len(axes) == len(steps):
        return None
    dims = list(x)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        size = dims[axis % len(x)]
        if step < 1 or end is None:
            return None
        if isinstance(size, int) and isinstance(end, int):
            low, high = (min(max(p + size if p < 0 else p, 0), size) for p in (start, end))
            dims[axis % len(x)] = max(-(-(high - low) // step), 0)
        elif step != 1 or start != 0:
            return None
        elif (isinstance(end, int) and end > 1 << 30) or end == size:
            continue
        elif isinstance(end, str) and isinstance(size, int):
            dims[axis % len(x)] = sizes.names.minimum(end, size)
        else:
            return None
    return tuple(dims)


def _split(node: ir.Node, sizes: Sizes) -> list[Dims | None]:
    x = sizes.of(node.inputs[0])
    count = len(node.outputs)
    if x is None:
        return [None] * count
    axis = sizes.ctx.attr(node, "axis", 0) % len(x)
    parts = sizes.ints(node, "split", 1)
    size = x[axis]
    given = len(node.inputs) > 1 and node.inputs[1] is not None
    if parts is None and not given and isinstance(size, int) and size % count == 0:
        parts = [size // count] * count
    if parts is None or len(parts) != count:
        return [None] * count
    return [(*x[:axis], part, *x[axis + 1 :]) for part in parts]


def _reduce(node: ir.Node, sizes: Sizes) -> Dims | None:
    x, axes = sizes.of(node.inputs[0]), sizes.ints(node, "axes", 1)
    if x is None or (axes is None and len([i for i in node.inputs if i is not None]) > 1):
        return None
    if not axes:
        if sizes.ctx.attr(node, "noop_with_empty_axes", 0):
            return x
        axes = list(range(len(x)))
    places = {a % len(x) for a in axes}
    keep = sizes.ctx.attr(node, "keepdims", 1)
    return tuple(1 if i in places else d for i, d in enumerate(x) if keep or i not in places)


def _range(node: ir.Node, sizes: Sizes) -> Dims | None:
    start, limit, delta = (sizes.vector(v) for v in node.inputs[:3])
    if start == (0,) and delta == (1,) and limit is not None and limit[0] is not None:
        return (limit[0],)
    return None


def _shape_of_shape(node: ir.Node, sizes: Sizes) -> Dims | None:
    x = sizes.of(node.inputs[0])
    return None if x is None else (len(window_of(node, sizes, x)),)


def _constant_of_shape(node: ir.Node, sizes: Sizes) -> Dims | None:
    target = sizes.vector(node.inputs[0])
    return None if target is None or any(t is None for t in target) else tuple(t for t in target if t is not None)


def _tile(node: ir.Node, sizes: Sizes) -> Dims | None:
    given, repeats = sizes.of(node.inputs[0]), sizes.vector(node.inputs[1]) if len(node.inputs) == 2 else None
    if given is None or repeats is None or len(given) != len(repeats):
        return None
    known = [r for r in repeats if r is not None]
    if len(known) != len(repeats):
        return None
    # Where an axis is not repeated its size stays, known or not.
    return tuple(d if r == 1 else sizes.names.multiply([d, r]) for d, r in zip(given, known, strict=True))


def _onnx_attention(node: ir.Node, q: Dims | None, sizes: Sizes) -> Dims | None:
    v = sizes.of(node.inputs[2])
    if q is None or v is None or len(q) != len(v):
        return None
    if len(q) == 4:
        return (*q[:3], v[3])
    heads, groups = (sizes.ctx.attr(node, name, 0) for name in ("q_num_heads", "kv_num_heads"))
    return (*q[:2], v[2] * heads // groups) if groups and isinstance(v[2], int) else None


def _attention(node: ir.Node, sizes: Sizes) -> Dims | None:
    q = sizes.of(node.inputs[0])
    if node.domain != "cuvil":
        return _onnx_attention(node, q, sizes)
    if q is None:
        return None
    heads = sizes.ctx.attr(node, "num_heads")
    groups = sizes.ctx.attr(node, "kv_num_heads", 0) or heads
    if sizes.ctx.attr(node, "layout") == "packed":
        if groups == heads:
            return (*q[:2], sizes.names.divide(q[2], 3))
        return (*q[:2], q[2] * heads // (heads + 2 * groups)) if isinstance(q[2], int) else None
    v = sizes.of(node.inputs[2])
    if v is not None and len(v) == 4:
        return (*q[:2], v[3] * heads) if isinstance(v[3], int) else None
    if groups != heads:
        return (*q[:2], v[2] * heads // groups) if v is not None and isinstance(v[2], int) else None
    return (*q[:2], q[2] if v is None else v[2])


_ELEMENTWISE = (
    "Add Sub Mul Div Pow Mod Max Min Sum Mean Where And Or Xor Equal Less LessOrEqual Greater GreaterOrEqual "
    "BitwiseAnd BitwiseOr BitwiseXor BitShift PRelu"
)
_SAME = (
    "Neg Abs Sqrt Reciprocal Exp Log Erf Tanh Sigmoid Sin Cos Tan Asin Acos Atan Sinh Cosh Asinh Acosh Atanh Floor "
    "Ceil Round Sign Relu Softplus Softsign HardSwish Mish Gelu Swish LeakyRelu Elu Selu Celu HardSigmoid "
    "ThresholdedRelu Clip Cast Identity Not IsNaN IsInf BitwiseNot Softmax LogSoftmax Hardmax LayerNormalization "
    "RMSNormalization BatchNormalization InstanceNormalization GroupNormalization LpNormalization LRN CumSum Trilu "
    "Dropout ScatterND QuantizeLinear DequantizeLinear RotaryEmbedding"
)
_REDUCTIONS = "Mean Sum Max Min Prod L1 L2 SumSquare LogSum LogSumExp"
_RULES: dict[str, Rule] = {
    **dict.fromkeys(_ELEMENTWISE.split(), _elementwise),
    **dict.fromkeys(_SAME.split(), _same),
    **{f"Reduce{name}": _reduce for name in _REDUCTIONS.split()},
    **dict.fromkeys(("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "Pool"), _pool),
    **dict.fromkeys(("MatMul", "FusedMatMul", "MatMulInt4"), _matmul),
    **dict.fromkeys(("Conv", "FusedConv"), _conv),
    "Gemm": _gemm,
    "Transpose": _transpose,
    "Reshape": _reshape,
    "Expand": _expand,
    "Tile": _tile,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "Unsqueeze": _unsqueeze,
    "Squeeze": _squeeze,
    "Concat": _concat,
    "Slice": _slice,
    "Range": _range,
    "Shape": _shape_of_shape,
    "ConstantOfShape": _constant_of_shape,
    "Attention": _attention,
}
_MICROSOFT: dict[str, Rule] = {"MatMulNBits": _matmul_nbits, "GatherBlockQuantized": _gather_block_quantized}
"""Of com.microsoft, of which onnx's inference knows nothing; ``normalise`` gives these types."""
