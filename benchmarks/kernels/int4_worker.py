"""Times one contender of benchmarks.kernels.int4 in a process of its own: ``python -m ... JOB.json RESULT.json``.

The job: ``{"model", "weights": [k, n, block, bits], "rows": [m, ...], "contender": "cuvil" | "stock" | "torch"}``. The
result: ``{"us": {m: microseconds}, "error": {m: times the bound}}``, the error for our own only, and ``copy``, the
bytes that the card reads and writes in a millisecond of copying.

All products of a run are recorded into one CUDA graph and the graph is replayed between two events: nothing of the host
is in the figure, and the weights take turns, so that none is in the L2 cache.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime

from benchmarks.kernels.int4_model import Weights
from cuvil_onnx.bench.kernels import copy_bytes_per_ms
from cuvil_onnx.runtime.cuda_driver import DeviceMemory, Event, Stream, context
from cuvil_onnx.runtime.cuda_graph import record
from cuvil_onnx.runtime.providers import CUDA
from cuvil_onnx.runtime.registration import EP_NAME

_SAMPLES, _SAMPLE_US = 15, 2000.0
_FLOAT16 = 10


def median_us(stream: Stream, launch: Callable[[], object]) -> float:
    """Microseconds of one launch; the median of samples of a few milliseconds."""
    start, end = Event(stream.context), Event(stream.context)

    def sample(times: int) -> float:
        start.record(stream)
        for _ in range(times):
            launch()
        end.record(stream)
        return 1e3 * end.milliseconds_since(start) / times

    sample(2)
    times = max(1, min(100, round(_SAMPLE_US / max(sample(1), 1.0))))
    return statistics.median(sample(times) for _ in range(_SAMPLES))


class SessionContender:
    """A session of ONNX Runtime on a stream of ours. All outputs lie in one place: they are overwritten in turn."""

    def __init__(self, model: str, weights: Weights, provider: str, most_rows: int) -> None:
        self._weights, self._stream = weights, Stream(context(0))
        settings = onnxruntime.SessionOptions()
        settings.log_severity_level = 3
        settings.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
        options = {"user_compute_stream": str(self._stream.handle)}
        self._session = onnxruntime.InferenceSession(model, settings, [provider], [options], enable_fallback=0)
        self._x = DeviceMemory(self._stream.context, most_rows * weights.k * 2)
        self._y = DeviceMemory(self._stream.context, most_rows * weights.n * 2)
        self._last = DeviceMemory(self._stream.context, most_rows * weights.n * 2)

    def _bound(self, m: int) -> Callable[[], object]:
        weights = self._weights
        binding = self._session.io_binding()
        binding.bind_input("x", "cuda", 0, _FLOAT16, (m, weights.k), self._x.address)
        for i in range(weights.nodes):
            # The last product is the one that is checked.
            memory = self._last if i == weights.nodes - 1 else self._y
            binding.bind_output(f"y{i}", "cuda", 0, _FLOAT16, (m, weights.n), memory.address)
        options = onnxruntime.RunOptions()
        options.add_run_config_entry("gpu_graph_id", "-1")
        options.add_run_config_entry("disable_synchronize_execution_providers", "1")
        return lambda: self._session.run_with_iobinding(binding, options)

    def measure(self, m: int) -> tuple[float, float]:
        """Microseconds a product, and the largest error of some columns, as a part of what the tests allow."""
        weights, stream = self._weights, self._stream
        x = np.random.default_rng(m).standard_normal((m, weights.k)).astype(np.float16)
        run = self._bound(m)
        with stream.context:
            stream.copy_to_device(self._x.address, x.ctypes.data, x.nbytes)
            for _ in range(2):
                run()
            stream.synchronize()
            graph = record(stream, run, relaxed=True)
            graph.instantiate()
            us = median_us(stream, lambda: graph.launch(stream)) / weights.nodes
            y = np.empty((m, weights.n), np.float16)
            stream.copy_to_host(y.ctypes.data, self._last.address, y.nbytes)
            stream.synchronize()
        return us, self._error(x, y)

    def _error(self, x: npt.NDArray[Any], y: npt.NDArray[Any]) -> float:
        weights = self._weights
        columns = np.linspace(0, weights.n - 1, 64).astype(np.int64)
        rows = np.unique(np.linspace(0, len(x) - 1, 32).astype(np.int64))
        w = weights.columns((weights.nodes - 1) % weights.count, columns)
        left = x[rows].astype(np.float64)
        exact, size = left @ w.T, np.abs(left) @ np.abs(w.T)
        bound = 2 * (2.0**-11 * np.abs(exact) + 2 * weights.k * 2.0**-24 * size)  # as tests/gpu/test_matmul_nbits.py
        bound += 2.0**-11 * size
        return float((np.abs(y[np.ix_(rows, columns)].astype(np.float64) - exact) / bound).max())


class TorchContender:
    """cuBLAS through PyTorch: the products with weights of 16 bits."""

    def __init__(self, weights: Weights) -> None:
        import torch

        self._torch, self._weights, self._stream = torch, weights, Stream(context(0))
        self._count = max(2, -(-(160 << 20) // (weights.k * weights.n * 2)))
        size = (weights.k, weights.n)
        self._w = [torch.randn(size, dtype=torch.float16, device="cuda") / 64 for _ in range(self._count)]

    def measure(self, m: int) -> tuple[float, float]:
        torch = self._torch
        x = torch.randn((m, self._weights.k), dtype=torch.float16, device="cuda")
        y = torch.empty((m, self._weights.n), dtype=torch.float16, device="cuda")
        side = torch.cuda.ExternalStream(self._stream.handle)
        with torch.cuda.stream(side):
            for w in self._w:
                torch.matmul(x, w, out=y)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=side):
            for w in self._w:
                torch.matmul(x, w, out=y)
        with torch.cuda.stream(side), self._stream.context:
            return median_us(self._stream, graph.replay) / self._count, 0.0


def run(job: dict[str, Any]) -> dict[str, Any]:
    weights = Weights(*job["weights"])
    if job["contender"] == "torch":
        contender: Any = TorchContender(weights)
    else:
        provider = EP_NAME if job["contender"] == "cuvil" else CUDA
        contender = SessionContender(job["model"], weights, provider, max(job["rows"]))
    result: dict[str, Any] = {"us": {}, "error": {}, "onnxruntime": onnxruntime.__version__}
    for m in job["rows"]:
        try:
            result["us"][m], result["error"][m] = contender.measure(m)
        except Exception as error:  # of whatever class: one figure less, the others count
            result.setdefault("notes", []).append(f"M = {m}: {' '.join(str(error).split())[:300]}")
    if job["contender"] == "cuvil":
        result["copy"] = copy_bytes_per_ms()
    return result


def main() -> None:
    job_file, result_file = sys.argv[1:3]
    try:
        result = run(json.loads(Path(job_file).read_text()))
    except Exception as error:
        result = {"error": " ".join(f"{type(error).__name__}: {error}".split())[:500]}
    Path(result_file).write_text(json.dumps(result))


if __name__ == "__main__":
    main()
