"""What the execution provider's core must do, as functions that take the path of a library with the ops of
test_ops.cc. Each runs in a process of its own (`python scenarios.py LIBRARY NAME`): some lose the GPU context on
purpose, and ONNX Runtime registers a provider's name once. The same scenarios run on a GPU (tests/gpu/test_ep_core.py)
and on the fake one (test_fake_device.py)."""

from __future__ import annotations

import ctypes
import json
import os
import pathlib
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

EP = "CuvilExecutionProvider"
DOMAIN = "cuvil.test"
OPSET = 18
SCENARIOS: dict[str, Callable[[], None]] = {}
GPU_ONLY: set[str] = set()
FAKE_ONLY: set[str] = set()

_BODIES: dict[str, tuple[list[str], list[onnx.NodeProto]]] = {
    "Twice": (["x"], [helper.make_node("Add", ["x", "x"], ["y"])]),
    "Fails": (["x"], [helper.make_node("Add", ["x", "x"], ["y"])]),
    "Synchronises": (["x"], [helper.make_node("Add", ["x", "x"], ["y"])]),
    "Plus": (["x", "w"], [helper.make_node("Add", ["x", "w"], ["y"])]),
    "Spin": (["x"], [helper.make_node("Identity", ["x"], ["y"])]),
    "Fault": (["x"], [helper.make_node("Identity", ["x"], ["y"])]),
    "Scratch": (["x"], [helper.make_node("Add", ["x", "x"], ["t"]), helper.make_node("Add", ["t", "t"], ["y"])]),
    "Packed": (
        ["x", "w"],
        [
            helper.make_node("Add", ["w", "w"], ["t"]),
            helper.make_node("Add", ["t", "w"], ["u"]),
            helper.make_node("Add", ["x", "u"], ["y"]),
        ],
    ),
}
_ATTRIBUTES = {"Fails": ["run"], "Scratch": ["bytes"]}


def scenario(function: Callable[[], None]) -> Callable[[], None]:
    """Registers a scenario for both devices."""
    SCENARIOS[function.__name__] = function
    return function


def gpu_scenario(function: Callable[[], None]) -> Callable[[], None]:
    """Registers a scenario that needs a real GPU."""
    GPU_ONLY.add(function.__name__)
    return scenario(function)


def fake_scenario(function: Callable[[], None]) -> Callable[[], None]:
    """Registers a scenario that needs the fake device, which can be told to be broken."""
    FAKE_ONLY.add(function.__name__)
    return scenario(function)


def node(op: str, inputs: Sequence[str], output: str, **attributes: Any) -> onnx.NodeProto:
    """A node named like its output; ops of test_ops.cc get their domain."""
    return helper.make_node(
        op, list(inputs), [output], name=f"n_{output}", domain=DOMAIN if op in _BODIES else "", **attributes
    )


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: dict[str, Sequence[int | str]],
    outputs: Sequence[str] = ("y",),
    initializers: dict[str, np.ndarray] | None = None,
) -> bytes:
    """A model of float32 inputs and outputs (named in `outputs`), with the bodies of the test ops."""
    functions = [
        helper.make_function(
            DOMAIN, op, ins, ["y"], body, [helper.make_opsetid("", OPSET)], attributes=_ATTRIBUTES.get(op, [])
        )
        for op, (ins, body) in _BODIES.items()
    ]
    graph = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, list(s)) for n, s in inputs.items()],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs],
        [numpy_helper.from_array(a, n) for n, a in (initializers or {}).items()],
    )
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=10).SerializeToString()


def session(data: bytes, *, cpu: bool = False, optimize: bool = True, **options: Any) -> Any:
    """A session on the provider; no node may fall to the CPU unless `cpu`. `optimize`: ORT's own optimizations."""
    settings = ort.SessionOptions()
    settings.log_severity_level = 3
    if not optimize:
        settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    if not cpu:
        settings.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    devices = [d for d in ort.get_ep_devices() if d.ep_name == EP]
    assert devices, "no device"
    settings.add_provider_for_devices(devices[:1], {k: str(v) for k, v in options.items()})
    made = ort.InferenceSession(data, settings)
    assert EP in made.get_providers(), made.get_providers()
    made.disable_fallback()
    return made


