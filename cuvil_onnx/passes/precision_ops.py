"""Which operators may compute in 16 bits, and on which of their inputs and outputs."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import onnx
import onnx_ir as ir

from cuvil_onnx.rewrite import walk
from cuvil_onnx.rewrite.graph import GraphContext

KEEP_FLOAT = frozenset(
    {
        # ranges, positions and draws: a 16-bit float counts only to 2048 (fp16) or 256 (bf16)
        *("Range", "CumSum", "EyeLike", "NonMaxSuppression", "Bernoulli", "Multinomial"),
        *("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"),
        # results that leave the range of fp16 for ordinary inputs, or lose small ones
        *("Exp", "Log", "Pow", "Reciprocal", "ReduceSum", "ReduceSumSquare", "ReduceL1", "ReduceL2"),
        *(
            "ReduceLogSum",
            "ReduceLogSumExp",
            "ReduceProd",
            "LpNormalization",
            "MeanVarianceNormalization",
            "LRN",
            "Det",
        ),
        # losses, signals, recurrences, coordinates, quantization: precision is the point, or there is no 16-bit kernel
        *("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss", "DFT", "STFT", "MelWeightMatrix"),
        *(
            "HannWindow",
            "HammingWindow",
            "BlackmanWindow",
            "LSTM",
            "GRU",
            "RNN",
            "GridSample",
            "RoiAlign",
            "AffineGrid",
        ),
        *("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "TfIdfVectorizer", "ConstantOfShape"),
        *("Cast", "CastLike", "Constant", "Optional", "Upsample"),
        "BitCast",  # reads the bits, of which there would be half as many
        *("Sin", "Cos", "Tan"),  # of positions: rounding a large argument gives another angle
    }
)
"""Operators of ONNX's domain that stay in float32. Casts are handled on their own."""

LIGHT = frozenset(
    {
        *("Abs", "Add", "Ceil", "Clip", "Concat", "Div", "Dropout", "Expand", "Flatten", "Floor", "Gather"),
        *(
            "GatherElements",
            "GatherND",
            "Identity",
            "Max",
            "Min",
            "Mod",
            "Mul",
            "Neg",
            "Pad",
            "Relu",
            "Reshape",
            "Round",
        ),
        *("Sign", "Slice", "Split", "Sqrt", "Squeeze", "Sub", "Sum", "Tile", "Transpose", "Unsqueeze", "Where"),
    }
)
"""Cheap operators: they follow their operands instead of forcing a change of precision."""

COMPARISONS = frozenset({"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"})
"""Compare in 16 bits only what was computed in 16 bits: rounding makes different numbers equal."""

SOURCES_OF_LOGS = frozenset({"Softmax", "Sigmoid", "HardSigmoid"})
"""Their small results vanish in fp16, which Log would turn into -inf."""

CUVIL_OPS = frozenset({"Attention", "GatedUnit", "Gelu", "LayerNorm", "MatMulInt4", "RotaryEmbedding"})
"""Fused operators that exist before the precision pass and can be made for another type."""

QUANTIZED_OPS = frozenset({("com.microsoft", "MatMulNBits"), ("com.microsoft", "GatherBlockQuantized")})
"""Operators of ONNX Runtime with quantized weights, whose float operands are all of one type, fp16 or float32."""

_HANDS_ON = LIGHT | {"MatMul", "Einsum"}
_SCATTERS = frozenset({"ScatterElements", "ScatterND"})
_FLOAT = "tensor(float)"
_ONLY_DATA = {"BatchNormalization": ("T",), "Resize": ("T", "T1")}
"""Operators whose statistics or coordinates stay in float32."""


