"""Recording runs from outside, on a pretended stream (tests/gpu/test_coexistence.py repeats it on a real one)."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import pytest

from cuvil_onnx.runtime import capture as module
from cuvil_onnx.runtime.capture import OutsideCapture, refuse_host_work
from cuvil_onnx.runtime.cuda_driver import CudaError


def node(kind, touches_host=False):
    return SimpleNamespace(kind=kind, touches_host=lambda: touches_host)


class Graph:
    def __init__(self, nodes):
        self._nodes, self.launched, self.ready = nodes, 0, False

    def nodes(self):
        return self._nodes

    def instantiate(self):
        self.ready = True

    def launch(self, _stream):
        assert self.ready
        self.launched += 1


class Stream:
    """Synchronising while a run is recorded would spoil the capture."""

    def __init__(self):
        self.context = contextlib.nullcontext()
        self.recording, self.synchronized = False, 0

    def synchronize(self):
        assert not self.recording
        self.synchronized += 1


class Session:
    """Each run is (recorded?, id, waits?)."""

    def __init__(self, stream, fails_recording=False):
        self.runs, self._stream, self._fails = [], stream, fails_recording

    def run_with_iobinding(self, _binding, options):
        if self._stream.recording and self._fails:
            raise RuntimeError("a copy between host and GPU cannot be part of a CUDA graph")
        try:
            waits = options.get_run_config_entry("disable_synchronize_execution_providers") != "1"
        except RuntimeError:
            waits = True
        self.runs.append((self._stream.recording, options.get_run_config_entry("gpu_graph_id"), waits))


@pytest.fixture
def stream():
    return Stream()


@pytest.fixture
def recorded(monkeypatch, stream):
    """The graph that recording gives; its nodes can be chosen."""
    graph = Graph([node("kernel"), node("memset"), node("memcpy")])

    def record(given, work):
        assert given is stream
        stream.recording = True
        try:
            work()
        finally:
            stream.recording = False
        return graph

    monkeypatch.setattr(module, "record", record)
    return graph


def test_a_run_is_warmed_up_recorded_and_replayed_without_the_session(stream, recorded):
    session = Session(stream)
    replay = OutsideCapture(session, stream).capture(7, "binding", synchronize=True)
    assert session.runs == [(False, "-1", False), (False, "-1", False), (True, "-1", False)]
    assert recorded.launched == 1  # recording executed nothing
    before = stream.synchronized
    replay("binding")
    assert len(session.runs) == 3
    assert recorded.launched == 2
    assert stream.synchronized == before + 1


def test_without_synchronize_nothing_waits_on_replay(stream, recorded):
    replay = OutsideCapture(Session(stream), stream).capture(7, "binding", synchronize=False)
    before = stream.synchronized
    replay("binding")
    assert stream.synchronized == before


@pytest.mark.parametrize("culprit", [node("memcpy", touches_host=True), node("host"), node("other")])
def test_what_the_host_takes_part_in_is_refused(stream, recorded, culprit):
    recorded._nodes = [node("kernel"), culprit]
    capture = OutsideCapture(Session(stream), stream)
    with pytest.raises(CudaError, match="what the host did at capture"):
        capture.capture(7, "binding", synchronize=True)
    assert not recorded.ready
    capture.release(7)  # nothing is there


def test_work_of_the_gpu_alone_is_accepted():
    refuse_host_work(Graph([node("kernel"), node("memset"), node("empty"), node("memcpy")]))


def test_a_run_that_cannot_be_recorded_raises_its_own_error(stream, recorded):
    with pytest.raises(RuntimeError, match="cannot be part of a CUDA graph"):
        OutsideCapture(Session(stream, fails_recording=True), stream).capture(7, "binding", synchronize=True)
    assert not stream.recording


def test_a_released_graph_is_dropped(stream, recorded):
    capture = OutsideCapture(Session(stream), stream)
    capture.capture(7, "binding", synchronize=True)
    assert list(capture._graphs) == [7]
    capture.release(7)
    assert not capture._graphs
