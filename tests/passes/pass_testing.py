"""Models from text and the comparison before and after, for the tests of passes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper, numpy_helper

from cuvil_onnx.api import Optimized, optimize


def made(text: str, opset: int = 17, ir_version: int = 9, **weights: Any) -> onnx.ModelProto:
    """A model from a graph in ONNX's text form, ``(inputs) => (outputs) { nodes }``, and its initializers."""
    graph = onnx.parser.parse_graph(f"g {text}")
    graph.initializer.extend(numpy_helper.from_array(np.asarray(array), name) for name, array in weights.items())
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir_version)


def normal(*shape: int, seed: int = 0, scale: float = 1.0) -> np.ndarray:
    return (np.random.default_rng([seed, *shape]).standard_normal(shape) * scale).astype(np.float32)


def run(model: onnx.ModelProto, **inputs: Any) -> list[np.ndarray]:
    """Outputs on ONNX Runtime's CPU without its own optimizations."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, inputs)


def ops(model: onnx.ModelProto) -> Counter[str]:
    return Counter(n.op_type for n in model.graph.node)


def same(model: onnx.ModelProto, result: Optimized, rtol: float = 0.0, atol: float = 0.0, **inputs: Any) -> None:
    """Both models give equal outputs (bit for bit by default), and the result is valid."""
    onnx.checker.check_model(result.model)
    for want, got in zip(run(model, **inputs), run(result.model, **inputs), strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_allclose(got, want, rtol=rtol, atol=atol, strict=True)
        if not rtol and not atol:
            assert got.tobytes() == want.tobytes(), "differs in the sign of a zero"


def basic(model: onnx.ModelProto | Path, **options: Any) -> Optimized:
    """Cleanup only."""
    return optimize(model, level="basic", verify=False, **options)
