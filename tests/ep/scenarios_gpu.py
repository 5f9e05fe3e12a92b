"""What only a real GPU and PyTorch on it can show."""

from __future__ import annotations

import numpy as np

from tests.ep.harness import CHAIN_MODEL, Bound, chain, floats, gpu_scenario, model, node, run_options, session


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
        stream.synchronize()  # nothing else orders the replay before the copy of the output
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
