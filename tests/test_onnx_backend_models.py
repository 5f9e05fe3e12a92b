"""Every model of onnx's own test suite, optimized: the result must load, keep its interface and compute the same.

A sample runs by default; ``CUVIL_ALL_BACKEND_MODELS=1`` runs all of them.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.backend.test.loader import load_model_tests

from cuvil_onnx import optimize
from cuvil_onnx.errors import UnsupportedModelError
from cuvil_onnx.passes.base import RANDOM_OPS
from cuvil_onnx.verify import NATIVE_HALF, ROUNDING, compare, computes_in_half

ort = pytest.importorskip("onnxruntime")

KINDS = ("node", "simple", "pytorch-operator", "pytorch-converted")
STRIDE = 1 if os.environ.get("CUVIL_ALL_BACKEND_MODELS") == "1" else 12
MAX_IR = 13
"""The newest IR version of onnxruntime 1.31, the oldest runtime these tests are run with."""


def _cases() -> list[Any]:
    found = [pytest.param(case, id=case.name) for kind in KINDS for case in load_model_tests(kind=kind)]
    return found[::STRIDE]


def _load(case: Any) -> tuple[onnx.ModelProto, list[Any]]:
    """The model and its first inputs; the tests of kind "node" are made in memory, the others are files."""
    if case.model is not None:
        model = onnx.ModelProto()
        model.CopyFrom(case.model)
        return model, list(case.data_sets[0][0])
    model = onnx.load(Path(case.model_dir) / "model.onnx")
    folder = Path(case.model_dir) / "test_data_set_0"
    files = sorted(folder.glob("input_*.pb"), key=lambda f: int(f.stem.split("_")[1]))
    return model, [onnx.TensorProto.FromString(f.read_bytes()) for f in files]


def _feeds(model: onnx.ModelProto, data: list[Any]) -> dict[str, Any]:
    initialized = {t.name for t in model.graph.initializer}
    inputs = [i for i in model.graph.input if i.name not in initialized or model.ir_version >= 4]
    return {
        info.name: onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value
        for info, value in zip(inputs, data, strict=False)
    }


def _session(model: onnx.ModelProto) -> Any:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("case", _cases())
def test_same_results(case: Any) -> None:
    model, data = _load(case)
    model.ir_version = min(model.ir_version, MAX_IR)
    feeds = _feeds(model, data)
    try:
        original = _session(model)
        expected = original.run(None, feeds)
    except Exception as error:
        pytest.skip(f"onnxruntime does not run the original: {str(error)[:80]}")
    try:
        result = optimize(model, verify=False)
    except UnsupportedModelError as error:
        pytest.skip(str(error))
    after = result.model
    onnx.checker.check_model(after)
    assert [o.name for o in after.graph.output] == [o.name for o in model.graph.output]
    session = _session(after)
    known = {i.name for i in after.graph.input}
    found = session.run(None, {k: v for k, v in feeds.items() if k in known})
    if RANDOM_OPS & {n.op_type for n in model.graph.node}:
        assert [np.shape(f) for f in found] == [np.shape(e) for e in expected]
        return
    tolerance = NATIVE_HALF if computes_in_half(model) else ROUNDING
    for name, got, want in zip((o.name for o in after.graph.output), found, expected, strict=True):
        difference = compare(got, want, tolerance)
        assert not difference, f"{name} {difference}; {result.report.trace.counts}"
