"""A small model for the tests of ``optimize``, and what it computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

ort = pytest.importorskip("onnxruntime")
X = np.random.default_rng(0).standard_normal((2, 8)).astype(np.float32)
W = np.random.default_rng(1).standard_normal((8, 4)).astype(np.float32)
TEXT = "(float[N,8] x) => (float[N,4] y) { i = Identity(x) a = MatMul(i, w) b = Add(a, c) y = Relu(b) }"


def made(text: str = TEXT, opset: int = 17, **weights: Any) -> onnx.ModelProto:
    graph = onnx.parser.parse_graph(f"g {text}")
    weights = weights or {"w": W, "c": W[0]}
    graph.initializer.extend(numpy_helper.from_array(np.asarray(a), name) for name, a in weights.items())
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def run(model: Any, **feeds: np.ndarray) -> list[np.ndarray]:
    source = model.SerializeToString() if isinstance(model, onnx.ModelProto) else str(model)
    return ort.InferenceSession(source, providers=["CPUExecutionProvider"]).run(None, feeds or {"x": X})


def expected() -> np.ndarray:
    return np.maximum(X @ W + W[0], 0)


def saved(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    onnx.save(made(), path)
    return path