def run_options(graph: int | None = None, sync: bool = True) -> ort.RunOptions:
    """Run options with a graph id, and without the wait at the end of the run when not `sync`."""
    options = ort.RunOptions()
    if graph is not None:
        options.add_run_config_entry("gpu_graph_id", str(graph))
    if not sync:
        options.add_run_config_entry("disable_synchronize_execution_providers", "1")
    return options


def on_gpu(array: np.ndarray) -> ort.OrtValue:
    return ort.OrtValue.ortvalue_from_numpy(array, "cuda", 0)


class Bound:
    """Inputs and one output of a session, bound to memory of the GPU."""

    def __init__(self, sess: Any, feeds: dict[str, np.ndarray], output_shape: Sequence[int]) -> None:
        self.session = sess
        self.inputs = {n: on_gpu(a) for n, a in feeds.items()}
        self.output = on_gpu(np.full(output_shape, -7, np.float32))
        self.binding = sess.io_binding()
        for name, value in self.inputs.items():
            self.binding.bind_ortvalue_input(name, value)
        self.binding.bind_ortvalue_output("y", self.output)

    def __call__(self, graph: int | None = None, sync: bool = True, **feeds: np.ndarray) -> np.ndarray:
        for name, array in feeds.items():
            self.inputs[name].update_inplace(array)
        self.session.run_with_iobinding(self.binding, run_options(graph, sync))
        return self.output.numpy()


def expect(kind: type[BaseException] | str, words: Sequence[str], function: Callable[[], Any]) -> str:
    """Runs `function`, which must fail with an error of this kind that holds all the words."""
    try:
        function()
    except Exception as e:
        text = str(e)
        assert kind in (type(e), type(e).__name__), f"{type(e).__name__}: {text}"
        for word in words:
            assert word in text, f"'{word}' is not in: {text}"
        return text
    raise AssertionError(f"no error; wanted {words}")


CHAIN = [
    node("Twice", ["x"], "a"),
    node("Plus", ["a", "w"], "b"),
    node("Scratch", ["b"], "c", bytes=100),
    node("Plus", ["c", "b"], "y"),
]


