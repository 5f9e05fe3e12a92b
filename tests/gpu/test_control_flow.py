"""If, Loop and Scan, which ONNX Runtime executes with this provider's nodes and memory, exactly as on the CPU."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from tests.gpu.single_op import MakeSession, sample

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def values(*names: str, kind: int = FLOAT, shape: Sequence[int | str] | None = None) -> list[onnx.ValueInfoProto]:
    return [helper.make_tensor_value_info(n, kind, shape) for n in names]


def model(graph: onnx.GraphProto, opset: int) -> onnx.ModelProto:
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def same_as_on_the_cpu(make: MakeSession, m: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> None:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    cpu = ort.InferenceSession(m.SerializeToString(), options, providers=["CPUExecutionProvider"])
    session = make(m, shapes_on_cpu=0)
    for _ in range(2):
        for a, b in zip(session.run(None, feeds), cpu.run(None, feeds), strict=True):
            assert a.shape == b.shape
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("opset", [11, 13, 16, 19, 21, 24])
@pytest.mark.parametrize("taken", [True, False])
def test_if(ep_session: MakeSession, opset: int, taken: bool) -> None:
    then = helper.make_graph([helper.make_node("Relu", ["x"], ["t"])], "then", [], values("t"))
    other = helper.make_graph([helper.make_node("Neg", ["x"], ["e"])], "else", [], values("e"))
    nodes = [
        helper.make_node("If", ["c"], ["r"], then_branch=then, else_branch=other),
        helper.make_node("Add", ["r", "x"], ["y"]),
    ]
    inputs = [*values("c", kind=BOOL, shape=[]), *values("x", shape=[3, 5])]
    graph = helper.make_graph(nodes, "g", inputs, values("y"))
    same_as_on_the_cpu(ep_session, model(graph, opset), {"c": np.array(taken), "x": sample((3, 5))})


@pytest.mark.parametrize("opset", [11, 13, 16, 19, 21, 24])
@pytest.mark.parametrize("trips", [0, 1, 4])
def test_loop(ep_session: MakeSession, opset: int, trips: int) -> None:
    # Carries s and stacks s * s; the condition stays what it was.
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["c"], ["c1"]),
            helper.make_node("Add", ["s", "x"], ["s1"]),
            helper.make_node("Mul", ["s1", "s1"], ["q"]),
        ],
        "body",
        [*values("i", kind=INT64, shape=[]), *values("c", kind=BOOL, shape=[]), *values("s", shape=[2, 3])],
        [*values("c1", kind=BOOL, shape=[]), *values("s1", "q", shape=[2, 3])],
    )
    nodes = [helper.make_node("Loop", ["n", "", "x"], ["last", "all"], body=body)]
    inputs = [*values("n", kind=INT64, shape=[]), *values("x", shape=[2, 3])]
    graph = helper.make_graph(nodes, "g", inputs, values("last", "all"))
    feeds = {"n": np.array(trips, np.int64), "x": sample((2, 3))}
    same_as_on_the_cpu(ep_session, model(graph, opset), feeds)


@pytest.mark.parametrize("opset", [11, 13, 16, 19, 21, 24])
@pytest.mark.parametrize("reverse", [0, 1])
def test_scan(ep_session: MakeSession, opset: int, reverse: int) -> None:
    body = helper.make_graph(
        [helper.make_node("Add", ["s", "e"], ["s1"]), helper.make_node("Exp", ["s1"], ["o"])],
        "body",
        values("s", "e", shape=[4]),
        values("s1", "o", shape=[4]),
    )
    scan = helper.make_node(
        "Scan", ["s0", "x"], ["last", "y"], body=body, num_scan_inputs=1, scan_input_directions=[reverse]
    )
    graph = helper.make_graph([scan], "g", [*values("s0", shape=[4]), *values("x", shape=[5, 4])], values("last", "y"))
    feeds = {"s0": np.zeros(4, np.float32), "x": -np.abs(sample((5, 4)))}
    m = model(graph, opset)
    session = ep_session(m, shapes_on_cpu=0)
    expected = np.cumsum(feeds["x"][::-1] if reverse else feeds["x"], axis=0, dtype=np.float32)
    last, y = session.run(None, feeds)
    np.testing.assert_array_equal(last, expected[-1])
    np.testing.assert_allclose(y, np.exp(expected), rtol=1e-6)  # exp of the GPU is within 2 ULP
