"""Shared by the tests that need a GPU; all of them are skipped where CuvilExecutionProvider or a device is missing."""

from __future__ import annotations

import os
from collections.abc import Callable

import onnx
import onnxruntime as ort
import pytest

from cuvil_onnx.runtime.registration import EP_NAME, unavailable_reason

# Free memory is a figure of the whole card: it says nothing while other processes come and go on it.
SHARED_CARD = "PYTEST_XDIST_WORKER" in os.environ or "CUVIL_SHARED_CARD" in os.environ
measures_the_card = pytest.mark.skipif(SHARED_CARD, reason="measures a card that other tests use too")


def _one_thread_a_session() -> None:
    """Sessions get no pool of threads, which would spin for the cores of the other test processes (load 1,000 seen)."""
    create = ort.InferenceSession.__init__

    class OneThread(ort.SessionOptions):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.intra_op_num_threads = 1

    def __init__(self: object, model: object, sess_options: object = None, *args: object, **kwargs: object) -> None:
        create(self, model, OneThread() if sess_options is None else sess_options, *args, **kwargs)

    ort.SessionOptions = OneThread
    ort.InferenceSession.__init__ = __init__


if SHARED_CARD:
    _one_thread_a_session()


@pytest.fixture(scope="session")
def ep_session() -> Callable[..., ort.InferenceSession]:
    """`ep_session(model, **options)` -> a plain ONNX Runtime session whose every node runs in CuvilExecutionProvider.

    `options` are provider options; values become strings. Graph optimizations are off, so that the node under test is
    the node that runs. Creating the session fails when a node would fall back to the CPU.
    """
    if (reason := unavailable_reason()) is not None:
        pytest.skip(reason)

    def make(model: onnx.ModelProto | bytes, **options: object) -> ort.InferenceSession:
        settings = ort.SessionOptions()
        settings.log_severity_level = 3
        settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        settings.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
        data = model if isinstance(model, bytes) else model.SerializeToString()
        provider = (EP_NAME, {k: str(v) for k, v in options.items()})
        session = ort.InferenceSession(data, settings, providers=[provider])
        assert session.get_providers()[0] == EP_NAME
        session.disable_fallback()
        return session

    return make
