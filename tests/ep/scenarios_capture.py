"""CUDA Graphs: capture, replay, release, and what they must not disturb."""

from __future__ import annotations

import ctypes
import sys
import threading
from typing import Any

import numpy as np
import onnxruntime as ort

from tests.ep.harness import (
    CHAIN_MODEL,
    EP,
    Bound,
    chain,
    expect,
    fake_scenario,
    floats,
    model,
    node,
    on_gpu,
    run_options,
    scenario,
    session,
    used_bytes,
)


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


@fake_scenario
def an_application_captures_beside_the_session() -> None:
    """A result of the application's own capture never lies where a graph of the session writes: it says so once."""
    fake = ctypes.CDLL(sys.argv[1])
    fake.fake_stream.restype = fake.fake_end_capture.restype = ctypes.c_void_p
    stream = ctypes.c_void_p(fake.fake_stream())
    sess = session(CHAIN_MODEL, user_compute_stream=stream.value, enable_cuda_graph=1)
    value = on_gpu(floats(2000, 8))

    def run(graph: int, sync: bool = True) -> Any:
        binding = sess.io_binding()
        for name in ("x", "w"):
            binding.bind_ortvalue_input(name, value)
        binding.bind_output("y", "cuda", 0)
        sess.run_with_iobinding(binding, run_options(graph, sync))
        return binding

    first = run(1)  # its intermediates are free now, and replays go on writing there
    fake.fake_begin_capture(stream)
    expect("RuntimeError", ["capture the run once more"], lambda: run(-1, sync=False))
    fake.fake_end_capture(stream)
    fake.fake_begin_capture(stream)
    binding = run(-1, sync=False)
    graph = ctypes.c_void_p(fake.fake_end_capture(stream))
    for i in range(5):
        x = floats(2000, 8, seed=i)
        value.update_inplace(x)
        fake.fake_launch(graph, stream)
        value.update_inplace(x + 1)
        run(1)
        np.testing.assert_array_equal(binding.get_outputs()[0].numpy(), chain(x, x))
        np.testing.assert_array_equal(first.get_outputs()[0].numpy(), chain(x + 1, x + 1))


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


@fake_scenario
def graphs_need_memory_of_the_session() -> None:
    settings = ort.SessionOptions()
    settings.add_session_config_entry("session.use_env_allocators", "1")
    provider = (EP, {"enable_cuda_graph": "1"})
    words = ["use_env_allocators=1", "exclude each other"]
    expect("InvalidArgument", words, lambda: ort.InferenceSession(CHAIN_MODEL, settings, providers=[provider]))


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
