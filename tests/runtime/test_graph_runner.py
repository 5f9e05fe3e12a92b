"""Choosing between eager run, capture and replay, on a pretended GPU (tests/gpu repeats it on a real one)."""

from __future__ import annotations

import numpy as np
import pytest

from cuvil_onnx.runtime import buffers
from cuvil_onnx.runtime.capture import OrtCapture
from cuvil_onnx.runtime.eager import EagerRunner
from cuvil_onnx.runtime.graph_cache import GraphCache
from cuvil_onnx.runtime.graph_runner import GraphRunner
from cuvil_onnx.runtime.signature import Signature
from tests.runtime import fake_gpu


@pytest.fixture(autouse=True)
def host_memory(monkeypatch):
    monkeypatch.setattr(buffers, "DeviceMemory", fake_gpu.Memory)
    monkeypatch.setattr(buffers, "PinnedBuffer", fake_gpu.Memory)


def make(session, policy="auto", limit=16):
    signature, stream = Signature(session), fake_gpu.Stream()
    cache = GraphCache(limit, session.release_captured_graph)
    eager = EagerRunner(session, signature, None)
    runner = GraphRunner(session, signature, stream, eager, cache, policy, OrtCapture(session))

    def run(x, reuse_outputs=False, **more):
        feed = signature.check({"x": x, **more}, None)
        return runner.run(["y"], feed, to_device=False, reuse_outputs=reuse_outputs)[0]

    run.stream = stream
    return run, cache


def rows(n, seed=0):
    return np.random.default_rng(seed).standard_normal((n, 3)).astype(np.float32)


def test_auto_captures_at_second_sight_and_replays_after():
    session = fake_gpu.Session()
    run, cache = make(session)
    for seed in range(5):
        np.testing.assert_array_equal(run(rows(2, seed)), 2 * rows(2, seed))
    assert len(cache) == 1
    assert (session.eager_runs, session.replays) == (2, 3)  # the second run is eager too, then captured


def test_one_shape_only_is_captured_at_once():
    session = fake_gpu.Session(static=True)
    run, _ = make(session)
    run(rows(2))
    np.testing.assert_array_equal(run(rows(2, 1)), 2 * rows(2, 1))
    assert (session.eager_runs, session.replays) == (1, 1)


def test_shapes_alternate_without_meeting_each_other():
    session = fake_gpu.Session()
    run, cache = make(session, policy="always")
    for i in range(30):
        x = rows(1 + i % 3, i)
        np.testing.assert_array_equal(run(x), 2 * x)
    assert len(cache) == 3
    assert session.replays == 27


def test_eviction_releases_the_graph_and_a_returning_shape_is_captured_anew():
    session = fake_gpu.Session()
    run, cache = make(session, policy="always", limit=2)
    for n in (1, 2, 3, 1, 2, 3):
        np.testing.assert_array_equal(run(rows(n)), 2 * rows(n))
    assert len(cache) == 2
    assert len(session.released) == 4
    assert len(session.graphs) == 2


def test_outputs_are_fresh_unless_reuse_is_asked_for():
    run, _ = make(fake_gpu.Session(), policy="always")
    run(rows(2))
    kept = run(rows(2, 1))
    viewed = run(rows(2, 2), reuse_outputs=True)
    run(rows(2, 3))
    np.testing.assert_array_equal(kept, 2 * rows(2, 1))
    np.testing.assert_array_equal(viewed, 2 * rows(2, 3))


def test_a_failing_capture_runs_eagerly_and_keeps_the_reason():
    session = fake_gpu.Session()
    session.fail_capture = True
    run, cache = make(session)
    for seed in range(4):
        np.testing.assert_array_equal(run(rows(2, seed)), 2 * rows(2, seed))
    assert cache.refusals() == ["cannot capture: a node syncs"]
    assert len(session.released) == 1  # the failed one, once: it is not tried again


def test_always_reports_a_failing_capture():
    session = fake_gpu.Session()
    session.fail_capture = True
    run, _ = make(session, policy="always")
    before = run.stream.synchronized
    with pytest.raises(RuntimeError, match="a node syncs"):
        run(rows(2))
    # Nothing of the attempt stays: no copy in flight, no half of a graph under the id.
    assert run.stream.synchronized == before + 1
    assert len(session.released) == 1


def test_empty_inputs_run_eagerly():
    session = fake_gpu.Session()
    run, cache = make(session)
    for _ in range(3):
        assert run(rows(0)).shape == (0, 3)
    assert len(cache) == 0
    assert "no element" in cache.refusals()[0]


def test_a_value_on_the_host_is_part_of_the_key():
    """ONNX Runtime reads such an input while capturing only: another value needs another graph."""
    session = fake_gpu.Session(host_input=True)
    run, cache = make(session, policy="always")
    for n in (1, 2, 1, 2):
        np.testing.assert_array_equal(run(rows(3), n=np.array([n])), 2 * rows(3)[:n])
    assert len(cache) == 2


def test_a_run_that_fails_leaves_the_stream_synchronised():
    session = fake_gpu.Session()
    run, _ = make(session, policy="always")
    run(rows(2))
    session.run_with_iobinding = None
    before = run.stream.synchronized
    with pytest.raises(TypeError):
        run(rows(2))
    assert run.stream.synchronized == before + 1
