"""The two ways to a captured graph of a bound run: ONNX Runtime's own, and around it.

ONNX Runtime captures sessions whose nodes all lie with one provider, shape arithmetic on the CPU aside. Where it
refuses (control flow, nodes on the CPU, nodes with another GPU provider) the run itself is recorded from outside: one
warm run that does not synchronise, on the stream that all providers of the session share. Whatever such a run does on
the host happens once, while it is recorded. That is right for what depends on shapes and on inputs in host memory,
both parts of a graph's key; it is wrong for values that come from the GPU and go back to it. Those cross the border
by a copy, so a recorded run that holds one is refused, as is one with a callback on the host.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import onnxruntime

from cuvil_onnx.runtime.cuda_driver import CudaError, Stream
from cuvil_onnx.runtime.cuda_graph import Graph, record

# ONNX Runtime's own warm-ups number two; the provider measures its plans and fills its arena in them.
_WARM_RUNS = 2
_FATAL = 4

Replay = Callable[[Any], None]  # of a binding with the addresses that were captured


class Capture(Protocol):
    """How graphs of a session come about. ``graph_id`` is the caller's name for one."""

    def capture(self, graph_id: int, binding: Any, *, synchronize: bool) -> Replay:
        """Captures the run of a binding whose addresses are fixed, and returns what replays it.

        The run has taken place when this returns, or is enqueued on the session's stream without ``synchronize``;
        so it is for replays. Raises what made the capture impossible; then nothing of it stays.
        """

    def release(self, graph_id: int) -> None:
        """Drops a graph; ids that hold none are ignored."""


class OrtCapture:
    """Through ONNX Runtime: the session was created with the provider option ``enable_cuda_graph``."""

    def __init__(self, session: Any) -> None:
        self._session = session

    def capture(self, graph_id: int, binding: Any, *, synchronize: bool) -> Replay:
        session, options = self._session, run_options(graph_id, synchronize)

        def run(binding: Any) -> None:
            session.run_with_iobinding(binding, options)

        run(binding)
        return run

    def release(self, graph_id: int) -> None:
        # Older releases of ONNX Runtime have no such method; the provider then drops its own least recently used one.
        release = getattr(self._session, "release_captured_graph", None)
        if release is not None:
            release(graph_id)


class OutsideCapture:
    """Around ONNX Runtime: every provider of the session works on ``stream``."""

    def __init__(self, session: Any, stream: Stream) -> None:
        self._session, self._stream = session, stream
        self._graphs: dict[int, Graph] = {}
        self._options = run_options(-1, synchronize=False)
        self._recorded = run_options(-1, synchronize=False)
        self._recorded.log_severity_level = _FATAL  # a run that cannot be recorded is no error of the user's

    def capture(self, graph_id: int, binding: Any, *, synchronize: bool) -> Replay:
        stream = self._stream
        with stream.context:
            for _ in range(_WARM_RUNS):
                self._session.run_with_iobinding(binding, self._options)
            stream.synchronize()
            graph = record(stream, lambda: self._session.run_with_iobinding(binding, self._recorded))
            refuse_host_work(graph)
            graph.instantiate()
        self._graphs[graph_id] = graph

        def run(_binding: Any) -> None:
            with stream.context:
                graph.launch(stream)
                if synchronize:
                    stream.synchronize()

        run(binding)
        return run

    def release(self, graph_id: int) -> None:
        self._graphs.pop(graph_id, None)


def refuse_host_work(graph: Graph) -> None:
    """Raises CudaError for a graph that would repeat copies from or to host memory, or call back into the host."""
    for node in graph.nodes():
        if node.kind in ("kernel", "memset", "empty"):
            continue
        if node.kind != "memcpy" or node.touches_host():
            what = "a copy between host and GPU" if node.kind == "memcpy" else f"a {node.kind} node"
            raise CudaError(f"the run holds {what}: replaying it would repeat what the host did at capture")


def run_options(graph_id: int, synchronize: bool) -> Any:
    """Run options with ``gpu_graph_id``, and without the wait at the end of a run unless ``synchronize``."""
    options = onnxruntime.RunOptions()
    options.add_run_config_entry("gpu_graph_id", str(graph_id))
    if not synchronize:
        options.add_run_config_entry("disable_synchronize_execution_providers", "1")
    return options
