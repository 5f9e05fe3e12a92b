"""One model on CuvilExecutionProvider: does it take every node, and are the outputs right?

Imported in forked processes only (workers.py): it loads ONNX Runtime.
"""

from __future__ import annotations

import copy
import functools
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import onnx
import onnxruntime as ort

from tests.conformance.cases import Case, cases, compare
from tests.conformance.survey import RIGHT
from tests.conformance.values import run
from tests.conformance.workers import Lost

EP = "CuvilExecutionProvider"


def placement(model: bytes) -> tuple[ort.InferenceSession | None, list[tuple[str, str]], str]:
    """(session, refusals, error) of a model, no node of which may run on the CPU.

    `refusals` are the nodes that the provider does not run, as (op, its reason). The session is None where there are
    any, and where `error` says why it was not made. Arithmetic on shapes goes to the GPU too, unlike by default, so
    that its kernels are tested.
    """
    settings = _settings()
    settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    settings.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "placement.json"
        settings.add_provider_for_devices([_register()], {"placement_file": str(file), "shapes_on_cpu": "0"})
        try:
            session = ort.InferenceSession(model, settings)
            session.disable_fallback()
            return session, [], ""
        except Exception as error:
            nodes = json.loads(file.read_text())["nodes"] if file.is_file() else []
            refusals = [(_name(n), n["reason"]) for n in nodes if not n["taken"]]
            return None, refusals, "" if refusals else one_line(error)


def judge(case: Case, session: ort.InferenceSession) -> str:
    """RIGHT, or what is wrong in one line. Raises Lost when the device is of no more use."""
    try:
        for inputs, outputs in case.data_sets:
            compare(case, outputs, run(session, inputs))
    except Exception as error:
        text = one_line(error)
        if "CUDA error" in text or "cudaError" in text:
            raise Lost(text) from error
        return text
    return RIGHT


def on_provider(name: str, compute: bool) -> dict[str, Any]:
    """{"refusals", "error", "result", "as_given"} of a case; `result` is judge's, or None where it did not run,
    `as_given` is false where the model's versions were lowered."""
    _register()
    case = cases()[name]
    model = lowered(case.model)
    session, refusals, error = placement(model.SerializeToString())
    result = judge(case, session) if session is not None and compute else None
    return {"refusals": refusals, "error": error, "result": result, "as_given": model is case.model}


def on_stock(name: str) -> str:
    """judge's verdict about stock ONNX Runtime as people use it: CUDA provider where there is one, then the CPU's."""
    case = cases()[name]
    available = ort.get_available_providers()
    providers = [p for p in ("CUDAExecutionProvider", "CPUExecutionProvider") if p in available]
    try:
        session = ort.InferenceSession(lowered(case.model).SerializeToString(), _settings(), providers=providers)
    except Exception as error:
        return one_line(error)
    return judge(case, session)


def one_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


@functools.lru_cache(maxsize=1)
def _register() -> ort.OrtEpDevice:
    """The device: of the library in CUVIL_CONFORMANCE_LIBRARY, else of the installed one."""
    library = os.environ.get("CUVIL_CONFORMANCE_LIBRARY")
    if library:
        ort.register_execution_provider_library(EP, library)
    else:
        from cuvil_onnx.runtime.registration import unavailable_reason

        reason = unavailable_reason()
        assert reason is None, reason
    return next(d for d in ort.get_ep_devices() if d.ep_name == EP)


def _settings() -> ort.SessionOptions:
    settings = ort.SessionOptions()
    settings.log_severity_level = 4
    settings.intra_op_num_threads = 1
    return settings


def _name(node: dict[str, Any]) -> str:
    return f"{node['domain']}::{node['op_type']}" if node["domain"] not in ("", "ai.onnx") else node["op_type"]


def takes(model: bytes) -> bool:
    """Whether the provider takes every node of a model that ONNX Runtime accepts."""
    session, _, _ = placement(model)
    return session is not None


def lowered(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with the newest versions of ONNX that this ONNX Runtime loads, where it declares newer ones.

    onnx stamps cases with the newest version of the op, whose changes mostly are further types. The model stays as it
    is where the older version does not allow it.
    """
    ir_version, opset = _newest()
    if model.ir_version <= ir_version and all(o.version <= opset for o in model.opset_import if not o.domain):
        return model
    older = copy.deepcopy(model)
    older.ir_version = min(model.ir_version, ir_version)
    for entry in older.opset_import:
        if not entry.domain:
            entry.version = min(entry.version, opset)
    try:
        onnx.checker.check_model(older, full_check=True)
    except Exception:  # of the checker or of shape inference
        return model
    return older


@functools.lru_cache(maxsize=1)
def _newest() -> tuple[int, int]:
    """The newest IR version and opset of the standard operators that this ONNX Runtime loads."""
    ir_version = next(v for v in range(onnx.IR_VERSION, 0, -1) if _loads(v, 17))
    return ir_version, next(v for v in range(onnx.defs.onnx_opset_version(), 0, -1) if _loads(ir_version, v))


def _loads(ir_version: int, opset: int) -> bool:
    x = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1])
    node = onnx.helper.make_node("Abs", ["x"], ["y"])
    graph = onnx.helper.make_graph([node], "g", [x], [onnx.ValueInfoProto(name="y")])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=ir_version)
    try:
        ort.InferenceSession(model.SerializeToString(), _settings(), providers=["CPUExecutionProvider"])
    except Exception:
        return False
    return True
