"""Which providers a session is created with, in which order it is tried, and how it is captured. No GPU is needed."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from cuvil_onnx.runtime import opening, providers, stream_pool
from cuvil_onnx.runtime.capture import OrtCapture, OutsideCapture
from cuvil_onnx.runtime.opening import open_session

OURS, CUDA, CPU = "CuvilExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider"


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    """A GPU, a stream and onnxruntime-gpu, all pretended. Returns the streams in the pool."""
    free = [SimpleNamespace(handle=77)]
    monkeypatch.setattr(providers, "unavailable_reason", lambda: None)
    monkeypatch.setattr(stream_pool, "take", lambda _device: free.pop())
    monkeypatch.setattr(stream_pool, "give_back", free.append)
    monkeypatch.setattr(providers.onnxruntime, "get_available_providers", lambda: [OURS, CUDA, CPU])
    return free


class Runtime:
    """Creates sessions whose nodes lie where ``places`` says: {providers: [provider of each node]}."""

    def __init__(self, monkeypatch, places, ort_captures=False, fails=()):
        self.created, self._places, self._captures, self._fails = [], places, ort_captures, fails
        monkeypatch.setattr(
            opening,
            "assignment",
            lambda session, _reasons, _default: [SimpleNamespace(provider=p, reason="") for p in session.nodes],
        )

    def __call__(self, resolved):
        wanted = (resolved.ours or {}).get("enable_cuda_graph")
        self.created.append((tuple(resolved.names), wanted))
        if tuple(resolved.names) in self._fails:
            raise RuntimeError("cannot be created")
        if wanted == "1" and not self._captures:
            raise RuntimeError("refused")
        self.options = [dict(o) for o in resolved.options]
        return SimpleNamespace(nodes=self._places[tuple(resolved.names)])


def start(create, names=None, capture=True, no_cpu=False):
    resolved = providers.resolve(names, None, no_cpu=no_cpu)
    return open_session(create, resolved, capture=capture, max_graphs=4, may_add_cuda=names is None)


def test_a_session_that_is_ours_alone_stays_so(monkeypatch):
    create = Runtime(monkeypatch, {(OURS, CPU): [OURS, OURS]}, ort_captures=True)
    opened = start(create)
    assert create.created == [((OURS, CPU), "1")]
    assert isinstance(opened.capture, OrtCapture)


def test_a_node_on_the_cpu_brings_the_cuda_provider_behind_ours_on_the_same_stream(monkeypatch):
    create = Runtime(monkeypatch, {(OURS, CPU): [OURS, CPU], (OURS, CUDA, CPU): [OURS, CUDA]})
    opened = start(create)
    assert create.created == [((OURS, CPU), "1"), ((OURS, CPU), "0"), ((OURS, CUDA, CPU), "0")]
    assert opened.session.nodes == [OURS, CUDA]
    ours, cuda, _ = create.options
    assert ours["user_compute_stream"] == cuda["user_compute_stream"] == "77"
    assert cuda["use_tf32"] == "0"
    assert isinstance(opened.capture, OutsideCapture)
    assert opened.eager_reason is None


def test_a_cuda_provider_that_takes_nothing_is_left_out(monkeypatch):
    create = Runtime(monkeypatch, {(OURS, CPU): [OURS, CPU], (OURS, CUDA, CPU): [OURS, CPU]})
    opened = start(create)
    assert create.created[-1] == ((OURS, CUDA, CPU), "0")
    assert opened.session.nodes == [OURS, CPU]
    assert isinstance(opened.capture, OutsideCapture)


def test_a_cuda_provider_that_cannot_be_loaded_changes_nothing(monkeypatch):
    create = Runtime(monkeypatch, {(OURS, CPU): [OURS, CPU]}, fails=[(OURS, CUDA, CPU)])
    assert start(create).session.nodes == [OURS, CPU]


def test_providers_of_the_callers_choice_are_not_added_to(monkeypatch):
    create = Runtime(monkeypatch, {(OURS, CPU): [OURS, CPU]})
    start(create, [OURS, CPU])
    assert {names for names, _ in create.created} == {(OURS, CPU)}


def test_without_capture_the_cuda_provider_serves_too(monkeypatch):
    create = Runtime(monkeypatch, {(OURS, CPU): [OURS, CPU], (OURS, CUDA, CPU): [OURS, CUDA]})
    opened = start(create, capture=False)
    assert opened.session.nodes == [OURS, CUDA]
    assert opened.capture is None
    assert opened.eager_reason == "switched off"


def test_the_cuda_provider_first_means_eager_runs(monkeypatch):
    create = Runtime(monkeypatch, {(CUDA, OURS, CPU): [CUDA, OURS]})
    opened = start(create, [CUDA, OURS, CPU])
    assert opened.capture is None
    assert "CUDAExecutionProvider comes first" in opened.eager_reason
    assert create.options[0]["user_compute_stream"] == create.options[1]["user_compute_stream"] == "77"


def test_where_the_cpu_is_forbidden_the_cuda_provider_saves_the_session(monkeypatch):
    create = Runtime(monkeypatch, {(OURS, CUDA): [OURS, CUDA]}, fails=[(OURS,)])
    assert start(create, no_cpu=True).session.nodes == [OURS, CUDA]


def test_a_node_that_the_cpu_cannot_run_brings_the_cuda_provider_too(monkeypatch):
    create = Runtime(monkeypatch, {(OURS, CUDA, CPU): [OURS, CUDA]}, fails=[(OURS, CPU)])
    opened = start(create)
    assert opened.session.nodes == [OURS, CUDA]
    assert isinstance(opened.capture, OutsideCapture)


def test_the_first_error_is_reported_when_nothing_helps(monkeypatch):
    create = Runtime(monkeypatch, {(OURS, CPU): []}, fails=[(OURS, CPU), (OURS, CUDA, CPU)])
    with pytest.raises(RuntimeError, match="OURS alone"):
        start(lambda chosen: create(chosen) if chosen.cuda else (_ for _ in ()).throw(RuntimeError("OURS alone")))


def test_a_failure_gives_the_stream_back(monkeypatch, machine):
    create = Runtime(monkeypatch, {}, fails=[(OURS, CPU)])
    with pytest.raises(RuntimeError, match="cannot be created"):
        start(create)
    assert [stream.handle for stream in machine] == [77]


def test_two_streams_for_two_providers_are_refused(monkeypatch, machine):
    create = Runtime(monkeypatch, {})
    with pytest.raises(ValueError, match="same user_compute_stream"):
        start(create, [(OURS, {"user_compute_stream": "1"}), (CUDA, {"user_compute_stream": "2"})])
    assert create.created == []


def test_other_gpu_providers_keep_their_streams(monkeypatch):
    names = (OURS, "TensorrtExecutionProvider", CPU)
    create = Runtime(monkeypatch, {names: [OURS]})
    opened = start(create, list(names))
    assert opened.stream is None
    assert "TensorrtExecutionProvider" in opened.eager_reason