def chain(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    return 5 * (2 * x + w)


def floats(*shape: int, seed: int = 0) -> np.ndarray:
    """Small integers as float32, so that every sum here is exact."""
    return np.random.default_rng(seed).integers(-50, 50, shape).astype(np.float32)


CHAIN_MODEL = model(CHAIN, {"x": ["n", 8], "w": ["n", 8]})


@scenario
def devices_are_described() -> None:
    devices = [d for d in ort.get_ep_devices() if d.ep_name == EP]
    assert devices
    for d in devices:
        assert d.device.vendor_id == 0x10DE
        assert d.device.type == ort.OrtHardwareDeviceType.GPU
        assert set(d.ep_metadata) >= {"cuda_device_id", "name", "compute_capability", "total_memory", "pci_bus_id"}


@scenario
def runs_eagerly() -> None:
    sess = session(CHAIN_MODEL)
    for n in (1, 3, 1000, 1, 0):
        x, w = floats(n, 8, seed=n), floats(n, 8, seed=n + 1)
        np.testing.assert_array_equal(sess.run(None, {"x": x, "w": w})[0], chain(x, w))


@scenario
def provider_list_works_too() -> None:
    sess = ort.InferenceSession(CHAIN_MODEL, providers=[(EP, {"device_id": "0"}), "CPUExecutionProvider"])
    assert sess.get_providers()[0] == EP
    x = floats(4, 8)
    np.testing.assert_array_equal(sess.run(None, {"x": x, "w": x})[0], chain(x, x))


@scenario
def initializers_and_prepacking() -> None:
    w = floats(4, 8, seed=3)
    nodes = [node("Packed", ["x", "w"], "a"), node("Plus", ["a", "v"], "y")]
    sess = session(model(nodes, {"x": [4, 8]}, initializers={"w": w, "v": w + 1}))
    for seed in range(3):
        x = floats(4, 8, seed=seed)
        np.testing.assert_array_equal(sess.run(None, {"x": x})[0], x + 4 * w + 1)


@scenario
def replays_a_captured_graph() -> None:
    sess = session(CHAIN_MODEL, enable_cuda_graph=1)
    bound = Bound(sess, {"x": floats(64, 8), "w": floats(64, 8, seed=1)}, (64, 8))
    for i in range(1000):
        x, w = floats(64, 8, seed=2 * i), floats(64, 8, seed=2 * i + 1)
        np.testing.assert_array_equal(bound(graph=1, x=x, w=w), chain(x, w))


@scenario
def alternates_graphs_and_eager_runs() -> None:
    sess = session(CHAIN_MODEL, enable_cuda_graph=1)
    bounds = {g: Bound(sess, {"x": floats(n, 8), "w": floats(n, 8)}, (n, 8)) for g, n in ((1, 5), (2, 700), (-1, 33))}
    for i in range(60):
        for graph, bound in bounds.items():
            n = bound.inputs["x"].shape()[0]
            x, w = floats(n, 8, seed=i), floats(n, 8, seed=i + 1)
            np.testing.assert_array_equal(bound(graph=graph, x=x, w=w), chain(x, w))


@scenario
def results_of_one_graph_survive_another() -> None:
    """Outputs that ORT allocates during a capture are not overwritten by the replays of other graphs."""
    sess = session(CHAIN_MODEL, enable_cuda_graph=1)
    graphs: list[tuple[Any, Any, np.ndarray]] = []
    for graph, n in enumerate((2000, 49, 300, 3)):
        x = floats(n, 8, seed=graph)
        value, binding = on_gpu(x), sess.io_binding()
        for name in ("x", "w"):
            binding.bind_ortvalue_input(name, value)
        binding.bind_output("y", "cuda", 0)
        sess.run_with_iobinding(binding, run_options(graph))
        graphs.append((binding, value, x))
        for i in range(3 * len(graphs)):
            sess.run_with_iobinding(graphs[i % len(graphs)][0], run_options(i % len(graphs)))
            for other, _, data in graphs:
                np.testing.assert_array_equal(other.get_outputs()[0].numpy(), chain(data, data))


@scenario
def releases_and_captures_again() -> None:
    sess = session(CHAIN_MODEL, enable_cuda_graph=1)
    for round_, n in enumerate((16, 900, 3)):
        bound = Bound(sess, {"x": floats(n, 8), "w": floats(n, 8)}, (n, 8))
        for i in range(4):
            x = floats(n, 8, seed=10 * round_ + i)
            np.testing.assert_array_equal(bound(graph=7, x=x, w=x), chain(x, x))
        sess.release_captured_graph(7)
    sess.release_captured_graph(7)  # nothing to release any more


@scenario
def evicts_the_least_recently_used_graph() -> None:
    sess = session(CHAIN_MODEL, enable_cuda_graph=1, max_captured_graphs=2)
    bounds = [Bound(sess, {"x": floats(g + 1, 8), "w": floats(g + 1, 8)}, (g + 1, 8)) for g in range(5)]
    for i in range(20):
        for graph in (0, 1, 2, 0, 3, 4):
            x = floats(graph + 1, 8, seed=i)
            np.testing.assert_array_equal(bounds[graph](graph=graph, x=x, w=x), chain(x, x))


@scenario
def capture_refuses_host_inputs() -> None:
    sess = session(CHAIN_MODEL, enable_cuda_graph=1)
    x = floats(4, 8)
    expect(
        "InvalidArgument", ["CUDA graph", "I/O binding", "gpu_graph_id=-1"], lambda: sess.run(None, {"x": x, "w": x})
    )
    got = sess.run(None, {"x": x, "w": x}, run_options(-1))[0]
    np.testing.assert_array_equal(got, chain(x, x))


@scenario
def a_failed_capture_leaves_a_usable_session() -> None:
    sess = session(
        model([node("Fails", ["x"], "a", run=2), node("Twice", ["a"], "y")], {"x": [8]}), enable_cuda_graph=1
    )
    bound = Bound(sess, {"x": floats(8)}, (8,))
    expect("RuntimeError", ["node 'n_a' (Fails)", "told to fail"], lambda: bound(graph=3))
    for i in range(5):
        x = floats(8, seed=i)
        np.testing.assert_array_equal(bound(graph=3, x=x), 4 * x)


@scenario
def an_invalidated_capture_is_reported() -> None:
    sess = session(
        model([node("Synchronises", ["x"], "a"), node("Twice", ["a"], "y")], {"x": [8]}), enable_cuda_graph=1
    )
    bound = Bound(sess, {"x": floats(8)}, (8,))
    expect("RuntimeError", ["node 'n_a' (Synchronises)", "cudaErrorStreamCapture"], lambda: bound(graph=0))
    for i in range(3):
        x = floats(8, seed=i)
        np.testing.assert_array_equal(bound(graph=-1, x=x), 4 * x)


@scenario
def shape_arithmetic_stays_on_the_cpu() -> None:
    nodes = [
        node("Twice", ["x"], "t"),
        node("Shape", ["t"], "s"),
        node("Gather", ["s", "zero"], "s0", axis=0),
        node("Mul", ["s0", "eight"], "m"),
        node("Concat", ["m", "one"], "target", axis=0),
        node("Reshape", ["t", "target"], "r"),
        node("Twice", ["r"], "y"),
    ]
    initializers = {k: np.array([v], np.int64) for k, v in {"zero": 0, "one": 1, "eight": 8}.items()}
    with tempfile.TemporaryDirectory() as folder:
        placement = pathlib.Path(folder) / "placement.json"
        data = model(nodes, {"x": ["n", 8]}, initializers=initializers)
        sess = session(data, cpu=True, optimize=False, enable_cuda_graph=1, placement_file=placement)
        rows = {n["name"]: n for n in json.loads(placement.read_text())["nodes"]}
    assert {n for n, r in rows.items() if not r["taken"]} == {"n_s0", "n_m", "n_target"}, rows
    assert all(r["reason"] == ("" if r["taken"] else "shape arithmetic on the CPU") for r in rows.values()), rows
    bound = Bound(sess, {"x": floats(4, 8)}, (32, 1))
    for i in range(6):
        x = floats(4, 8, seed=i)
        np.testing.assert_array_equal(bound(graph=0, x=x), 4 * x.reshape(32, 1))


@scenario
def falls_back_for_other_nodes() -> None:
    nodes = [node("Twice", ["x"], "a"), node("Neg", ["a"], "b"), node("Twice", ["b"], "y")]
    with tempfile.TemporaryDirectory() as folder:
        placement = pathlib.Path(folder) / 'a "quoted" name.json'
        sess = session(model(nodes, {"x": ["n"]}), cpu=True, placement_file=placement)
        rows = {n["name"]: n for n in json.loads(placement.read_text())["nodes"]}
    assert rows["n_b"] == {
        "name": "n_b", "domain": "", "op_type": "Neg", "taken": False, "reason": "no kernel for this op"
    }  # fmt: skip
    for n in (1, 100_000, 0):
        x = floats(n)
        np.testing.assert_array_equal(sess.run(None, {"x": x})[0], -4 * x)


@scenario
def deep_tensors_are_left_to_others() -> None:
    sess = session(model([node("Twice", ["x"], "t"), node("Twice", ["t"], "y")], {"x": [1] * 9}), cpu=True)
    x = np.ones([1] * 9, np.float32)
    np.testing.assert_array_equal(sess.run(None, {"x": x})[0], 4 * x)


@scenario
def runs_inside_control_flow() -> None:
    def branch(name: str, op: str) -> onnx.GraphProto:
        out = helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
        return helper.make_graph([node(op, ["t"], name)], name, [], [out])

    nodes = [
        node("Twice", ["x"], "t"),
        node("If", ["c"], "i", then_branch=branch("p", "Twice"), else_branch=branch("q", "Spin")),
        node("Twice", ["i"], "y"),
    ]
    data = onnx.load_model_from_string(model(nodes, {"x": [8]}))
    data.graph.input.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
    with tempfile.TemporaryDirectory() as folder:
        placement = pathlib.Path(folder) / "p.json"
        sess = session(data.SerializeToString(), cpu=True, placement_file=placement)
        rows = {n["name"]: n["taken"] for n in json.loads(placement.read_text())["nodes"]}
    assert rows == {"n_t": True, "n_i": False, "n_y": True, "n_p": True, "n_q": True}, rows
    x = floats(8)
    for flag in (True, False):
        np.testing.assert_array_equal(sess.run(None, {"x": x, "c": np.array(flag)})[0], x * (8 if flag else 4))


@scenario
def a_failing_node_is_named() -> None:
    sess = session(model([node("Fails", ["x"], "a", run=0), node("Twice", ["a"], "y")], {"x": [8]}))
    x = floats(8)
    expect("NotImplemented", ["node 'n_a' (Fails)", "told to fail"], lambda: sess.run(None, {"x": x}))
    np.testing.assert_array_equal(sess.run(None, {"x": x})[0], 4 * x)


@scenario
def out_of_memory_is_explained() -> None:
    limit = 64 << 20
    greedy = session(model([node("Scratch", ["x"], "y", bytes=1 << 45)], {"x": [8]}))
    x = floats(8)
    words = ["node 'n_y' (Scratch)", "out of memory", str(1 << 45), "in use", "limit none"]
    for _ in range(2):
        expect("RuntimeException", words, lambda: greedy.run(None, {"x": x}))
    sess = session(CHAIN_MODEL, gpu_mem_limit=limit)
    big = np.zeros((1 << 20, 8), np.float32)
    expect("RuntimeException", ["out of memory", f"limit {limit}"], lambda: sess.run(None, {"x": big, "w": big}))
    small = floats(4, 8)
    np.testing.assert_array_equal(sess.run(None, {"x": small, "w": small})[0], chain(small, small))


@scenario
def options_are_checked() -> None:
    for options, words in (
        ({"no_such_option": 1}, ["unknown option 'no_such_option'", "gpu_mem_limit"]),
        ({"enable_cuda_graph": "maybe"}, ["enable_cuda_graph='maybe'", "neither 0 nor 1"]),
        ({"min_num_runs_before_cuda_graph_capture": 1}, ["min_num_runs_before_cuda_graph_capture='1'", "[2, 6]"]),
        ({"stream_aware": 1, "enable_cuda_graph": 1}, ["exclude each other"]),
        ({"device_id": 77}, ["device_id=77"]),
        ({"placement_file": "/no/such/folder/p.json"}, ["/no/such/folder/p.json"]),
    ):
        expect("InvalidArgument", words, lambda options=options: session(CHAIN_MODEL, cpu=True, **options))


@scenario
def sessions_run_in_threads() -> None:
    """Two sessions capture and run at once, and two threads share a third."""
    errors: list[BaseException] = []
    shared = session(CHAIN_MODEL)

    def work(seed: int, captured: bool) -> None:
        try:
            sess = session(CHAIN_MODEL, enable_cuda_graph=1) if captured else shared
            n = 50 + seed
            bound = Bound(sess, {"x": floats(n, 8), "w": floats(n, 8)}, (n, 8))
            for i in range(200):
                x, w = floats(n, 8, seed=i), floats(n, 8, seed=i + seed)
                graph = (i // 50) if captured else None
                np.testing.assert_array_equal(bound(graph=graph, x=x, w=w), chain(x, w))
        except BaseException as e:
            errors.append(e)

    threads = [threading.Thread(target=work, args=(s, s % 2 == 0)) for s in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors, errors


@scenario
def unsynchronised_runs_are_ordered() -> None:
    """Without the wait at the end of a run, copies to the host still see its result, and memory is not reused early."""
    nodes = [node("Spin", ["x"], "a"), node("Twice", ["a"], "b"), node("Plus", ["b", "a"], "y")]
    sess = session(model(nodes, {"x": ["n"]}))
    captured = session(model(nodes, {"x": ["n"]}), enable_cuda_graph=1)
    for s, graph in ((sess, None), (captured, 4)):
        bound = Bound(s, {"x": floats(5000)}, (5000,))
        for i in range(20):
            x = floats(5000, seed=i)
            np.testing.assert_array_equal(bound(graph=graph, sync=False, x=x), 3 * x)
    for i in range(10):  # device outputs of ORT's own making, from several runs in flight
        values = []
        for k in range(4):
            binding = sess.io_binding()
            binding.bind_cpu_input("x", floats(3000, seed=4 * i + k))
            binding.bind_output("y", "cuda", 0)
            sess.run_with_iobinding(binding, run_options(sync=False))
            values.append(binding.get_outputs()[0])
        for k, value in enumerate(values):
            np.testing.assert_array_equal(value.numpy(), 3 * floats(3000, seed=4 * i + k))


@scenario
def outputs_outlive_their_session() -> None:
    sess = session(CHAIN_MODEL)
    x = floats(6, 8)
    binding = sess.io_binding()
    binding.bind_cpu_input("x", x)
    binding.bind_cpu_input("w", x)
    binding.bind_output("y", "cuda", 0)
    sess.run_with_iobinding(binding)
    value = binding.get_outputs()[0]
    del binding, sess
    other = session(CHAIN_MODEL)
    other.run(None, {"x": x + 1, "w": x})
    np.testing.assert_array_equal(value.numpy(), chain(x, x))


@scenario
def stream_aware_mode_works() -> None:
    nodes = [
        node("Spin", ["x"], "a"),
        node("Neg", ["a"], "b"),
        node("Twice", ["b"], "c"),
        node("Plus", ["c", "a"], "y"),
    ]
    sess = session(model(nodes, {"x": ["n"]}), cpu=True, stream_aware=1)
    plain = session(CHAIN_MODEL)  # asked for its mode on the same thread, after
    for i in range(30):
        x = floats(4000, seed=i)
        np.testing.assert_array_equal(sess.run(None, {"x": x})[0], -x)
        y = floats(10, 8, seed=i)
        np.testing.assert_array_equal(plain.run(None, {"x": y, "w": y})[0], chain(y, y))


@scenario
def sessions_come_and_go() -> None:
    for i in range(20):
        sess = session(CHAIN_MODEL, enable_cuda_graph=i % 2)
        bound = Bound(sess, {"x": floats(9, 8), "w": floats(9, 8)}, (9, 8))
        for _ in range(3):
            np.testing.assert_array_equal(bound(graph=0), chain(floats(9, 8), floats(9, 8)))


@fake_scenario
def an_unsupported_architecture_is_an_error() -> None:
    os.environ["FAKE_CUDA_NO_CODE"] = "1"
    words = ["no machine code for Fake GPU (sm_90)", "built for: the fake device"]
    expect("NotImplemented", words, lambda: session(CHAIN_MODEL, cpu=True))


@fake_scenario
def graphs_need_memory_of_the_session() -> None:
    settings = ort.SessionOptions()
    settings.add_session_config_entry("session.use_env_allocators", "1")
    provider = (EP, {"enable_cuda_graph": "1"})
    words = ["use_env_allocators=1", "exclude each other"]
    expect("InvalidArgument", words, lambda: ort.InferenceSession(CHAIN_MODEL, settings, providers=[provider]))


@fake_scenario
def a_machine_without_a_driver_registers_no_device() -> None:
    assert not [d for d in ort.get_ep_devices() if d.ep_name == EP]
    assert EP not in ort.get_available_providers()


def used_bytes() -> int:
    """Device memory in use: of this process on the fake device, of everybody on a GPU."""
    library = ctypes.CDLL(sys.argv[1])
    if hasattr(library, "fake_device_bytes"):
        library.fake_device_bytes.restype = ctypes.c_size_t
        return int(library.fake_device_bytes())
    import torch

    free, total = torch.cuda.mem_get_info(0)
    return int(total - free)


@scenario
def memory_stays_flat() -> None:
    sess = session(CHAIN_MODEL, enable_cuda_graph=1)
    bounds = {g: Bound(sess, {"x": floats(n, 8), "w": floats(n, 8)}, (n, 8)) for g, n in ((1, 70_000), (-1, 3000))}

    def rounds(count: int) -> int:
        for i in range(count):
            for g, b in bounds.items():
                b(graph=g)
            if i % 10 == 9:
                sess.release_captured_graph(1)
                x = floats(1000 + i, 8)
                sess.run(None, {"x": x, "w": x}, run_options(-1))
        return used_bytes()

    rounds(500)  # every size has been seen then
    before = rounds(500)
    for _ in range(3):
        after = rounds(500)
        assert after == before, f"{after - before} bytes more"


@gpu_scenario
def a_fault_is_named_when_localised() -> None:
    os.environ["CUVIL_DEBUG_SYNC"] = "1"
    nodes = [node("Twice", ["x"], "a"), node("Fault", ["a"], "b"), node("Twice", ["b"], "y")]
    sess = session(model(nodes, {"x": [8]}))
    words = ["node 'n_b' (Fault)", "cudaErrorIllegalAddress", "in this node", "restart"]
    expect("RuntimeException", words, lambda: sess.run(None, {"x": floats(8)}))
    expect("RuntimeException", ["cudaErrorIllegalAddress"], lambda: sess.run(None, {"x": floats(8)}))


@gpu_scenario
def a_fault_is_an_error_without_localising() -> None:
    nodes = [node("Fault", ["x"], "b"), node("Twice", ["b"], "y")]
    sess = session(model(nodes, {"x": [8]}))
    expect("RuntimeException", ["cudaErrorIllegalAddress"], lambda: sess.run(None, {"x": floats(8)}))
    expect("RuntimeException", ["cudaErrorIllegalAddress"], lambda: sess.run(None, {"x": floats(8)}))


@gpu_scenario
def the_callers_stream_is_used() -> None:
    import torch

    stream = torch.cuda.Stream()
    for captured in (0, 1):
        sess = session(CHAIN_MODEL, user_compute_stream=stream.cuda_stream, enable_cuda_graph=captured)
        bound = Bound(sess, {"x": floats(64, 8), "w": floats(64, 8)}, (64, 8))
        for i in range(10):
            x = floats(64, 8, seed=i)
            np.testing.assert_array_equal(bound(graph=0, x=x, w=x), chain(x, x))


@gpu_scenario
def an_application_captures_around_a_run() -> None:
    """A graph captured from outside on the caller's stream keeps its memory, whatever runs after it."""
    import torch

    stream = torch.cuda.Stream()
    sess = session(CHAIN_MODEL, user_compute_stream=stream.cuda_stream)
    bound = Bound(sess, {"x": floats(64, 8), "w": floats(64, 8)}, (64, 8))
    for _ in range(2):
        bound()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        sess.run_with_iobinding(bound.binding, run_options(sync=False))
    for i in range(20):
        x = floats(64, 8, seed=i)
        for value in bound.inputs.values():
            value.update_inplace(x)
        with torch.cuda.stream(stream):
            graph.replay()
        np.testing.assert_array_equal(bound.output.numpy(), chain(x, x))
        other = floats(10 + i, 8, seed=i)
        np.testing.assert_array_equal(sess.run(None, {"x": other, "w": other})[0], chain(other, other))


@gpu_scenario
def launches_cost_little() -> None:
    """Prints microseconds a node of a chain of 200 one-element nodes, eager and captured."""
    import time

    nodes = [node("Twice", ["x" if i == 0 else f"t{i}"], "y" if i == 199 else f"t{i + 1}") for i in range(200)]
    for captured in (0, 1):
        sess = session(model(nodes, {"x": [1]}), enable_cuda_graph=captured)
        bound = Bound(sess, {"x": np.ones(1, np.float32)}, (1,))
        options = run_options(0)
        times = []
        for _ in range(60):
            start = time.perf_counter()
            for _ in range(10):
                sess.run_with_iobinding(bound.binding, options)
            times.append((time.perf_counter() - start) / 10)
        print(f"captured={captured}: {1e6 * sorted(times)[30] / 200:.2f} us a node", flush=True)


def main() -> None:
    """`scenarios.py LIBRARY NAME...`: runs the scenarios, each reported; exit code 1 when one fails."""
    library, names = sys.argv[1], sys.argv[2:]
    if names == ["a_machine_without_a_driver_registers_no_device"]:
        os.environ["FAKE_CUDA_DEVICES"] = "0"
    ort.register_execution_provider_library(EP, library)
    for name in names:
        SCENARIOS[name]()
        print("ok", name, flush=True)


if __name__ == "__main__":
    main()
