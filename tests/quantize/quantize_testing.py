"""What the tests of quantization share: models of products, and the weights that codes stand for."""

from __future__ import annotations

from collections import Counter
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, numpy_helper

from custom_ops.ops.matmul_int4 import dequantize
from tests.rules import rule_testing

TYPES = {"f4": TensorProto.FLOAT, "f2": TensorProto.FLOAT16}


def weight(*shape: int, seed: int = 0, dtype: Any = np.float32) -> np.ndarray:
    return (np.random.default_rng([seed, *shape]).standard_normal(shape) * 0.1).astype(dtype)


def rows(*shape: int, seed: int = 5, dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(dtype)


def graph(text: str, opset: int = 21, **weights: Any) -> onnx.ModelProto:
    """As rule_testing.graph, in the first opset with 4-bit types."""
    return rule_testing.graph(text, opset, **weights)


def product(w: np.ndarray, opset: int = 21) -> onnx.ModelProto:
    """y = x @ w."""
    kind = {np.dtype(np.float32): "float", np.dtype(np.float16): "float16"}.get(w.dtype, "bfloat16")
    lead = f"{w.shape[0]}," if w.ndim == 3 else ""
    k, n = w.shape[-2:]
    return graph(f"({kind}[{lead}M,{k}] x) => ({kind}[{lead}M,{n}] y) {{ y = MatMul(x, w) }}", opset, w=w)


def session(model: onnx.ModelProto, optimized: str | None = None) -> ort.InferenceSession:
    """On the CPU; products with 4-bit weights would round their activations to 8 bits by default."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    if optimized:
        options.optimized_model_filepath = optimized
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def run(model: onnx.ModelProto, **feeds: np.ndarray) -> list[np.ndarray]:
    return list(session(model).run(None, feeds))


def ops(model: onnx.ModelProto) -> Counter[str]:
    """How many nodes of each operator, subgraphs included."""
    found: Counter[str] = Counter()
    pending = [model.graph]
    while pending:
        for node in pending.pop().node:
            found[f"{node.domain}::{node.op_type}" if node.domain else node.op_type] += 1
            pending += [a.g for a in node.attribute if a.HasField("g")]
    return found


def array_of(tensor: onnx.TensorProto) -> np.ndarray:
    """The elements of an initializer, read by nothing of this package."""
    four = {TensorProto.INT4: ml_dtypes.int4, TensorProto.UINT4: ml_dtypes.uint4}.get(tensor.data_type)
    if four is None:
        return numpy_helper.to_array(tensor)
    data = np.frombuffer(tensor.raw_data, np.uint8)
    nibbles = np.stack([data & 15, data >> 4], 1).reshape(-1)[: int(np.prod(tensor.dims))].astype(np.int8)
    if tensor.data_type == TensorProto.INT4:
        nibbles = np.where(nibbles > 7, nibbles - 16, nibbles)
    return nibbles.reshape(tuple(tensor.dims)).astype(four)


def weights_of(model: onnx.ModelProto) -> list[np.ndarray]:
    """float64: what the codes of each cuvil::MatMulInt4 of the main graph stand for."""
    tensors = {t.name: t for t in model.graph.initializer}
    found = []
    for node in model.graph.node:
        if node.op_type != "MatMulInt4":
            continue
        names = [*node.input, *[""] * 7][1:5]
        codes, scales, zeros, offsets = (array_of(tensors[n]) if n else None for n in names)
        assert codes is not None and scales is not None
        block = next(a.i for a in node.attribute if a.name == "block_size")
        found.append(dequantize(codes, scales.astype(np.float64), zeros, offsets, block))
    return found
