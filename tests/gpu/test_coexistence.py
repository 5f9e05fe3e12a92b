"""Ours and onnxruntime-gpu's CUDA provider in one session: both orders, one stream, no copies between, captured.

Needs a GPU and onnxruntime-gpu. ``com.microsoft::UnfoldTensor`` stands for an op that only the other provider has: it
copies windows of a tensor, so that results are exact. (ComplexMul would not do: in onnxruntime-gpu 1.31.1 its second
half of each row is wrong for inputs of three dimensions, in sessions of that provider alone too.)
"""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.lib.stride_tricks import sliding_window_view
from onnx import TensorProto, helper, numpy_helper

import cuvil_onnx
from cuvil_onnx.bench.device_io import BoundIO
from cuvil_onnx.runtime.cuda_driver import Stream, context
from cuvil_onnx.runtime.cuda_graph import record
from cuvil_onnx.runtime.providers import CPU, CUDA
from cuvil_onnx.runtime.registration import EP_NAME, unavailable_reason

pytestmark = [
    pytest.mark.skipif(unavailable_reason() is not None, reason=str(unavailable_reason())),
    pytest.mark.skipif(CUDA not in ort.get_available_providers(), reason="onnxruntime-gpu is not installed"),
]
FOREIGN = "UnfoldTensor"
ORDERS = [[EP_NAME, CUDA, CPU], [CUDA, EP_NAME, CPU]]


def model() -> onnx.ModelProto:
    """y = f - (windows of windows of -2 * a) / 2 with a = relu(x): windows by the other provider's op, the rest in two
    Pointwise nodes, which the CUDA provider does not take whatever the order."""
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], name="relu"),
        helper.make_node(FOREIGN, ["a"], ["b"], name="first", domain="com.microsoft", dim=1, size=4, step=2),
        helper.make_node("Neg", ["b"], ["n"], name="neg"),
        helper.make_node("Mul", ["n", "two"], ["c"], name="double"),
        helper.make_node(FOREIGN, ["c"], ["d"], name="second", domain="com.microsoft", dim=1, size=2, step=1),
        helper.make_node("Div", ["d", "two"], ["e"], name="halve"),
        helper.make_node("Sub", ["f", "e"], ["y"], name="sub"),
    ]
    sizes = {"x": ["N", 8], "b": ["N", 3, 4], "d": ["N", 2, 4, 2], "f": ["N", 2, 4, 2], "y": ["N", 2, 4, 2]}
    x, b, d, f, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in sizes.items())
    two = numpy_helper.from_array(np.array(2, np.float32), "two")
    graph = helper.make_graph(nodes, "g", [x, f], [y], [two], value_info=[b, d])
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    given = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    optimized = cuvil_onnx.optimize(given, verify=False).model
    assert sum(node.op_type == "Pointwise" for node in optimized.graph.node) == 2
    return optimized


