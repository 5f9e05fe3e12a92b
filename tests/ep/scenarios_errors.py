"""Errors a user can act on, and sessions that survive them."""

from __future__ import annotations

import os

import numpy as np
import onnxruntime as ort

from tests.ep.harness import (
    CHAIN_MODEL,
    EP,
    chain,
    expect,
    fake_scenario,
    floats,
    gpu_scenario,
    model,
    node,
    scenario,
    session,
)


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


@fake_scenario
def an_unsupported_architecture_is_an_error() -> None:
    os.environ["FAKE_CUDA_NO_CODE"] = "1"
    words = ["no machine code for Fake GPU (sm_90)", "built for: the fake device"]
    expect("NotImplemented", words, lambda: session(CHAIN_MODEL, cpu=True))


@fake_scenario
def a_machine_without_a_driver_registers_no_device() -> None:
    assert not [d for d in ort.get_ep_devices() if d.ep_name == EP]
    assert EP not in ort.get_available_providers()


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