@dataclasses.dataclass(frozen=True)
class Places:
    """Positions of a node's float32 inputs and outputs that take a 16-bit type together."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


def convertible(node: ir.Node, target: ir.DataType, ctx: GraphContext) -> Places | None:
    """Where ``node`` can take 16-bit floats; None when it must stay as it is."""
    if any(True for _ in walk.subgraphs(node)):
        return None
    inputs = [i for i, v in enumerate(node.inputs) if ctx.dtype(v) == ir.DataType.FLOAT]
    outputs = [i for i, v in enumerate(node.outputs) if ctx.dtype(v) == ir.DataType.FLOAT]
    if node.domain == "cuvil" and not inputs:
        return None  # computes in other types, float64 or the other 16-bit one
    if node.domain == "cuvil" and node.op_type == "RotaryEmbedding":
        return Places((0,) if 0 in inputs else (), tuple(outputs))  # cosines and sines may stay in float32
    if node.domain == "cuvil" and node.op_type in CUVIL_OPS:
        return Places(tuple(inputs), tuple(outputs))
    if (node.domain, node.op_type) in QUANTIZED_OPS and target == ir.DataType.FLOAT16 and inputs:
        return Places(tuple(inputs), (0,))  # whose type onnx does not infer
    if node.domain or node.op_type in KEEP_FLOAT or not inputs:
        return None
    if not all(v is None or _is_tensor(v) for v in (*node.inputs, *node.outputs)):
        return None  # a sequence or optional holds tensors of one type, which other nodes put in and take out
    if node.op_type == "Mul" and node.inputs[0] is node.inputs[1]:
        return None  # a square: leaves the range of fp16 from 256 on
    if node.op_type in _SCATTERS and ctx.attr(node, "reduction", "none") != "none":
        return None  # sums and products of unknown length, and ONNX Runtime's CPU has no 16-bit kernel
    if node.op_type == "Attention" and len(node.outputs) > 3 and _is_used(node.outputs[3]):
        return None  # shows the masked scores, whose mask is the lowest float32
    schema = _schema(node.op_type, ctx.opset())
    if schema is None:
        return None
    kind = "tensor(bfloat16)" if target == ir.DataType.BFLOAT16 else "tensor(float16)"
    allowed = {c.type_param_str: kind in c.allowed_type_strs for c in schema.type_constraints}
    only = _ONLY_DATA.get(node.op_type)
    in_types = {i: _formal(schema.inputs, i) for i in inputs}
    taken = tuple(i for i, t in in_types.items() if allowed.get(t, False) and (only is None or t in only))
    bound = {in_types[i] for i in taken}
    if not taken or any(not allowed.get(t, False) and t != _FLOAT for t in in_types.values()):
        return None
    return Places(taken, tuple(i for i in outputs if _formal(schema.outputs, i) in bound))


def demanded(nodes: Sequence[ir.Node], ctx: GraphContext) -> set[ir.Node]:
    """Nodes whose result another node needs in full: through cheap operators, what becomes an angle, an index or a log.

    A position of 4001 is 4000 in fp16: its sine would be another one, and so would the element it points to.
    """
    found: set[ir.Node] = set()
    for node in reversed(nodes):
        if node.domain or not (_needs_all_bits(node, ctx) or (node in found and node.op_type in _HANDS_ON)):
            continue
        for value in node.inputs:
            producer = None if value is None else value.producer()
            if producer is not None and ctx.dtype(value) == ir.DataType.FLOAT:
                found.add(producer)
    return found


def _needs_all_bits(node: ir.Node, ctx: GraphContext) -> bool:
    if node.op_type == "Cast":
        target = ctx.dtype(node.outputs[0])
        return target == ir.DataType.BOOL or (target is not None and target.is_integer())
    return node.op_type in ("Sin", "Cos", "Tan", "Log")


def _is_tensor(value: ir.Value) -> bool:
    return isinstance(value.type, ir.TensorType) or (value.type is None and not _is_used(value))


def _is_used(value: ir.Value) -> bool:
    return bool(walk.use_count(value)) or value.is_graph_output()


@functools.cache
def _schema(op_type: str, opset: int) -> onnx.defs.OpSchema | None:
    try:
        return onnx.defs.get_schema(op_type, opset, "")
    except onnx.defs.SchemaError:
        return None


def _formal(formals: Sequence[onnx.defs.OpSchema.FormalParameter], index: int) -> str:
    """The type of a formal parameter; the last one repeats when it is variadic."""
    if not formals:
        return ""
    return str(formals[min(index, len(formals) - 1)].type_str)