def feed(rows: int, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    shapes = {"x": (rows, 8), "f": (rows, 2, 4, 2)}
    return {n: rng.integers(-4, 5, shape).astype(np.float32) for n, shape in shapes.items()}


def expected(f: dict[str, np.ndarray]) -> np.ndarray:
    once = sliding_window_view(np.maximum(f["x"], 0), 4, axis=1)[:, ::2]
    return f["f"] + sliding_window_view(once, 2, axis=1)


def check(session, rows: int, seed: int) -> None:
    values = feed(rows, seed)
    np.testing.assert_array_equal(session.run(None, values)[0], expected(values))


def test_a_session_takes_the_cuda_provider_for_what_ours_lacks_and_is_captured():
    with cuvil_onnx.InferenceSession(model()) as session:
        assert session.get_providers() == ORDERS[0]
        where = [(n.op_type, n.provider) for n in session.placement()]
        assert where.count((FOREIGN, CUDA)) == 2, where
        assert where.count(("Pointwise", EP_NAME)) == 2, where
        for seed in range(8):
            check(session, 3, seed)
        assert session.captured_graphs == 1, session.placement().cuda_graph
        for seed in range(8):
            check(session, 3 + 200 * (seed % 2), seed)
        assert session.captured_graphs == 2, session.placement().cuda_graph


def test_capture_at_first_use_device_outputs_and_release():
    with cuvil_onnx.InferenceSession(model(), cuda_graph="always", max_captured_graphs=2) as session:
        for i in range(12):
            values = feed(1 + i % 3, i)
            (y,) = session.run(None, values, output="device")
            np.testing.assert_array_equal(y.numpy(), expected(values))
        assert session.captured_graphs == 2


def test_a_binding_of_fixed_addresses_is_captured():
    with cuvil_onnx.InferenceSession(model()) as session:
        values = feed(5, 1)
        io = BoundIO(session, values, {"y": expected(values)})
        for _ in range(4):
            session.run_with_iobinding(io.binding)
        np.testing.assert_array_equal(io.read()["y"], expected(values))
        assert session.captured_graphs == 1, session.placement().cuda_graph


@pytest.mark.parametrize("order", ORDERS, ids=["ours_first", "cuda_first"])
def test_either_order_is_right(order):
    with cuvil_onnx.InferenceSession(model(), providers=order) as session:
        for seed in range(40):
            check(session, 1 + 37 * seed % 300, seed)
        for seed in range(6):
            check(session, 64, seed)
        if order[0] == CUDA:
            assert session.captured_graphs == 0
            assert "comes first" in session.placement().cuda_graph


@pytest.mark.parametrize("order", ORDERS, ids=["ours_first", "cuda_first"])
def test_plain_sessions_are_captured_from_outside_without_copies(order):
    """As an application does it by hand: one stream for both providers, warm runs, one unsynchronised run recorded."""
    stream = Stream(context(0))
    options = [{"user_compute_stream": str(stream.handle)} if name != CPU else {} for name in order]
    session = ort.InferenceSession(model().SerializeToString(), None, order, options, enable_fallback=0)
    values = feed(33, 0)
    x, f = (ort.OrtValue.ortvalue_from_numpy(values[n], "cuda", 0) for n in ("x", "f"))
    y = ort.OrtValue.ortvalue_from_numpy(np.full((33, 2, 4, 2), -7, np.float32), "cuda", 0)
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", x)
    binding.bind_ortvalue_input("f", f)
    binding.bind_ortvalue_output("y", y)
    run_options = ort.RunOptions()
    run_options.add_run_config_entry("gpu_graph_id", "-1")
    run_options.add_run_config_entry("disable_synchronize_execution_providers", "1")
    with stream.context:
        for _ in range(3):
            session.run_with_iobinding(binding, run_options)
        stream.synchronize()
        graph = record(stream, lambda: session.run_with_iobinding(binding, run_options))
        kinds = [node.kind for node in graph.nodes()]
        assert kinds.count("kernel") >= 5  # Relu, windows twice, two Pointwise
        assert set(kinds) <= {"kernel", "memset", "empty"}
        graph.instantiate()
        for seed in range(10):
            values = feed(33, seed)
            x.update_inplace(values["x"])
            f.update_inplace(values["f"])
            graph.launch(stream)
            stream.synchronize()
            np.testing.assert_array_equal(y.numpy(), expected(values))


def test_a_model_of_ours_alone_leaves_the_cuda_provider_out():
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N"])],
    )
    alone = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    with cuvil_onnx.InferenceSession(alone) as session:
        assert session.get_providers() == [EP_NAME, CPU]


def test_what_neither_has_runs_on_the_cpu_eagerly_and_right():
    """Distances of points that were computed on the GPU: their copy to the host cannot be part of a graph."""
    graph = helper.make_graph(
        [
            helper.make_node("Add", ["x", "x"], ["a"], name="add"),
            helper.make_node("CDist", ["a", "a"], ["b"], name="dist", domain="com.microsoft", metric="sqeuclidean"),
            helper.make_node("Neg", ["b"], ["y"], name="neg"),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", "N"])],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    given = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    with cuvil_onnx.InferenceSession(given) as session:
        for i in range(6):
            x = np.random.default_rng(i).integers(-4, 5, (3, 2)).astype(np.float32)
            want = -4 * np.square(x[:, None] - x[None]).sum(-1)  # small whole numbers: exact
            np.testing.assert_array_equal(session.run(None, {"x": x})[0], want)
        assert session.captured_graphs == 0
        assert "between host and GPU" in session.placement().cuda_graph
