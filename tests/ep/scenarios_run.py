"""Sessions that run without CUDA Graphs: claims, placement, memory, streams."""

from __future__ import annotations

import json
import pathlib
import tempfile

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper

from tests.ep.harness import (
    CHAIN_MODEL,
    EP,
    Bound,
    chain,
    floats,
    model,
    node,
    run_options,
    scenario,
    session,
    wait_where_another_provider_copies,
)


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
    session(data, optimize=False, shapes_on_cpu=0)  # or this would fail: no node may be on the CPU
    bound = Bound(sess, {"x": floats(4, 8)}, (32, 1))
    for i in range(6):
        x = floats(4, 8, seed=i)
        np.testing.assert_array_equal(bound(graph=0, x=x), 4 * x.reshape(32, 1))


@scenario
def one_value_for_host_and_gpu_stays_on_the_cpu() -> None:
    with tempfile.TemporaryDirectory() as folder:
        placement = pathlib.Path(folder) / "placement.json"
        one = {"one": np.array([1], np.int64)}
        data = model(
            [node("Reshape", ["one", "one"], "r"), node("Reshape", ["x", "r"], "y")], {"x": [1]}, initializers=one
        )
        sess = session(data, cpu=True, optimize=False, shapes_on_cpu=0, placement_file=placement)
        rows = {n["name"]: n for n in json.loads(placement.read_text())["nodes"]}
    assert [n for n, r in rows.items() if not r["taken"]] == ["n_r"], rows
    assert rows["n_r"]["reason"] == "inputs 0 and 1 are one value, wanted on the host and on the GPU", rows
    np.testing.assert_array_equal(sess.run(None, {"x": np.ones(1, np.float32)})[0], [1])


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
    assert rows == dict.fromkeys(["n_t", "n_i", "n_y", "n_p", "n_q"], True), rows
    x = floats(8)
    for flag in (True, False):
        np.testing.assert_array_equal(sess.run(None, {"x": x, "c": np.array(flag)})[0], x * (8 if flag else 4))


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
        wait_where_another_provider_copies(binding, sync=False)
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
