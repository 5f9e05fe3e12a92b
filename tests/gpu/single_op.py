"""One-node models, run by CuvilExecutionProvider and compared with ONNX Runtime's CPU provider."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from hypothesis import HealthCheck, settings
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

# A session costs milliseconds, and a broken kernel fails on the first few shapes. Fewer under compute-sanitizer.
EXAMPLES = int(os.environ.get("CUVIL_TEST_EXAMPLES", "20"))
quick = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))

Array = np.ndarray
MakeSession = Callable[..., ort.InferenceSession]


def model(
    op: str,
    inputs: Sequence[Array | None],
    attrs: dict[str, Any] | None = None,
    *,
    opset: int = 17,
    outputs: Sequence[str] = ("y0",),
    constant: Sequence[int] = (),
    bfloat16: bool = False,
) -> onnx.ModelProto:
    """A model of one node; inputs of None are absent, those in `constant` are initializers, an output "" is absent.

    With `bfloat16`, float32 inputs are cast to bfloat16 before the node, and its outputs back after.
    """
    nodes, graph_inputs, initializers, names = [], [], [], []
    for i, x in enumerate(inputs):
        name = f"x{i}" if x is not None else ""
        if x is not None and i in constant:
            initializers.append(numpy_helper.from_array(x, name))
        elif x is not None:
            graph_inputs.append(helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape))
        if bfloat16 and x is not None and x.dtype == np.float32:
            nodes.append(helper.make_node("Cast", [name], [name + "b"], to=TensorProto.BFLOAT16))
            name += "b"
        names.append(name)
    inner = [o + "b" if bfloat16 and o else o for o in outputs]
    nodes.append(helper.make_node(op, names, inner, name="node", **(attrs or {})))
    if bfloat16:
        nodes += [helper.make_node("Cast", [o + "b"], [o], to=TensorProto.FLOAT) for o in outputs if o]
    graph = helper.make_graph(
        nodes, "g", graph_inputs, [onnx.ValueInfoProto(name=o) for o in outputs if o], initializers
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8 if opset < 19 else 10)


def reference(m: onnx.ModelProto, feeds: dict[str, Array]) -> list[Array]:
    """What ONNX Runtime's CPU provider gives; the ONNX reference where it has no kernel for the type."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = ort.InferenceSession(m.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        if "NOT_IMPLEMENTED" not in str(error):
            raise
        return [np.asarray(y) for y in ReferenceEvaluator(m).run(None, feeds)]
    return session.run(None, feeds)


def check(
    make: MakeSession,
    op: str,
    inputs: Sequence[Array | None],
    attrs: dict[str, Any] | None = None,
    *,
    rtol: float = 0,
    atol: float = 0,
    expected: Sequence[Array] | None = None,
    **options: Any,
) -> list[Array]:
    """Runs the node on the provider, twice, and compares with `expected` or the reference: exactly unless told else."""
    m = model(op, inputs, attrs, **options)
    constant = options.get("constant", ())
    feeds = {f"x{i}": x for i, x in enumerate(inputs) if x is not None and i not in constant}
    if expected is None:
        expected = reference(m, feeds)
    session = make(m)
    found = session.run(None, feeds)
    for a, b, again in zip(found, expected, session.run(None, feeds), strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape, f"{a.dtype}{a.shape} instead of {b.dtype}{b.shape}"
        np.testing.assert_allclose(a, b, rtol=rtol, atol=atol)
        np.testing.assert_array_equal(a, again)  # the same bits every run
    return found


def sample(shape: Sequence[int], dtype: Any = np.float32, seed: int = 0) -> Array:
    """Random values: normal for floats, small integers (so that sums do not overflow) for the others."""
    rng = np.random.default_rng(seed)
    dtype = np.dtype(dtype)
    if dtype.kind == "f":
        return rng.standard_normal(tuple(shape)).astype(dtype)
    if dtype.kind == "b":
        return rng.integers(0, 2, tuple(shape)).astype(dtype)
    return rng.integers(0 if dtype.kind == "u" else -9, 10, tuple(shape)).astype(dtype)


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


# Every element size, and every kind, that operators moving data are claimed for.
MOVED = [np.float32, np.float16, np.float64, np.int64, np.int32, np.int16, np.uint8, np.bool_]
