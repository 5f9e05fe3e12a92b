"""Models, sessions and bindings for the scenarios of the execution provider's core."""

from __future__ import annotations

import ctypes
import sys
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
        wait_where_another_provider_copies(self.binding, sync)
        return self.output.numpy()


def wait_where_another_provider_copies(binding: Any, sync: bool) -> None:
    """onnxruntime-gpu copies "cuda" values by its own CUDA provider, which knows nothing of this provider's stream."""
    if not sync and "CUDAExecutionProvider" in ort.get_available_providers():
        binding.synchronize_outputs()


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


def used_bytes() -> int:
    """Device memory in use: of this process on the fake device, of everybody on a GPU."""
    library = ctypes.CDLL(sys.argv[1])
    if hasattr(library, "fake_device_bytes"):
        library.fake_device_bytes.restype = ctypes.c_size_t
        return int(library.fake_device_bytes())
    import torch

    free, total = torch.cuda.mem_get_info(0)
    return int(total - free)
