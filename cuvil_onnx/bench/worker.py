"""Measures one variant in a process of its own: ``python -m cuvil_onnx.bench.worker JOB.json RESULT.json``.

Providers of different variants never share a process, and a crash costs one row of the table. The job names a model
file, a feed (npz) and how to run it; the result holds figures, and the outputs go to an npz file.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime

from cuvil_onnx.bench.timing import measure
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


def run(job: Job) -> Result:
    """Runs a job in this process."""
    feed = dict(np.load(job.feed))
    on_gpu = job.providers[0][0] != "CPUExecutionProvider"
    free = cuda_driver.context(0).memory_info()[0] if on_gpu else 0
    start = time.perf_counter()
    session, captured = _session(job)
    # A plain run of a stock session with CUDA Graph would capture its copies from the host: kept out with an id of -1.
    plain = None if job.ours or not on_gpu else _run_options(-1)
    outputs = dict(zip(job.output_names, session.run(job.output_names, feed, plain), strict=True))
    start_s = time.perf_counter() - start
    call: Callable[[], object] = lambda: session.run(job.output_names, feed, plain)  # noqa: E731
    if job.bound and on_gpu:
        from cuvil_onnx.bench.device_io import BoundIO

        io = BoundIO(session, feed, outputs)
        options = None if job.ours else _run_options(1 if captured else -1)
        call = lambda: session.run_with_iobinding(io.binding, options)  # noqa: E731
    timing = measure(call, job.budget_s)
    if job.bound and on_gpu:
        outputs = io.read()
    # As float32 where NumPy's file format has no name for the type (bfloat16).
    np.savez(job.outputs, **{n: a.astype(np.float32) if a.dtype.kind == "V" else a for n, a in outputs.items()})
    result = Result(**asdict(timing), start_s=start_s, versions={"onnxruntime": onnxruntime.__version__})
    if on_gpu:
        result.memory_mb = (free - cuda_driver.context(0).memory_info()[0]) / 2**20
    if job.ours:
        result.captured = session.captured_graphs > 0
        result.nodes_on_cpu = [
            f"{n.op_type} {n.node}: {n.reason}"
            for n in session.placement()
            if n.provider == "CPUExecutionProvider" and "shape arithmetic" not in n.reason
        ]
    else:
        result.captured = captured
    if job.count_kernels and on_gpu:
        from cuvil_onnx.bench.launches import count_kernels

        del session
        with contextlib.suppress(Exception):  # a count that fails must not cost the timings
            result.kernels = count_kernels(job.model, job.providers, feed, outputs)
    return result


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
    job = Job(**json.loads(Path(job_file).read_text()))
    job.providers = [(name, options) for name, options in job.providers]
    try:
        result = run(job)
    except Exception as error:
        result = Result(error=" ".join(f"{type(error).__name__}: {error}".split())[:500])
    Path(result_file).write_text(json.dumps(asdict(result)))


if __name__ == "__main__":
    main()
