"""How many kernels a run launches, by capturing one on the session's own stream from outside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy.typing as npt
import onnxruntime

from cuvil_onnx.bench.device_io import BoundIO
from cuvil_onnx.runtime.cuda_driver import Stream, context
from cuvil_onnx.runtime.cuda_graph import record


def count_kernels(
    model: str,
    providers: Sequence[tuple[str, dict[str, str]]],
    feed: Mapping[str, npt.NDArray[Any]],
    outputs: Mapping[str, npt.NDArray[Any]],
) -> int | None:
    """Kernels of one eager run of ``model``; None when the run cannot be captured (it synchronises inside).

    Works for the built-in CUDA provider and for ours: both take ``user_compute_stream``. The captured run does not
    execute, so warm runs come first: they choose algorithms and fill the arenas.
    """
    stream = Stream(context(0))
    gpu, *rest = providers
    options = {**gpu[1], "enable_cuda_graph": "0", "user_compute_stream": str(stream.handle)}
    names, values = [gpu[0], *(n for n, _ in rest)], [options, *(o for _, o in rest)]
    session = onnxruntime.InferenceSession(model, None, names, values, enable_fallback=0)
    io = BoundIO(session, feed, outputs)
    run_options = onnxruntime.RunOptions()
    run_options.add_run_config_entry("gpu_graph_id", "-1")
    run_options.add_run_config_entry("disable_synchronize_execution_providers", "1")
    for _ in range(3):
        session.run_with_iobinding(io.binding, run_options)
    with stream.context:
        stream.synchronize()
        try:
            graph = record(stream, lambda: session.run_with_iobinding(io.binding, run_options), relaxed=True)
        except Exception:  # whatever class the provider's failure has, there is no count
            return None
    return sum(node.kind == "kernel" for node in graph.nodes())
