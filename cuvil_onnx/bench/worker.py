"""Measures variants in a process of their own: ``python -m cuvil_onnx.bench.worker JOBS.json RESULTS.json``.

GPU providers of different variants never share a process, and a crash costs one row of the table. Variants that share
one (all of them on the CPU) take turns. A job names a model file, a feed (npz) and how to run it; its result holds
figures, and its outputs go to an npz file.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy.typing as npt
import onnxruntime

from cuvil_onnx.bench.arrays import load_arrays, save_arrays
from cuvil_onnx.bench.timing import Timing, measure
from cuvil_onnx.runtime import cuda_driver

Array = npt.NDArray[Any]


@dataclass
class Job:
    """What to measure. ``ours``: through cuvil_onnx.InferenceSession. ``bound``: with I/O binding on the device."""

    model: str
    feed: str
    outputs: str
    providers: list[tuple[str, dict[str, str]]]
    output_names: list[str]
    ours: bool = False
    bound: bool = False
    budget_s: float = 3.0
    count_kernels: bool = False


@dataclass
class Result:
    """Figures of a variant; ``error`` is set instead of them when it could not run."""

    error: str | None = None
    p50: float = 0.0
    p90: float = 0.0
    p99: float = 0.0
    runs: int = 0
    runs_per_s: float = 0.0
    start_s: float = 0.0
    memory_mb: float | None = None
    kernels: int | None = None
    captured: bool = False
    nodes_on_cpu: list[str] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)


class _Prepared:
    """A session that is ready to be timed. A budget of 0 asks for its outputs alone."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self._feed = feed = load_arrays(job.feed)
        self._on_gpu = job.providers[0][0] != "CPUExecutionProvider"
        free = cuda_driver.context(0).memory_info()[0] if self._on_gpu else 0
        self._free = free
        start = time.perf_counter()
        self._session, self._captured = session, captured = _session(job)
        # A plain run of a stock session with CUDA Graph would capture its copies from the host: an id of -1 forbids it.
        plain = None if job.ours or not self._on_gpu else _run_options(-1)
        self._outputs = dict(zip(job.output_names, session.run(job.output_names, feed, plain), strict=True))
        self._start_s = time.perf_counter() - start
        self._io: Any = None
        self.call: Callable[[], object] = lambda: session.run(job.output_names, feed, plain)
        if job.bound and self._on_gpu:
            from cuvil_onnx.bench.device_io import BoundIO

            io = self._io = BoundIO(session, feed, self._outputs)
            options = None if job.ours else _run_options(1 if captured else -1)
            self.call = lambda: session.run_with_iobinding(io.binding, options)

    def finish(self, timing: Timing | None) -> Result:
        """The result; writes the outputs of the last run."""
        outputs = self._outputs if self._io is None else self._io.read()
        save_arrays(self.job.outputs, outputs)
        result = Result(start_s=self._start_s, versions={"onnxruntime": onnxruntime.__version__})
        if timing is not None:
            result = dataclasses.replace(result, **asdict(timing))
        if self._on_gpu:
            result.memory_mb = (self._free - cuda_driver.context(0).memory_info()[0]) / 2**20
        result.captured = self._captured
        if self.job.ours:
            result.captured = self._session.captured_graphs > 0
            result.nodes_on_cpu = [
                f"{n.op_type} {n.node}: {n.reason}"
                for n in self._session.placement()
                if self._on_gpu and n.provider == "CPUExecutionProvider" and "shape arithmetic" not in n.reason
            ]
        if self.job.count_kernels and self._on_gpu:
            from cuvil_onnx.bench.launches import count_kernels

            with contextlib.suppress(Exception):  # a count that fails must not cost the timings
                result.kernels = count_kernels(self.job.model, self.job.providers, self._feed, outputs)
        return result


def run(jobs: Sequence[Job]) -> list[Result]:
    """Runs jobs in this process, timed in turns; one that fails gives an error, and the others go on."""
    prepared = [_attempt(_Prepared, job) for job in jobs]
    ready = [p for p in prepared if isinstance(p, _Prepared)]
    timed = [p for p in ready if p.job.budget_s > 0]
    timings = dict(zip(map(id, timed), measure([p.call for p in timed], jobs[0].budget_s), strict=True))
    return [p if isinstance(p, Result) else _attempt(_Prepared.finish, p, timings.get(id(p))) for p in prepared]


def _attempt(function: Callable[..., Any], *args: Any) -> Any:
    try:
        return function(*args)
    except Exception as error:
        return Result(error=" ".join(f"{type(error).__name__}: {error}".split())[:500])


def _session(job: Job) -> tuple[Any, bool]:
    """The session, and whether stock ONNX Runtime accepted CUDA Graph for it."""
    names, options = [n for n, _ in job.providers], [o for _, o in job.providers]
    missing = [n for n in names if n not in onnxruntime.get_available_providers()]
    if missing:
        raise RuntimeError(f"{missing[0]} is not in this onnxruntime ({onnxruntime.__version__})")
    if job.ours:
        import cuvil_onnx

        return cuvil_onnx.InferenceSession(job.model, providers=names, provider_options=options), False
    wanted = options[0].get("enable_cuda_graph") == "1"
    try:
        return onnxruntime.InferenceSession(job.model, None, names, options, enable_fallback=0), wanted
    except Exception:
        if not wanted:
            raise
        # Control flow or CPU nodes: then stock ONNX Runtime at its best is without CUDA Graph.
        options[0] = {**options[0], "enable_cuda_graph": "0"}
        return onnxruntime.InferenceSession(job.model, None, names, options, enable_fallback=0), False


def _run_options(graph_id: int) -> Any:
    # Without an id ORT throws and catches an exception on every run, which would be unfair to it.
    options = onnxruntime.RunOptions()
    options.add_run_config_entry("gpu_graph_id", str(graph_id))
    return options


def main() -> None:
    job_file, result_file = sys.argv[1:3]
    jobs = [Job(**job) for job in json.loads(Path(job_file).read_text())["jobs"]]
    for job in jobs:
        job.providers = [(name, options) for name, options in job.providers]
    results = run(jobs)
    Path(result_file).write_text(json.dumps({"results": [asdict(result) for result in results]}))


if __name__ == "__main__":
    main()
